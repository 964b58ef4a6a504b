#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9, at random moments and around every kind of system call on the results and the files beside
them, and start again: the results equal those of a run that nobody disturbed, each record once, and no
line is taken for damaged.  Over several configurations; --kills is for all of them together.

    kills.py AQUIFER MODEL FAULTY [--kills N] [--seed N]"""
import os
import subprocess
import tempfile
import time

from hostile import Bench, GOOD, arguments, can_read, content, lines, remove

DISK = ("--placement", "weights=0/0/100 kv=0/0/100 hidden=0/0/100 head=host", "--disk-dir-any")
ERRORS = ("--errors", "{output}.errors")
CONFIGURATIONS = {
    "plain": (),
    "zst": (),
    "zst, ordered, errors": ("--ordered", *ERRORS),
    "gz, errors.gz, retry-errors": ("--errors", "{output}.errors.gz", "--retry-errors"),
    "errors, ordered, retry-errors": (*ERRORS, "--ordered", "--retry-errors"),
    "ordered": ("--ordered",),
    "retry-errors": ("--retry-errors",),
    "ordered, retry-errors": ("--ordered", "--retry-errors"),
    "from disk": DISK,
    "h2o": ("--kv-policy", "h2o", "--kv-budget", "50%"),
    # Half of the records, by chance more, ask for temperature 0, at which samples would be the same.
    # Kept at nearly every pass: kills fall into writing the file, and every run goes on from it.
    "records in flight kept": ("--checkpoint-every", "0.001", "--logprobs", "1"),
    "3 samples": ("--n", "3", "--temperature", "0.8", "--allow-errors"),
}
MOMENTS = ("before", "after", "half")
EARLY = 40  # calls in which a resumed run puts in order what it finds


class Kills(Bench):
    def kill_by_time(self, output, extra, whole_s):
        child = subprocess.Popen(self.words(output, extra), stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            # Most fall into the middle; some at the very start, when the files are just being made.
            return child.wait(self.args.draw.uniform(0, whole_s * self.args.draw.choice([0.2, 0.6, 1.2])))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            return None

    def kill_by_call(self, output, extra, calls):
        draw = self.args.draw
        k = draw.randint(1, draw.choice([EARLY, calls]))
        done = self.run(output, extra, f"any:{k}:{draw.choice(MOMENTS)}")
        return None if done.returncode == -9 else done.returncode

    def compare(self, name, extra, want, output, killed):
        said = f"{name}: after {killed} kills "
        self.check(not os.path.exists(output + ".inflight"), said + "nothing is left in flight")
        self.check(lines(want) == lines(output), said + "the results equal the undisturbed ones")
        self.check(not os.path.exists(output + ".damaged"), said + "no line is taken for damaged")
        if "--ordered" in extra:
            self.check(content(want) == content(output), said + "ordered results are the same bytes")

    def configuration(self, name, extra, kills):
        packed = name.split(",")[0]
        ending = "." + packed if packed in ("gz", "zst") else ""
        want, output, count = self.path("want" + ending), self.path("got" + ending), self.path("count")
        if not can_read(ending):
            print(f"{name}: left out, as there is no `zstd` here", flush=True)
            return 0
        self.run_well(want, extra)  # packs what there is to pack
        remove(want)
        begin_s = time.monotonic()
        self.run_well(want, extra, fault="any:0:before", count=count)
        whole_s = time.monotonic() - begin_s
        with open(count, encoding="ascii") as f:
            calls = int(f.read())
        self.check(calls > 20, f"{name}: there are calls to be killed in, not {calls}")
        killed = ends = 0
        while killed < kills:
            if self.args.draw.random() < 0.3:
                status = self.kill_by_time(output, extra, whole_s)
            else:
                status = self.kill_by_call(output, extra, calls)
            if status is None:
                killed += 1
                continue
            self.check(status in GOOD, f"{name}: a resumed run ends with 0 or 3, not {status}")
            self.compare(name, extra, want, output, killed)
            remove(output)
            ends += 1
        self.run_well(output, extra)
        self.compare(name, extra, want, output, killed)
        remove(output)
        remove(want)
        print(f"{name}: {killed} kills over {ends + 1} runs of {calls} calls each, results equal", flush=True)
        return killed


def main():
    args = arguments(__doc__, kills=(70, "in all"))
    total = 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Kills(args, folder, 80)
        for i, (name, extra) in enumerate(CONFIGURATIONS.items()):
            share = args.kills * (i + 1) // len(CONFIGURATIONS) - args.kills * i // len(CONFIGURATIONS)
            total += bench.configuration(name, extra, share)
    print(f"{total} kills, no record lost, doubled or changed; seed {args.seed}")


main()
