# SPDX-License-Identifier: Apache-2.0
"""What the scripts of this folder share: records, runs of the program, faults, results compared."""
import argparse
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import time

WORDS = "the of and a to in he was it his that she her with had as for you not at on but be him".split()
ERRORS_ENDINGS = (".errors", ".errors.gz")  # behind the name of the output
GOOD = (0, 3)  # 3: there are error records, as there should be


def arguments(about, **counts):
    """AQUIFER MODEL FAULTY and --NAME N for each count; draws are from --seed."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("aquifer")
    parser.add_argument("model")
    parser.add_argument("faulty", help="the library built from faulty.c")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    for name, (default, text) in counts.items():
        parser.add_argument("--" + name, type=int, default=default, help=f"{text} ({default})")
    args = parser.parse_args()
    args.draw = random.Random(args.seed)
    print(f"seed {args.seed}", flush=True)
    return args


class Bench:
    """A folder with an input, and runs over it."""

    SEATS = ("--micro-batch", "4")

    def __init__(self, args, folder, records):
        self.args, self.folder = args, folder
        self.input = self.path("in.jsonl")
        with open(self.input, "w", encoding="utf-8") as f:
            for r in self.draw_records(args.draw, records):
                f.write(json.dumps(r) + "\n")

    @staticmethod
    def draw_records(draw, count):
        for i in range(count):
            r = {"id": f"r{i}", "prompt": " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, 40))),
                 "max_tokens": draw.randint(1, 40), "temperature": draw.choice([0, 0.9])}
            if i % 7 == 3:
                r["n"], r["temperature"] = 2, 0.7
            if i % 11 == 5:
                r["max_tokens"] = -1  # an error record
            yield r

    def path(self, name):
        return os.path.join(self.folder, name)

    def words(self, output, extra=()):
        return [self.args.aquifer, "generate", "--device", "cpu", "--model", self.args.model, "--input",
                self.input, "--output", output, "--quiet", *self.SEATS, "--cache-dir",
                self.path("cache"), *(word.replace("{output}", output) for word in extra)]

    def environment(self, output, fault=None, count=None):
        env = dict(os.environ)
        if fault:
            env.update(LD_PRELOAD=self.args.faulty, AQ_FAULT=fault, AQ_FAULT_PATH=output)
        if count:
            env["AQ_FAULT_COUNT"] = count
        return env

    def run(self, output, extra=(), fault=None, count=None):
        return subprocess.run(self.words(output, extra), env=self.environment(output, fault, count),
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              timeout=300)

    def check(self, good, what, said=b""):
        if not good:
            print(f"FAILED: {what} (seed {self.args.seed})\n{said.decode(errors='replace')}")
            sys.exit(1)

    def run_well(self, output, extra=(), **how):
        done = self.run(output, extra, **how)
        self.check(done.returncode in GOOD, f"{extra} ends with 0 or 3, not {done.returncode}", done.stderr)
        return done


def content(path):
    """Of a file, unpacked where its name says that it is compressed; bytes, as some is no text any more."""
    if path.endswith(".zst"):
        return subprocess.run(["zstd", "-dcq", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              check=True).stdout
    with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as f:
        return f.read()


def lines(path):
    """Of a result file and its file of errors, in any order."""
    files = [path] + [path + ending for ending in ERRORS_ENDINGS if os.path.exists(path + ending)]
    return sorted(line for f in files for line in content(f).splitlines(keepends=True))


def can_read(ending):
    return ending != ".zst" or shutil.which("zstd") is not None


def remove(output):
    """A result file and all that lies beside it."""
    folder, name = os.path.split(output)
    for other in os.listdir(folder):
        if other == name or other.startswith(name + "."):
            os.unlink(os.path.join(folder, other))
