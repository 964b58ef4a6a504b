#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured: runs of many kinds on this machine, each beside what the planner said before it.

    python3 bench/predict.py [--build build] [--output NAME] [--only WORD] [--list]

Models, batches, formats, KV policies, placements over an emulated device, links and the disk, schedules, and jobs
whose passes prefill and decode at once.  The machine is probed (aquifer probe --quick, with its disk where a run
needs one) before each run and again after it, and what is predicted is the mean of what the planner says with either:
a server's rates drift while a run takes half a minute.  Where one of the main rates has moved by more than 15 % in
between, or runs of a row are further apart, others on the host had the machine, and the run counts as disturbed.  A
configuration is run until one run was not disturbed; where that is more than 8 % off, until three were not; and at most
five times.  The error is the median of the undisturbed runs (of all where none was undisturbed, and the table says so):
that of generated tokens per second, 1 - the smaller by the larger; pass times stand beside it.  A run that takes less
than 15 s is made three times, and the middle one counts.  With --output NAME finished runs are kept in NAME.json and the
table in NAME.md; started again it goes on (other options or another build of aquifer: run again).  Exit status 1 when
the median error is above 5 % or the worst above 12 %, or a run failed."""
import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile

import runs
from runs import model, spread

MEDIAN, WORST = 0.05, 0.12
TRIES, MOVED = 5, 0.15
FAR, ENOUGH = 0.08, 3
SHORT_S, SHORT_RUNS = 15, 3
WATCHED = ("product_f32_tflop_s", "product_bf16_tflop_s", "product_memory_gb_s", "attention_memory_gb_s", "read_gb_s")
DEVICE = ["--emulate-device", "3GiB", "--emulate-link"]


def resident():
    for shape, prompt, batches in (("opt-125m", 128, (1, 8, 32, 128)), ("opt-350m", 128, (8, 64)),
                                   ("opt-1.3b", 48, (1, 16, 64)), ("cut-6.7b", 48, (16, 96))):
        for b in batches:
            yield f"{shape}, batch {b}", model(shape, prompt, 24, b)
    yield "opt-125m, f32", model("opt-125m", 128, 24, 32) + ["--compute", "f32"]
    yield "opt-1.3b, int8", model("opt-1.3b", 64, 24, 16) + ["--weight-format", "int8"]
    yield "opt-1.3b, int4", model("opt-1.3b", 64, 24, 16) + ["--weight-format", "int4"]
    yield "opt-350m, long", model("opt-350m", 768, 32, 8)
    yield "opt-350m, KV int8", model("opt-350m", 512, 32, 12) + ["--kv-format", "int8"]
    yield "opt-350m, KV int4", model("opt-350m", 512, 32, 12) + ["--kv-format", "int4"]
    for policy in ("h2o", "window", "heavy"):
        yield f"opt-350m, {policy} 20 %", model("opt-350m", 512, 48, 12) + ["--kv-policy", policy, "--kv-budget", "20%"]
    # Heads that share keys: 4 of 64, whose attention counts, and 8 of 128.
    yield "small-llama, groups of 4, long", model("small-llama", 768, 32, 24)
    yield "small-llama-wide, groups of 8, long", model("small-llama-wide", 768, 32, 24)


def device():
    """Behind an emulated link."""
    weights = spread(weights="0/100/0")
    yield "link, weights", model("opt-350m", 64, 16, 32) + DEVICE + ["2/2"] + weights
    yield "link, weights, slow", model("opt-350m", 64, 16, 32) + DEVICE + ["0.8/0.8"] + weights
    yield "link, half the weights", model("opt-1.3b", 64, 12, 16) + DEVICE + ["3/3"] + spread(weights="50/50/0")
    yield "link, three micro-batches", model("opt-350m", 64, 16, 16, 3) + DEVICE + ["1/1"] + weights
    yield "link, KV streams", (model("opt-125m", 256, 16, 16, 2) + DEVICE + ["2/2"] + spread(kv="0/100/0") +
                               ["--attention", "device"])
    yield "link, host attends", (model("opt-125m", 256, 16, 16, 2) + DEVICE + ["2/2"] + spread(kv="0/100/0") +
                                 ["--attention", "host"])
    yield "link, all away", (model("opt-125m", 128, 16, 16, 2) + DEVICE + ["1/1"] +
                             spread("0/100/0", "0/100/0", "0/100/0", "host"))
    yield "link, h2o on the host", (model("opt-125m", 512, 16, 16, 2) + DEVICE + ["1/1"] + spread(kv="0/100/0") +
                                    ["--attention", "host", "--kv-policy", "h2o", "--kv-budget", "20%"])
    yield "link, fused, alternating", (model("opt-350m", 64, 16, 16, 2) + DEVICE + ["1/1"] +
                                       spread("0/100/0", hidden="0/100/0") + ["--fuse-layer", "--alternate"])
    yield "link, serial", (model("opt-125m", 128, 16, 16, 2) + DEVICE + ["2/2"] + weights +
                           ["--executor", "serial"])


def disk():
    """Weights or KV that come from disk in every pass."""
    yield "disk, half the weights", model("opt-1.3b", 64, 12, 32) + spread("0/50/50", "0/100/0", "0/100/0", "host")
    yield "disk, all weights", model("cut-6.7b", 64, 8, 48) + spread("0/0/100", "0/100/0", "0/100/0", "host")
    yield "disk, weights in int8", (model("opt-1.3b", 64, 12, 32) + ["--weight-format", "int8"] +
                                    spread("0/0/100", "0/100/0", "0/100/0", "host"))
    yield "disk, KV", model("opt-125m", 512, 16, 32) + spread("0/100/0", "0/0/100", "0/100/0", "host")
    yield "disk and link", model("opt-350m", 64, 12, 32) + DEVICE + ["2/2"] + spread("0/50/50", head="host")


def mixed():
    """Jobs of aquifer generate: prompts of many lengths, seats refilled: key, shape, options, records, new tokens."""
    yield "mixed, opt-125m", "opt-125m", ["--micro-batch", 16], 64, (16, 96), (8, 32)
    yield "mixed, opt-350m", "opt-350m", ["--micro-batch", 12], 40, (16, 128), (8, 24)
    yield "mixed, even lengths", "opt-125m", ["--micro-batch", 16], 64, (64, 64), (24, 24)
    yield "mixed, link", "opt-125m", (["--micro-batch", 16, "--micro-batches", 2] + DEVICE + ["1/1"] +
                                      spread("0/100/0")), 96, (16, 96), (8, 32)


class Bench:
    def __init__(self, args, folder):
        self.args = args
        self.dir = folder
        self.profile = os.path.join(folder, "hw.yaml")
        self.kept = runs.Kept(args.output)
        self.version = runs.version(args.build)

    def probe(self, disk):
        """Its rates; the file is what the next run is predicted from."""
        words = ["--disk-dir", self.args.cache_dir] if disk else []
        runs.probe(self.args.build, self.profile, words)
        with open(self.profile, encoding="utf-8") as f:
            text = f.read()
        found = re.findall(r"^  (\w+): \{value: ([0-9.e+-]+),", text, re.M)
        return {key: float(value) for key, value in found if key in WATCHED}

    def bench(self, dry, words):
        words = [runs.shape(str(w), self.dir) for w in words] + dry
        return runs.bench(self.args.build, words + ["--hardware", self.profile, "--repeats", 1, "--warmup", 0,
                                                    "--cache-dir", self.args.cache_dir, "--quiet"])

    def generate(self, dry, shape, words, count, prompts, news):
        return runs.generate(self.args.build, ["--shape", runs.shape(shape, self.dir), "--random-weights", "1", "--hardware", self.profile,
                                               "--quiet", *words, *dry], self.dir, count, prompts, news)

    def jobs(self):
        """(key, what makes its document, or with ["--dry-run"] what is predicted, and what it depends on)."""
        for key, words in [*resident(), *device(), *disk()]:
            yield key, lambda dry, w=words: self.bench(dry, w), words
        for key, *job in mixed():
            yield key, lambda dry, j=job: self.generate(dry, *j), job

    def measure(self, make, disk):
        """Runs until enough were undisturbed: the one nearest to the median error, with that."""
        rows, errors = [], []
        while len(rows) < TRIES and (not errors or (len(errors) < ENOUGH and statistics.median(errors) > FAR)):
            before = self.probe(disk)
            report, apart = middle(make)
            after = self.probe(disk)
            row = summary(report, make(["--dry-run"])["predicted"])
            moved = max(apart, *(abs(after[k] / before[k] - 1) for k in before))
            rows.append(dict(row, moved=moved, disturbed=moved > MOVED))
            errors = [r["off"] for r in rows if not r["disturbed"]]
        quiet = [r for r in rows if not r["disturbed"]] or rows
        off = statistics.median(r["off"] for r in quiet)
        row = min(quiet, key=lambda r: abs(r["off"] - off))
        return dict(row, off=off, runs=len(rows), all_off=[r["off"] for r in rows], all_moved=[r["moved"] for r in rows])

    def row(self, key, make, depends):
        """A run that fails is a row too, and is tried again when started again."""
        depends = json.dumps([self.version, depends])
        old = self.kept.document.get(key)
        if old and old["depends"] != depends:
            del self.kept.document[key]
        try:
            row = self.kept.get(key, lambda: dict(self.measure(make, key.startswith("disk")), depends=depends))
        except (subprocess.CalledProcessError, KeyError, TypeError, ZeroDivisionError) as e:
            row = dict(error=f"{type(e).__name__}: {e}"[:200])
        show(key, row)
        return row


def kind(bound_by):
    """Of the resource that a prediction names: runs of one kind are off alike."""
    return "a link" if bound_by.endswith("link") else "a disk" if bound_by.startswith("disk") else "computing"


def bands(rows):
    """Of (bound, measured / predicted): for each kind how many runs, how many in the band, and the band.  The tenth
    of them furthest off is left out; the prediction itself is in it.  policy/error_band.c holds these rows."""
    for name in ("computing", "a link", "a disk"):
        ratios = sorted((ratio for bound, ratio in rows if bound == name), key=lambda ratio: abs(math.log(ratio)))
        kept = ratios[:len(ratios) - len(ratios) // 10]
        if kept:
            yield name, len(ratios), len(kept), min(1, *kept), max(1, *kept)


def middle(make):
    """The run's report, of a short run's that of the middle one; and how far apart runs were."""
    reports = [make([])]
    if reports[0]["total_s"] < SHORT_S:
        reports += [make([]) for _ in range(SHORT_RUNS - 1)]
    reports.sort(key=lambda r: r["gen_tok_s"])
    return reports[len(reports) // 2], reports[-1]["gen_tok_s"] / reports[0]["gen_tok_s"] - 1


def summary(r, predicted_after):
    said = {key: (r["predicted"][key] + predicted_after[key]) / 2 for key in ("gen_tok_s", "prefill_s", "decode_pass_s")}
    found, predicted = r["gen_tok_s"], said["gen_tok_s"]
    row = dict(gen_tok_s=found, predicted_tok_s=predicted, error=None, off=1 - min(found, predicted) / max(found, predicted),
               prefill_s=r["prefill_s"], predicted_prefill_s=said["prefill_s"], placement=r["plan"]["placement"],
               seats=runs.seats(r), predicted_pass_s=said["decode_pass_s"], pass_s=None,
               bound=kind(r["predicted"]["bound_by"]))
    if r["decode_tok_s"]:
        row["pass_s"] = runs.decode_pass_s(r)
    return row


def show(key, row):
    if row["error"]:
        runs.note(f"FAILED {key}: {row['error']}")
        return
    passes = "mixed" if row["pass_s"] is None else f"{1e3 * row['pass_s']:.1f} ms"
    runs.note(f"{100 * row['off']:5.1f} %  {key}: {row['gen_tok_s']:.1f} tok/s, predicted {row['predicted_tok_s']:.1f}; "
              f"decode pass {passes}, predicted {1e3 * row['predicted_pass_s']:.1f} ms")


def number(x, digits, scale=1):
    return "-" if x is None else f"{scale * x:.{digits}f}"


def table(rows):
    yield "| run | tok/s | predicted | off | prefill s | predicted | decode pass ms | predicted | runs | bound by |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for key, r in rows:
        if r["error"]:
            yield f"| {key} | failed: {r['error']} | | | | | | | | |"
            continue
        yield (f"| {key} | {r['gen_tok_s']:.1f} | {r['predicted_tok_s']:.1f} | {100 * r['off']:.1f} % | "
               f"{number(r['prefill_s'], 3)} | {number(r['predicted_prefill_s'], 3)} | "
               f"{number(r['pass_s'], 2, 1e3)} | {number(r['predicted_pass_s'], 2, 1e3)} | "
               f"{r['runs']}{', disturbed' if r['disturbed'] else ''} | {r['bound']} |")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--output")
    p.add_argument("--cache-dir", default=os.path.expanduser("~/.cache/aquifer"), help="of stores that stream from disk")
    p.add_argument("--only", default="", help="runs whose name has this in it")
    p.add_argument("--list", action="store_true", help="name the runs and stop")
    return p.parse_args()


def main():
    a = arguments()
    with tempfile.TemporaryDirectory() as folder:
        b = Bench(a, folder)
        os.makedirs(a.cache_dir, exist_ok=True)
        jobs = [j for j in b.jobs() if a.only in j[0]]
        if a.list:
            print("\n".join(j[0] for j in jobs))
            return 0
        rows = [(key, b.row(key, make, depends)) for key, make, depends in jobs]
    errors = [r["off"] for _, r in rows if not r["error"]]
    failed = len(rows) - len(errors)
    text = [f"# Predicted and measured, {b.version}", "", f"`python3 bench/predict.py`, {runs.today()}.", "",
            *table(rows), ""]
    median, worst = (statistics.median(errors), max(errors)) if errors else (1, 1)
    text.append(f"{len(errors)} runs: median error {100 * median:.1f} % (at most {100 * MEDIAN:.0f} wanted), worst "
                f"{100 * worst:.1f} % (at most {100 * WORST:.0f})" + (f"; {failed} failed." if failed else "."))
    text += [""] + [f"Bound by {name}: {inside} of {count} runs at {low:.3f} to {high:.3f} of what was predicted."
                    for name, count, inside, low, high in
                    bands([(r["bound"], r["gen_tok_s"] / r["predicted_tok_s"]) for _, r in rows if not r["error"]])]
    print("\n".join(text))
    if a.output:
        runs.write(a.output + ".md", "\n".join(text) + "\n")
    return 1 if failed or median > MEDIAN or worst > WORST else 0


if __name__ == "__main__":
    sys.exit(main())
