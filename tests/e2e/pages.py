#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The commands in README.md, HACKING.md and docs/ work, and the links lead somewhere.

The words behind the three backticks of a block say what is tested:
    sh run       the commands run, in one folder for the page, and exit with 0
    console run  the commands behind `$ ` (continued by `> `) run in the same way; a line `$ echo $?`
                 shows the expected status of the command before it.  The lines below a command are
                 of its output, which must have lines with the same beginning, figures aside; `...`
                 stands for lines left out
    python run   the program runs in that folder and exits with 0, where AQUIFER_LIBRARY names the
                 library (sanitized ones cannot be loaded)
    sh           the commands do not run, because they need a model, a machine or hours; but their
                 options exist, and so do their scripts

AQ_PROGRAM names the program, AQ_SMALL examples/small.c, AQ_TEST_DATA the test data.
"""
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.environ["AQ_PROGRAM"]
SMALL = os.environ["AQ_SMALL"]
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DOCS = sorted("docs/" + name for name in os.listdir(os.path.join(ROOT, "docs")))
PAGES = ["README.md", "HACKING.md", *DOCS]
README_LINES_MAX = 150
SHOWN = 20  # characters of a shown line that the real one begins with
OF_THE_MACHINE = ("aquifer: lossy:",)  # what rounds depends on the instruction set


def text_of(page):
    with open(os.path.join(ROOT, page), encoding="utf-8") as f:
        return f.read()


def blocks_of(page):
    """(kind, lines) of each block."""
    for kind, body in re.findall(r"^```([^\n`]*)\n(.*?)^```$", text_of(page), re.M | re.S):
        yield kind.strip(), body.splitlines()


def masked(line):
    return re.sub(r"[0-9.]+", "0", line.rstrip())


def commands_of(lines):
    """A console's [(command, [shown lines], status)]."""
    found, status_is_next = [], False
    for line in lines:
        if line == "$ echo $?":
            status_is_next = True
        elif status_is_next:
            found[-1][2] = int(line)
            status_is_next = False
        elif line.startswith("$ "):
            found.append([line[2:], [], 0])
        elif line.startswith("> ") and not found[-1][1]:
            found[-1][0] += "\n" + line[2:]
        else:
            found[-1][1].append(line)
    return found


class Pages(unittest.TestCase):
    def enter_folder(self):
        """A folder where the paths in the pages lead to what they name."""
        self.dir = tempfile.mkdtemp(prefix="aq-pages-")
        self.addCleanup(shutil.rmtree, self.dir)
        for name, target in {"aquifer": PROGRAM, "build/engine/cli/aquifer": PROGRAM,
                             "build/examples/small": SMALL, "configs": ROOT + "/configs",
                             "tests/data": os.environ["AQ_TEST_DATA"]}.items():
            os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
            os.symlink(target, self.path(name))

    def path(self, name):
        return os.path.join(self.dir, name)

    def shell(self, command, status=0):
        env = {**os.environ, "PATH": self.dir + ":" + os.environ["PATH"],
               "XDG_CACHE_HOME": self.path("cache")}
        done = subprocess.run(["sh", "-c", command], cwd=self.dir, env=env, timeout=900,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        output = done.stdout.decode(errors="replace")
        self.assertEqual(done.returncode, status, f"{command}\n{output}")
        return output

    def run_python(self, lines):
        name = self.path("page.py")
        with open(name, "w", encoding="utf-8") as f:
            f.write("\n".join(lines))
        if "AQUIFER_LIBRARY" in os.environ:
            self.shell(f"PYTHONPATH={ROOT}/python {sys.executable} -B page.py")

    def run_console(self, lines):
        for command, shown, status in commands_of(lines):
            real = [masked(line) for line in self.shell(command, status).splitlines()]
            for line in shown:
                if line.strip() == "..." or line.startswith(OF_THE_MACHINE):
                    continue
                begin = masked(line)[:SHOWN]
                self.assertTrue(any(r.startswith(begin) for r in real),
                                f"{command}\nshows: {line}\nreally:\n" + "\n".join(real))

    def look_over(self, lines):
        """Lines that are not run: programs are there and options known."""
        for line in "\n".join(lines).replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["aquifer"]:
                self.shell(shlex.join([*words, "--help"]))
            for word in words[:3]:
                if re.search(r"\.(py|sh)$|^\./[a-z.]", word):
                    self.assertTrue(os.path.exists(os.path.join(ROOT, word)), line)

    def test_commands(self):
        for page in PAGES:
            self.enter_folder()
            for kind, lines in blocks_of(page):
                with self.subTest(page=page, block=lines[0]):
                    if kind == "sh run":
                        self.shell("\n".join(["set -e", *lines]))
                    elif kind == "console run":
                        self.run_console(lines)
                    elif kind == "python run":
                        self.run_python(lines)
                    else:
                        self.assertIn(kind, ("sh", "", "json", "yaml"))
                        self.look_over(lines if kind == "sh" else [])

    def test_links(self):
        for page in PAGES:
            for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text_of(page)):
                if not target.startswith("https://"):
                    at = os.path.join(ROOT, os.path.dirname(page), target)
                    self.assertTrue(os.path.exists(at), f"{page}: {target}")

    def test_the_readme_is_short_and_names_every_page(self):
        readme = text_of("README.md")
        self.assertLessEqual(len(readme.splitlines()), README_LINES_MAX)
        for page in DOCS:
            self.assertIn(f"({page})", readme)


if __name__ == "__main__":
    unittest.main()
