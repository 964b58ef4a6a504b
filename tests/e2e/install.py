# SPDX-License-Identifier: Apache-2.0
"""What is installed, of the build folder as it is: the tree that `meson install` makes, the Debian
package and the wheel.  Each is used as those who install it would.

    install.py SOURCE BUILD COMPILER...

AQ_PROGRAM names the program, AQ_CUDA_EMULATED the emulated CUDA backend where it was built.  What a
missing tool keeps from being checked is skipped and named.
"""
import functools
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD, COMPILER = sys.argv[1], sys.argv[2], sys.argv[3:]
PROGRAM = os.environ["AQ_PROGRAM"]
with open(os.path.join(SOURCE, "meson.build"), encoding="utf-8") as build_file:
    VERSION = re.search(r"^  version: '(.*)',$", build_file.read(), re.M).group(1)
# What of the platform a wheel may rely on: PEP 600's list, as far as C and C++ go.
PLATFORM = re.compile(r"(linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so)")


def run(*words, status=0, **how):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900,
                          text=True, check=False, **how)
    if done.returncode != status:
        raise AssertionError(f"{words}: status {done.returncode}\n{done.stdout}")
    return done.stdout


def need(tool, package):
    if not shutil.which(tool):
        raise unittest.SkipTest(f"{tool} is missing: apt-get install {package}")


@functools.cache
def commands():
    """Names of the program's commands."""
    text = run(PROGRAM, "help").split("\nCommands\n")[1].split("\n\n")[0]
    return [line.split()[0] for line in text.splitlines()]


@functools.cache
def options_of(command):
    """Long options that the program's help shows."""
    return set(re.findall(r"^  (?:-\w, |    )(--[\w-]+)", run(PROGRAM, "help", command, "--all"), re.M))


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        need("meson", "meson")
        cls.dir = tempfile.mkdtemp(prefix="aq-install-")
        cls.addClassCleanup(shutil.rmtree, cls.dir)

    def path(self, *names):
        return os.path.join(self.dir, *names)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)
        return self.path(name)


class Tree(Case):
    """`meson install`."""
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        run("meson", "install", "-C", BUILD, "--no-rebuild",
            env={**os.environ, "DESTDIR": os.path.join(cls.dir, "dest")})
        options = json.loads(run("meson", "introspect", BUILD, "--buildoptions"))
        cls.options = {o["name"]: o["value"] for o in options}
        cls.prefix = os.path.join(cls.dir, "dest", cls.options["prefix"].lstrip("/"))
        cls.libdir = os.path.join(cls.prefix, cls.options["libdir"])

    def test_everything_is_there(self):
        names = ["bin/aquifer", "include/aquifer.h", "share/doc/aquifer/LICENSE",
                 "share/doc/aquifer/docs/install.md", "share/aquifer/configs/tables/flexgen.yaml",
                 "share/aquifer/configs/hardware/t4-208gb.yaml",
                 "share/aquifer/configs/examples/prompts.jsonl", "share/doc/aquifer/examples/small.c",
                 "share/doc/aquifer/examples/slurm_array.sh", "share/doc/aquifer/examples/ray_batches.py",
                 "share/aquifer/tiny-opt/model.safetensors", "share/man/man1/aquifer.1",
                 "share/bash-completion/completions/aquifer", "share/zsh/site-functions/_aquifer"]
        names += [f"share/man/man1/aquifer-{c}.1" for c in commands()]
        for name in names:
            self.assertTrue(os.path.isfile(os.path.join(self.prefix, name)), name)
        for name in ("libaquifer.a", "libaquifer.so", "libaquifer.so.0", "pkgconfig/aquifer.pc"):
            self.assertTrue(os.path.isfile(os.path.join(self.libdir, name)), name)
        if os.path.exists(os.path.join(BUILD, "kernels", "aquifer_cuda.so")):
            self.assertTrue(os.path.isfile(os.path.join(self.prefix,
                                                        "lib/aquifer/aquifer_cuda.so")))

    def test_the_program_runs_with_what_is_installed(self):
        out = self.path("rows.jsonl")
        share = os.path.join(self.prefix, "share", "aquifer")
        run(os.path.join(self.prefix, "bin", "aquifer"), "generate", "--model", share + "/tiny-opt",
            "--config", share + "/configs/examples/demo.yaml", "--device", "cpu", "--input",
            share + "/configs/examples/prompts.jsonl", "--output", out)
        with open(out, encoding="utf-8") as f, \
                open(share + "/configs/examples/prompts.jsonl", encoding="utf-8") as prompts:
            self.assertEqual(len(f.readlines()), len(prompts.readlines()))

    def pages(self):
        return sorted(glob.glob(os.path.join(self.prefix, "share/man/man1/*.1")))

    def test_manual_pages_have_no_fault(self):
        need("mandoc", "mandoc")
        for page in self.pages():
            # The date is left out, so that the same sources give the same pages.
            said = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", page], check=False,
                                  stdout=subprocess.PIPE, text=True, timeout=60).stdout
            self.assertEqual([line for line in said.splitlines() if "missing date" not in line], [])

    def test_manual_pages_show_what_help_does(self):
        need("mandoc", "mandoc")
        for command in commands():
            page = os.path.join(self.prefix, f"share/man/man1/aquifer-{command}.1")
            text = re.sub(".\b", "", run("mandoc", "-T", "utf8", "-O", "width=100", page))
            shown = set(re.findall(r"^ +(?:-\w, )?(--[\w-]+)", text, re.M))
            self.assertLessEqual(options_of(command), shown)
            self.assertIn("EXIT STATUS", text)

    def complete(self, *words):
        """What bash offers for the last word, with the installed script."""
        script = os.path.join(self.prefix, "share/bash-completion/completions/aquifer")
        said = run("bash", "-c", 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))\n'
                   '_aquifer; printf "%s\\n" "${COMPREPLY[@]}"', "bash", script, "aquifer", *words,
                   cwd=SOURCE)
        return said.split()

    def test_bash_completes(self):
        need("bash", "bash")
        self.assertEqual(self.complete("gen"), ["generate"])
        self.assertEqual(set(self.complete("")) - {"--help", "--version", "help"}, set(commands()))
        for command in commands():
            found = set(self.complete(command, "--"))
            self.assertEqual({f for f in found if not f.startswith("--no-")},
                             {o for o in options_of(command) if not o.startswith("--no-")})
        for words, offered in {
                ("generate", "--kv-format", "i"): ["int8", "int4"],
                ("generate", "--kv-format", "=", "i"): ["int8", "int4"],
                ("generate", "--bos", "="): ["auto", "always", "never"],
                ("eval", "--bos", ""): ["none", "once", "each"],
                ("generate", "--kv-policy", "h2o", ":", "f"): ["flexgen"],
                ("generate", "--kv-policy", "=", "h2o", ":"): ["flexgen", "hf"],
                ("plan", "--shape", "opt-1"): ["opt-125m", "opt-1.3b", "opt-13b", "opt-175b"],
                ("plan", "--hardware", "t4"): ["t4-208gb"],
                ("generate", "--device", "c"): ["cpu", "cuda"],
                ("generate", "-m", "conf"): ["configs"],
                ("generate", "--model", "READ"): [],
                ("generate", "--input", "READ"): ["README.md"],
                ("generate", "--config", "READ"): ["README.md"],
                ("status", "READ"): ["README.md"],
                ("generate", "--no-r"): ["--no-refill"],
                ("generate", "--top-k", ""): [],
                ("help", "ma"): ["man"],
                ("nonsense", "--"): []}.items():
            self.assertEqual(self.complete(*words), offered, words)

    def test_zsh_reads_its_script(self):
        need("zsh", "zsh")
        script = os.path.join(self.prefix, "share/zsh/site-functions/_aquifer")
        run("zsh", "-f", "-n", script)
        # Run to its end, with what it calls played: the specifications reach _arguments whole.
        said = run("zsh", "-f", "-c", "_arguments() { print -rl -- $@ }\n"
                   "words=(aquifer plan --sha) CURRENT=3; source $1", "zsh", script)
        specs = said.splitlines()
        for option in options_of("plan") - {"--help", "--config"}:
            self.assertTrue(any(option in re.split(r"[=\[]", re.sub(r"^(\*|\([^)]*\))", "", s))
                                for s in specs), option)

    def compile(self, name, *flags):
        source = self.write("user.c", """
            #include <aquifer.h>
            #include <stdio.h>
            int main(void)
            {
                printf("aquifer %s\\n%s %d.%d.%d %d\\n", aquifer_version(), AQUIFER_VERSION,
                       AQUIFER_VERSION_MAJOR, AQUIFER_VERSION_MINOR, AQUIFER_VERSION_PATCH,
                       AQUIFER_VERSION_NUMBER >= 100 * AQUIFER_VERSION_MINOR);
                return 0;
            }
            """)
        run(*COMPILER, "-Wall", "-Werror", source, "-o", self.path(name), *flags)
        return self.path(name)

    def flags(self, *words, libdir=None):
        """What pkg-config says; the tree lies below a folder of its own."""
        folder = libdir or self.libdir
        env = {**os.environ, "PKG_CONFIG_PATH": os.path.join(folder, "pkgconfig"),
               "PKG_CONFIG_SYSROOT_DIR": self.path("dest"),
               "PKG_CONFIG_ALLOW_SYSTEM_LIBS": "1", "PKG_CONFIG_ALLOW_SYSTEM_CFLAGS": "1"}
        return run("pkg-config", "--cflags", "--libs", *words, "aquifer", env=env).split()

    def check_user(self, program, **env):
        said = run(program, env={**os.environ, **env}).splitlines()
        self.assertEqual(said, [run(PROGRAM, "--version").strip(), f"{VERSION} {VERSION} 1"])
        self.assertEqual(said[0].split()[1], VERSION)

    def test_a_program_uses_the_shared_library(self):
        need("pkg-config", "pkg-config")
        flags = self.flags()
        self.assertEqual([f for f in flags if f.startswith("-l")], ["-laquifer"])
        user = self.compile("shared", *flags)
        self.assertIn("libaquifer.so.0", run("readelf", "-d", user))
        self.check_user(user, LD_LIBRARY_PATH=self.libdir)

    def test_a_program_uses_the_static_library(self):
        need("pkg-config", "pkg-config")
        flags = self.flags("--static")
        at = flags.index("-laquifer")
        user = self.compile("static", *flags[:at], "-Wl,-Bstatic", "-laquifer", "-Wl,-Bdynamic",
                            *flags[at + 1:])
        self.assertNotIn("libaquifer", run("readelf", "-d", user))
        self.check_user(user)

    def test_the_example_is_compiled_with_what_is_installed(self):
        need("pkg-config", "pkg-config")
        share = os.path.join(self.prefix, "share", "aquifer")
        small = self.path("small")
        run(*COMPILER, os.path.join(self.prefix, "share/doc/aquifer/examples/small.c"), "-o", small, *self.flags())
        said = run(small, share + "/tiny-opt", env={**os.environ, "LD_LIBRARY_PATH": self.libdir})
        self.assertGreaterEqual(len(said.splitlines()), 3)

    def test_nobody_else_needs_headers_of_our_libraries(self):
        with open(os.path.join(self.libdir, "pkgconfig", "aquifer.pc"), encoding="utf-8") as f:
            self.assertNotIn("Requires", f.read())


class Debian(Case):
    """packaging/deb.sh."""
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        need("dpkg-shlibdeps", "dpkg-dev")
        quick = {"DPKG_DEB_COMPRESSOR_TYPE": "gzip", "DPKG_DEB_COMPRESSOR_LEVEL": "1"}
        cls.package = run("sh", os.path.join(SOURCE, "packaging", "deb.sh"), BUILD, cls.dir,
                          env={**os.environ, **quick}).strip().splitlines()[-1]
        cls.root = os.path.join(cls.dir, "root")
        run("dpkg-deb", "-x", cls.package, cls.root)

    def inside(self, name):
        return os.path.join(self.root, "usr", name)

    def test_it_says_what_it_is(self):
        field = lambda name: run("dpkg-deb", "-f", self.package, name).strip()  # noqa: E731
        self.assertEqual(field("Package"), "aquifer")
        self.assertEqual(field("Version"), VERSION)
        self.assertEqual(os.path.basename(self.package),
                         f"aquifer_{VERSION}_{field('Architecture')}.deb")
        for library in ("libjansson4", "libzip4", "libc6", "coinor-libclp1"):
            self.assertIn(library, field("Depends"))
        self.assertNotIn("aquifer", field("Depends"))

    def test_what_it_unpacks_works(self):
        program = self.inside("bin/aquifer")
        self.assertEqual(run(program, "--version"), run(PROGRAM, "--version"))
        pc, = glob.glob(self.inside("lib/**/aquifer.pc"), recursive=True)
        with open(pc, encoding="utf-8") as f:
            self.assertEqual(f.readline(), "prefix=/usr\n")
        library, = glob.glob(self.inside("lib/**/libaquifer.so.0"), recursive=True)
        env = {**os.environ, "AQUIFER_LIBRARY": library,
               "PYTHONPATH": self.inside("lib/python3/dist-packages")}
        self.assertEqual(run(sys.executable, "-B", "-c", "import aquifer as a; print(a.version())",
                             env=env), run(PROGRAM, "--version").split(maxsplit=1)[1])
        for name in ("share/man/man1/aquifer-plan.1.gz", "share/zsh/vendor-completions/_aquifer",
                     "share/bash-completion/completions/aquifer", "share/doc/aquifer/copyright",
                     "share/aquifer/configs/tables/h2o.yaml", "include/aquifer.h"):
            self.assertTrue(os.path.isfile(self.inside(name)), name)
        with open(self.inside("share/doc/aquifer/copyright"), encoding="utf-8") as f:
            self.assertIn("Apache License", f.read())

    def test_it_is_roots_and_its_sums_hold(self):
        for line in run("dpkg-deb", "-c", self.package).splitlines():
            self.assertEqual(line.split()[1], "root/root", line)
            self.assertNotRegex(line.split()[0], r"^-.......w", line)
        run("dpkg-deb", "-e", self.package, self.path("control"))
        run("md5sum", "--quiet", "-c", self.path("control", "md5sums"), cwd=self.root)

    def test_no_build_folder_no_package(self):
        said = run("sh", os.path.join(SOURCE, "packaging", "deb.sh"), self.path("none"), self.dir,
                   status=1)
        self.assertIn("is no build folder", said)


class Wheel(Case):
    """python/build_wheel.sh, and what pip makes of it."""
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for tool, package in (("patchelf", "patchelf"), ("readelf", "binutils"),
                              ("dpkg-query", "dpkg")):
            need(tool, package)
        if sys.version_info < (3, 11):
            raise unittest.SkipTest("the wheel is made by Python 3.11 or later")
        env = {**os.environ, "PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"]}
        cls.wheel = run("sh", os.path.join(SOURCE, "python", "build_wheel.sh"), BUILD, cls.dir,
                        env=env).strip().splitlines()[-1]
        cls.venv = os.path.join(cls.dir, "venv")
        made = subprocess.run([sys.executable, "-m", "venv", cls.venv], capture_output=True,
                              text=True, check=False)
        if made.returncode:
            raise unittest.SkipTest("no environment can be made: apt-get install python3-venv")
        run(os.path.join(cls.venv, "bin", "pip"), "install", "--no-index", "--quiet", cls.wheel)
        cls.package, = glob.glob(cls.venv + "/lib/python3*/site-packages/aquifer")

    def python(self, text):
        env = {k: v for k, v in os.environ.items()
               if k not in ("AQUIFER_LIBRARY", "PYTHONPATH", "LD_LIBRARY_PATH")}
        return run(os.path.join(self.venv, "bin", "python"), "-c", text, env=env, cwd=self.dir)

    def test_the_lines_of_the_page_run(self):
        with open(os.path.join(SOURCE, "docs", "install.md"), encoding="utf-8") as f:
            lines = re.search(r"^```\n(import sys\n.*?)^```$", f.read(), re.M | re.S).group(1)
        self.assertLessEqual(len([line for line in lines.splitlines() if line]), 10)
        said = self.python(lines).splitlines()
        for begin in ("0 ", "1 ", "lane ", "[Score(loglikelihood=-"):
            self.assertTrue(any(line.startswith(begin) for line in said), said)
        self.assertRegex(said[-1], r"^[0-9.]+ tokens/s$")

    def test_the_console_entry_is_the_program(self):
        entry = os.path.join(self.venv, "bin", "aquifer")
        self.assertEqual(run(entry, "--version"), run(PROGRAM, "--version"))
        self.assertEqual(run(os.path.join(self.venv, "bin", "python"), "-m", "aquifer", "help",
                             "plan", cwd=self.dir), run(PROGRAM, "help", "plan"))
        said = run(entry, "generate", "--model", "/none", "--prompt", "a", status=2)
        self.assertIn("/none", said)

    def test_metadata(self):
        said = self.python("""
import aquifer, importlib.metadata as m
found = m.metadata("aquifer")
print(aquifer.__version__, found["Version"], found["Name"], found["License"],
      found["Requires-Python"], m.requires("aquifer"), found["Summary"])
print(*[e.value for e in m.entry_points(group="console_scripts") if e.name == "aquifer"])
print(*sorted(f.name for f in m.files("aquifer") if "licenses" in str(f)))
""").splitlines()
        self.assertRegex(said[0], f"^{VERSION} {VERSION} aquifer Apache-2.0 >=3.9 .*tqdm.*lm-eval")
        self.assertEqual(said[1], "aquifer.__main__:main")
        self.assertTrue(os.path.exists(os.path.join(self.package, "py.typed")))
        for name in ("LICENSE", "LIBRARIES.txt", "libjansson4.txt", "coinor-libclp1.txt"):
            self.assertIn(name, said[2].split())
        self.assertEqual(run(os.path.join(self.venv, "bin", "pip"), "check").strip(),
                         "No broken requirements found.")

    def test_it_loads_nothing_else(self):
        lib = os.path.join(self.package, "lib")
        carried = set(os.listdir(lib))
        for name in carried:
            for needed in run("patchelf", "--print-needed", os.path.join(lib, name)).split():
                # cuBLASLt has half a gigabyte: the module looks for it where toolkits have it.
                own = name == "aquifer_cuda.so" and needed.startswith("libcublasLt.so.")
                self.assertTrue(own or needed in carried or PLATFORM.match(needed), (name, needed))
        loaded = self.python("import aquifer; aquifer.version()\nprint(open('/proc/self/maps')"
                             ".read())")
        paths = {line.split()[5] for line in loaded.splitlines()
                 if len(line.split()) > 5 and "libaquifer" in line}
        self.assertGreater(len(paths), 5)
        self.assertEqual({os.path.dirname(p) for p in paths}, {os.path.realpath(lib)})

    def test_the_tag_is_what_is_asked_for(self):
        tag = re.search(r"-py3-none-manylinux_2_(\d+)_(\w+)\.whl$", self.wheel)
        asked = [int(v) for name in os.listdir(os.path.join(self.package, "lib")) for v in
                 re.findall(r"\bGLIBC_2\.(\d+)", run("readelf", "--version-info", os.path.join(
                     self.package, "lib", name)))]
        self.assertEqual(int(tag.group(1)), max(asked))
        self.assertEqual(tag.group(2), os.uname().machine)

    def test_the_cuda_backend_beside_the_library_is_found(self):
        module = os.environ.get("AQ_CUDA_EMULATED")
        if not module or not os.path.exists(module):
            self.skipTest("the emulated CUDA backend is not built")
        place = os.path.join(self.package, "lib", "aquifer_cuda.so")
        if os.path.exists(place):
            self.skipTest("the wheel has a real one")
        ask = "import aquifer\nprint([b['usable'] for b in aquifer.run(['info', '--json'])" \
              ".json()['backends'] if b['name'] == 'cuda'])"
        self.assertEqual(self.python(ask).strip(), "[False]")
        shutil.copy(module, place)
        self.addCleanup(os.remove, place)
        self.assertEqual(self.python(ask).strip(), "[True]")

    def test_data_are_where_shells_and_man_look(self):
        for name in ("man/man1/aquifer-plan.1", "bash-completion/completions/aquifer",
                     "aquifer/configs/tables/tiny.yaml"):
            self.assertTrue(os.path.isfile(os.path.join(self.venv, "share", name)), name)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
