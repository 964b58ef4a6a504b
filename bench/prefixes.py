#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prompts that begin alike: a job with a shared header, with and without sharing, beside one of the distinct tokens.

    python3 bench/prefixes.py [--build build] [--shape opt-1.3b] [--records 64] [--header 1024] [--own 64] [--new 32]
        [--rounds 3] [--output NAME.md] [-- OPTIONS OF generate]

Three jobs in turns: `shared` and `whole` are the same records with --share-prefixes on and off, whose results must be
equal; `distinct` has the header in its first record alone, so that it computes the tokens that differ and no more.
With --samples N instead: one prompt of header + own tokens, N samples (`n`), beside one sample.

Times are those of the passes (report: total_s).  Must reach: shared at most 1.25 x distinct, and at least 5 x faster
than whole; exit status 1 when it does not, or when results differ."""
import argparse
import json
import os
import random
import statistics
import sys
import tempfile

import runs

MOST, LEAST = 1.25, 5


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--shape", default="opt-1.3b")
    for name, value in (("records", 64), ("header", 1024), ("own", 64), ("new", 32), ("rounds", 3), ("samples", 0)):
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--output")
    p.add_argument("rest", nargs="*")
    return p.parse_args()


def record(a, number, prompt, **more):
    return {"id": str(number), "prompt": prompt, "max_tokens": a.new, "ignore_eos": True, **more}


def jobs(a):
    """By name: records, and the options beside those of all."""
    draw = random.Random(1)
    header = runs.random_ids(draw, a.header)
    if a.samples:
        prompt, drawn = header + runs.random_ids(draw, a.own), {"temperature": 1, "seed": 3}
        many, one = ([record(a, 0, prompt, n=n, **drawn)] for n in (a.samples, 1))
        return {"shared": (many, []), "whole": (many, ["--share-prefixes", "off"]), "distinct": (one, [])}
    owns = [runs.random_ids(draw, a.own) for _ in range(a.records)]
    same = [record(a, i, header + own) for i, own in enumerate(owns)]
    apart = [record(a, i, own if i else header + own) for i, own in enumerate(owns)]
    return {"shared": (same, []), "whole": (same, ["--share-prefixes", "off"]), "distinct": (apart, [])}


def run(a, lines, options):
    """Seconds of the passes, the report, and the results without what differs by run."""
    with tempfile.TemporaryDirectory() as folder:
        shape = runs.shape(a.shape, folder)
        report = runs.job(a.build, ["--shape", shape, "--random-weights", "1", "--quiet", *options, *a.rest], folder, lines)
        with open(os.path.join(folder, "out.jsonl"), encoding="utf-8") as f:
            results = sorted(json.dumps({k: v for k, v in json.loads(line).items() if k != "created"}) for line in f)
    return report["total_s"], report, results


def main():
    a = arguments()
    found, reports, results = {}, {}, {}
    for _ in range(a.rounds):
        for name, (lines, options) in jobs(a).items():
            seconds, reports[name], results[name] = run(a, lines, options)
            found.setdefault(name, []).append(seconds)
    s = {name: statistics.median(times) for name, times in found.items()}
    same = results["shared"] == results["whole"]
    by, faster = s["shared"] / s["distinct"], s["whole"] / s["shared"]
    what = f"{a.samples} samples of one prompt of {a.header + a.own} tokens" if a.samples else \
        f"{a.records} prompts of {a.header} shared and {a.own} own tokens"
    text = [f"{a.shape}, {what}, {a.new} generated; medians of {a.rounds} in turns", "",
            "| job | seconds | all | prompt tokens | of them shared |", "|---|---|---|---|---|"]
    for name, times in found.items():
        r = reports[name]
        text.append(f"| {name} | {s[name]:.2f} | {', '.join(f'{t:.2f}' for t in times)} | {r['prompt_tokens']} | "
                    f"{r['shared_tokens']} |")
    reached = same and faster >= LEAST and by <= MOST
    text += ["", f"Shared takes {by:.2f} x distinct (at most {MOST} wanted) and is {faster:.2f} x faster than whole "
             f"(at least {LEAST} wanted); results are {'equal' if same else 'DIFFERENT'}."]
    print("\n".join(text))
    if a.output:
        with open(a.output, "w", encoding="utf-8") as f:
            f.write("\n".join(text) + "\n")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
