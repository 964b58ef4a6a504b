#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""System calls that a signal interrupts (EINTR) are made again: the run ends as if nothing had been.
Calls that really fail end it with status 4, a sentence, and results that the same command goes on from.
On results and what lies beside them, on scratch, and on a store that is packed.

    calls.py AQUIFER MODEL FAULTY [--each N] [--seed N]"""
import errno
import os
import shutil
import subprocess
import tempfile

from hostile import Bench, GOOD, arguments, lines, remove

DISK = ("--placement", "weights=0/0/100 kv=0/0/100 hidden=0/0/100 head=host", "--disk-dir-any")
CALLS = ("open", "read", "pread", "write", "pwrite", "ftruncate", "fallocate", "flock", "rename",
         "fdatasync", "fsync")
NOTHING_TO_SYNC = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)


class Calls(Bench):
    def count(self, call, watched, words):
        """How many such calls a run makes."""
        at = self.path("count")
        self.start(f"{call}:0:before", watched, words, AQ_FAULT_COUNT=at)
        with open(at, encoding="ascii") as f:
            return int(f.read())

    def start(self, fault, watched, words, **more):
        env = dict(os.environ, LD_PRELOAD=self.args.faulty, AQ_FAULT=fault, AQ_FAULT_PATH=watched, **more)
        return subprocess.run(words, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=300)

    def draw_calls(self, count):
        """The first few, the last one, and some of those between."""
        some = {1, 2, 3, count} | {self.args.draw.randint(1, max(count, 1)) for _ in range(self.args.each)}
        return sorted(k for k in some if 1 <= k <= count)

    # ---- results

    def half_done(self, output):
        """Results of some records, with errors to be tried again and a torn end."""
        remove(output)
        for other in os.listdir(self.folder):
            if other.startswith("half"):
                shutil.copy(self.path(other), output + other[4:])
        with open(output, "ab") as f:
            f.write(b'{"torn')

    def results(self):
        want, output, extra = self.path("want"), self.path("got"), ("--retry-errors", "--ordered")
        words = self.words(output, extra)
        self.run_well(self.path("half"), ("--limit", "12"))
        self.run_well(want, extra)
        seen = 0
        for call in CALLS:
            self.half_done(output)
            count = self.count(call, output, words)
            for k in self.draw_calls(count):
                self.half_done(output)
                done = self.start(f"{call}:{k}:{errno.EINTR}", output, words)
                what = f"{call} {k} of {count}, interrupted: "
                self.check(done.returncode in GOOD, f"{what}status {done.returncode}", done.stderr)
                self.check(lines(output) == lines(want), f"{what}results", done.stderr)
                seen += 1
        print(f"results: {seen} interrupted calls, none of them ends a run", flush=True)
        self.failing(want, output, words, extra)

    def failing(self, want, output, words, extra):
        seen = 0
        words = [*words, "--disk-full-wait", "0.2s"]
        for call, code in (("fdatasync", errno.EROFS), ("fdatasync", errno.EIO), ("fsync", errno.EROFS),
                           ("fsync", errno.EIO), ("rename", errno.EIO), ("ftruncate", errno.EIO),
                           ("write", errno.ENOSPC), ("write", errno.EDQUOT), ("fdatasync", errno.ENOSPC),
                           ("rename", errno.ENOSPC)):
            self.half_done(output)
            count = self.count(call, output, words)
            for k in self.draw_calls(count):
                self.half_done(output)
                done = self.start(f"{call}:{k}:always={code}", output, words)
                what = f"{call} {k} of {count}, {os.strerror(code)}: "
                if call in ("rename", "write") and done.returncode in GOOD:
                    continue  # of the status file, which is no result
                self.check(done.returncode == 4, f"{what}status {done.returncode}, not 4", done.stderr)
                self.check(os.strerror(code).encode() in done.stderr, f"{what}a sentence", done.stderr)
                self.run_well(output, extra)
                self.check(lines(output) == lines(want), f"{what}results afterwards", done.stderr)
                seen += 1
        for code in NOTHING_TO_SYNC:
            self.half_done(output)
            done = self.start(f"fdatasync:1:always={code}", output, words)
            self.check(done.returncode in GOOD, f"nothing to sync: status {done.returncode}", done.stderr)
        remove(output)
        done = self.start(f"open:1:always={errno.ENOSPC}", output, words)
        self.check(done.returncode == 4, f"no room for the lock: status {done.returncode}, not 4", done.stderr)
        print(f"results: {seen} failing calls, each ends a run with status 4 and a sentence", flush=True)

    # ---- scratch and stores

    def interrupted(self, what, watched, words, begin, check):
        seen = 0
        for call in CALLS:
            begin()
            count = self.count(call, watched, words)
            for k in self.draw_calls(count):
                begin()
                done = self.start(f"{call}:{k}:{errno.EINTR}", watched, words)
                text = f"{what}: {call} {k} of {count}, interrupted: status {done.returncode}"
                self.check(done.returncode in GOOD, text, done.stderr)
                check(text)
                seen += 1
        print(f"{what}: {seen} interrupted calls, none of them ends a run", flush=True)

    def scratch(self):
        want, output, disk = self.path("want"), self.path("got"), self.path("disk")
        os.makedirs(disk, exist_ok=True)
        remove(want)
        extra = (*DISK, "--disk-dir", disk)
        self.run_well(want, extra)
        self.interrupted("scratch", disk + "/", self.words(output, extra), lambda: remove(output),
                         lambda what: self.check(lines(output) == lines(want), what))

    def store(self):
        store = self.path("store")
        words = [self.args.aquifer, "pack", "--model", self.args.model, "--output", store, "--quiet"]

        def begin():
            shutil.rmtree(store, ignore_errors=True)
            shutil.rmtree(store + ".partial", ignore_errors=True)

        def check(what):
            done = subprocess.run([self.args.aquifer, "pack", "--model", store, "--verify"],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
            self.check(done.returncode == 0, what, done.stdout)

        self.interrupted("store", store, words, begin, check)
        for call in ("fdatasync", "fsync"):
            begin()
            done = self.start(f"{call}:1:always={errno.EROFS}", store, words)
            self.check(done.returncode == 4, f"store: {call}: status {done.returncode}, not 4", done.stderr)


def main():
    args = arguments(__doc__, each=(1, "more calls of each kind"))
    with tempfile.TemporaryDirectory() as folder:
        bench = Calls(args, folder, 24)
        bench.results()
        bench.scratch()
        bench.store()


main()
