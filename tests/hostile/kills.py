#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9, at random moments and around every kind of system call on the results and the files beside
them, and start again: the results equal those of a run that nobody disturbed, each record once, and no
line is taken for damaged.  Over several configurations; --kills is for all of them together, --alike for
those whose records come in groups that share a prefix, and which are killed while that prefix is
computed, too.

    kills.py AQUIFER MODEL FAULTY [--kills N] [--alike N] [--seed N]"""
import json
import os
import shutil
import subprocess
import tempfile
import time

from hostile import Bench, GOOD, WORDS, arguments, can_read, content, lines, remove

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
# Of records in groups; each run's report says how many tokens it shared.
ALIKE = {
    "groups": (),
    "groups, ordered": ("--ordered",),
    "groups, in flight kept": ("--checkpoint-every", "0.001"),
    "groups, ordered, in flight kept": ("--ordered", "--checkpoint-every", "0.001"),
}
MOMENTS = ("before", "after", "half")
EARLY = 40  # calls in which a resumed run puts in order what it finds


class Kills(Bench):
    def start(self, output, extra):
        with open(self.path("said"), "wb") as said:
            return subprocess.Popen(self.words(output, extra), stdin=subprocess.DEVNULL,
                                    stdout=subprocess.DEVNULL, stderr=said)

    def kill_by_time(self, output, extra, whole_s):
        child = self.start(output, extra)
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
        with open(self.path("said"), "wb") as said:
            said.write(done.stderr)
        return None if done.returncode == -9 else done.returncode

    def kill_once(self, output, extra, calls, whole_s):
        """Kills a run somewhere; its exit status if it ended before, and what it said is kept in `said`."""
        if self.args.draw.random() < 0.3:
            return self.kill_by_time(output, extra, whole_s)
        return self.kill_by_call(output, extra, calls)

    def undisturbed(self, want, extra):
        """Makes the results that all others must equal."""
        self.run_well(want, extra)  # packs what there is to pack

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
        self.undisturbed(want, extra)
        begin_s = time.monotonic()
        self.run_well(output, extra, fault="any:0:before", count=count)
        whole_s = time.monotonic() - begin_s
        self.compare(name, extra, want, output, 0)
        remove(output)
        with open(count, encoding="ascii") as f:
            calls = int(f.read())
        self.check(calls > 20, f"{name}: there are calls to be killed in, not {calls}")
        killed = ends = 0
        while killed < kills:
            status = self.kill_once(output, extra, calls, whole_s)
            if status is None:
                killed += 1
                continue
            self.check(status in GOOD, f"{name}: a resumed run ends with 0 or 3, not {status}",
                       content(self.path("said")))
            self.compare(name, extra, want, output, killed)
            remove(output)
            ends += 1
        self.run_well(output, extra)
        self.compare(name, extra, want, output, killed)
        remove(output)
        remove(want)
        print(f"{name}: {killed} kills over {ends + 1} runs of {calls} calls each, results equal", flush=True)
        return killed

    def after_ordering(self, name, extra):
        """A run was killed when FILE.part stood in order as FILE and before it went: the next one is killed at
        each of its calls, and the one behind it at the same."""
        output = self.path("got")
        self.run_well(output, extra)
        want, kept = content(output), self.path("kept")
        shutil.rmtree(kept, ignore_errors=True)
        os.mkdir(kept)
        part = content(output).splitlines(keepends=True)
        self.args.draw.shuffle(part)
        with open(output + ".part", "wb") as f:
            f.write(b"".join(part))
        beside = [f for f in os.listdir(self.folder) if f == "got" or f.startswith("got.")]
        for f in beside:
            shutil.copy2(self.path(f), kept)
        killed = call = 0
        ended = False
        while not ended:
            call += 1
            remove(output)
            shutil.copytree(kept, self.folder, dirs_exist_ok=True)
            for _ in range(2):
                ended = self.run(output, extra, f"any:{call}:before").returncode != -9
                killed += not ended
            last = self.run_well(output, extra)
            said = f"{name}: killed at call {call} "
            self.check(not {"got.part", "got.old.1"} & set(os.listdir(self.folder)), said + "one file stays", last.stderr)
            self.check(content(output) == want, said + "the results are the same", last.stderr)
        self.check(killed > 8, f"{name}: there are calls to be killed in, not {killed}")
        remove(output)
        print(f"{name}: {killed} kills after FILE.part stood in order, results equal", flush=True)
        return killed


class Groups(Kills):
    """Records in groups that begin with one long header each, whose prefill is most of what there is to do: one
    micro-batch has seats for a group and the beginning of the next."""
    SEATS = ("--micro-batch", "10", "--micro-batches", "1", "--threads", "1")
    GROUPS, EACH, HEADER = 6, 8, 900

    def __init__(self, *how):
        super().__init__(*how)
        self.in_prefill = self.shared = 0
        self.load_s = self.prefill_s = 0.0

    @classmethod
    def draw_records(cls, draw, count):
        headers = [" ".join(draw.choice(WORDS) for _ in range(cls.HEADER)) for _ in range(cls.GROUPS)]
        for i in range(count):
            own = " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, 20)))
            r = {"id": f"g{i}", "prompt": headers[i % cls.GROUPS] + " " + own}
            kind = i // cls.GROUPS % cls.EACH
            if kind == 5:
                r["choices"] = [" the sea", " a house in it", " he"]
                yield r
                continue
            r.update(max_tokens=30 if kind == 6 else draw.randint(1, 6), temperature=draw.choice([0, 0.9]))
            if kind == 3:
                r.update(n=3, temperature=0.8)
            yield r

    def words(self, output, extra=()):
        return super().words(output, ("--report", output + ".report.json", *extra))

    @staticmethod
    def document(path):
        try:
            with open(path, encoding="utf-8") as f:
                return json.load(f)
        except FileNotFoundError:
            return {}

    def undisturbed(self, want, extra):
        """Each prompt computed whole, by a run that shares nothing."""
        self.run_well(want, ("--share-prefixes", "off", *extra))
        report = self.document(want + ".report.json")
        self.check(report["shared_tokens"] == 0, "each prompt is computed whole")
        self.load_s = report["load_s"]

    @staticmethod
    def written(output):
        """Bytes of results, wherever they are collected."""
        return sum(os.path.getsize(f) for f in (output, output + ".part") if os.path.exists(f))

    def kill_in_prefill(self, output, extra):
        """In the first pass of a run, which computes the header of the first group that is not done."""
        child = self.start(output, extra)
        status = output + ".status.json"
        until = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < until:
            if self.document(status).get("pid") == child.pid:
                break
            time.sleep(0.001)
        before = self.written(output)
        try:
            return child.wait(self.load_s + self.args.draw.uniform(0.1, 0.9) * self.prefill_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        self.in_prefill += self.written(output) == before
        return None

    def kill_once(self, output, extra, calls, whole_s):
        if self.args.draw.random() < 0.5:
            return self.kill_in_prefill(output, extra)
        return super().kill_once(output, extra, calls, whole_s)

    def compare(self, name, extra, want, output, killed):
        super().compare(name, extra, want, output, killed)
        report = self.document(output + ".report.json")
        self.shared += report["shared_tokens"]
        if not killed:
            self.check(report["shared_tokens"] > report["prompt_tokens"] // 2, f"{name}: groups share their headers")
            self.prefill_s = report["prefill_s"]


def rounds(bench, configurations, kills):
    """So many kills over all configurations."""
    total = 0
    for i, (name, extra) in enumerate(configurations.items()):
        share = kills * (i + 1) // len(configurations) - kills * i // len(configurations)
        total += bench.configuration(name, extra, share) if share else 0
    return total


def main():
    args = arguments(__doc__, kills=(70, "in all"), alike=(50, "within groups of records that begin alike"))
    with tempfile.TemporaryDirectory() as folder:
        kills = Kills(args, folder, 80)
        total = rounds(kills, CONFIGURATIONS, args.kills)
        for name in ("errors, ordered, retry-errors", "ordered, retry-errors"):
            total += kills.after_ordering(name, CONFIGURATIONS[name])
    with tempfile.TemporaryDirectory() as folder:
        groups = Groups(args, folder, Groups.GROUPS * Groups.EACH)
        total += rounds(groups, ALIKE, args.alike)
    groups.check(args.alike < 20 or groups.in_prefill * 8 >= args.alike, f"{groups.in_prefill} kills in a prefill are some")
    print(f"{groups.in_prefill} kills in the prefill of a group; {groups.shared} tokens of prompts were shared")
    print(f"{total} kills, no record lost, doubled or changed; seed {args.seed}")


main()
