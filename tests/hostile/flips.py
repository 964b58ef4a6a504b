#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One bit flipped or one byte zeroed in what an earlier run left - results, sums or manifest - or a page
zeroed behind the results that have sums, as a power cut may leave it; and the run is started again.
Each time the damage is said (or the run was refused with a cure that works), and the results equal the
undamaged ones.

    flips.py AQUIFER MODEL FAULTY [--trials N] [--seed N]"""
import os
import shutil
import subprocess
import tempfile
import zlib

from hostile import Bench, GOOD, arguments, can_read, content, lines, remove

SHARES = (("", 70), (".sums", 15), (".manifest.json", 15))  # percent of the trials
SAID = (b"not as it was written", b"not as they were written", b"torn", b"damaged", b"no longer there",
        b"--allow-change")
ENDINGS = ("", ".zst", ".gz")  # of the results
PAGE = 4096
CURE = ("--allow-change", "manifest")


class Flips(Bench):
    def __init__(self, args, folder, ending):
        super().__init__(args, folder, 24)
        self.ending = ending
        self.want = self.path("want")
        # Trials find a whole output, one that was cut off and has lines to come, or one whose lines are
        # ahead of their sums.
        for name, extra in (("whole", ()), ("part", ("--limit", "16", "--ordered")), ("ahead", ("--limit", "8"))):
            self.run_well(self.path(name), extra)
        os.replace(self.path("whole"), self.want)
        shutil.copy(self.want, self.path("whole"))
        os.replace(self.path("part"), self.path("part.part"))
        self.ahead_from = os.path.getsize(self.path("ahead"))
        shutil.copy(self.path("ahead.sums"), self.path("sums"))
        self.run_well(self.path("ahead"))
        os.replace(self.path("sums"), self.path("ahead.sums"))
        self.totals = dict(silent=0, lost=0, crashed=0)

    def path(self, name):
        """Of a result file and what lies beside it; of anything else as it stands."""
        stem, dot, rest = name.partition(".")
        results = stem in ("whole", "part", "ahead", "want", "got") and self.ending
        return super().path(stem + (self.ending if results else "") + dot + rest)

    def means_the_same(self, path, before):
        """Whether a compressed file's text is as before: not every bit of it says something."""
        if not path.endswith((".gz", ".zst", ".part")):
            return False
        shown = self.path("shown") + self.ending
        shutil.copy(path, shown)
        try:
            return content(shown) == before
        except (OSError, EOFError, ValueError, zlib.error, subprocess.CalledProcessError):
            return False

    def place(self, name, output):
        for other in os.listdir(self.folder):
            if other.startswith(name + self.ending) and not other.endswith((".status.json", ".lock")):
                shutil.copy(os.path.join(self.folder, other), output + other[len(name + self.ending):])

    def damage(self, path):
        draw = self.args.draw
        with open(path, "r+b") as f:
            content = bytearray(f.read())
            at = draw.randrange(len(content))
            was = content[at]
            content[at] = 0 if draw.random() < 0.25 else was ^ 1 << draw.randrange(8)
            f.seek(0)
            f.write(content)
        return f"byte {at} of '{os.path.basename(path)}', {was} to {content[at]}"

    def lose_page(self, path):
        draw, size = self.args.draw, os.path.getsize(path)
        at = draw.randrange(self.ahead_from, size)
        count = min(size - at, draw.choice((1, draw.randint(1, PAGE), size)))
        with open(path, "r+b") as f:
            f.seek(at)
            f.write(bytes(count))
        return f"{count} bytes at {at} of '{os.path.basename(path)}' zeroed, sums up to {self.ahead_from}"

    def trial(self, number):
        draw, output, harmless = self.args.draw, self.path("got"), False
        name = draw.choice(("whole", "part", "ahead"))
        ending = draw.choices([e for e, _ in SHARES], [s for _, s in SHARES])[0]
        extra = ("--ordered",) if name == "part" else draw.choice(((), ("--retry-errors",)))
        remove(output)
        self.place(name, output)
        if name == "ahead":
            ending = ""
        damaged = output + (".part" if not ending and name == "part" else ending)
        shutil.copy(damaged, self.path("shown") + self.ending)
        before = None if ending or not self.ending else content(self.path("shown") + self.ending)
        what = self.lose_page(damaged) if name == "ahead" else self.damage(damaged)
        harmless = before is not None and self.means_the_same(damaged, before)
        done = self.run(output, extra)
        said = done.stderr
        if done.returncode == 1 and name != "ahead":
            done = self.run(output, extra + CURE)
        noticed = any(word in said for word in SAID)
        problem = None
        if done.returncode < 0 or done.returncode not in GOOD:
            problem = "crashed"
        elif lines(output) != lines(self.want):
            problem = "lost"
        elif not noticed and not harmless:
            problem = "silent"
        if problem:
            self.totals[problem] += 1
            print(f"{problem}: trial {number}: {name} {' '.join(extra)}: {what}: status {done.returncode}\n"
                  f"{(said + done.stderr).decode(errors='replace')}", flush=True)


def flip(bench, trials):
    for number in range(trials):
        bench.trial(number)
        if number % 500 == 499:
            print(f"{number + 1} trials: {bench.totals}", flush=True)
    totals = ", ".join(f"{count} {what}" for what, count in bench.totals.items())
    bench.check(not any(bench.totals.values()), f"{trials} trials: {totals}")
    print(f"{bench.ending or 'plain'}: {trials} trials: {totals}; seed {bench.args.seed}", flush=True)


def main():
    args = arguments(__doc__, trials=(80, "changed bytes, one a trial"))
    endings = [e for e in ENDINGS if can_read(e)]
    for i, ending in enumerate(endings):
        share = args.trials * (i + 1) // len(endings) - args.trials * i // len(endings)
        with tempfile.TemporaryDirectory() as folder:
            flip(Flips(args, folder, ending), share)


main()
