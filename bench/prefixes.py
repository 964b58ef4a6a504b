#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prompts that begin alike: a job with a shared header, with and without sharing, beside one of the distinct tokens.

    python3 bench/prefixes.py [--build build] [--shape opt-1.3b] [--records 64] [--header 1024] [--own 64] [--new 32]
        [--rounds 3] [--output NAME.md] [-- OPTIONS OF generate]

Three jobs in turns: `shared` and `whole` are the same records with --share-prefixes on and off, whose results must be
equal; `distinct` has the header in its first record alone, so that it computes the tokens that differ and no more.
With --samples N instead: one prompt of header + own tokens, N samples (`n`), beside one sample.  With --apart: prompts
of header + own tokens that share nothing, by default and with --share-prefixes off.  With --preflight N: what finding
what is shared adds to the preflight of N records that share nothing (--dry-run).

Times are those of the passes (report: total_s), of a preflight the process's.  Must reach: shared at most 1.25 x
distinct, and at least 5 x faster than whole; apart at most 1.01 x off; a preflight at most 2 s longer per 100,000
records, in at most 300 MB.  Exit status 1 when it does not, or when results differ."""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

import runs

MOST, LEAST, APART_MOST = 1.25, 5, 1.01
PREFLIGHT_S, PREFLIGHT_BYTES = 2, 300e6  # per 100,000 records, and of them


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--shape", default="opt-1.3b")
    for name, value in (("records", 64), ("header", 1024), ("own", 64), ("new", 32), ("rounds", 3), ("samples", 0),
                        ("preflight", 0)):
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--apart", action="store_true")
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


def in_turns(a, of):
    """By name: seconds of all rounds, and the last report and results."""
    found, reports, results = {}, {}, {}
    for _ in range(a.rounds):
        for name, (lines, options) in of.items():
            seconds, reports[name], results[name] = run(a, lines, options)
            found.setdefault(name, []).append(seconds)
    return found, reports, results


def apart(a):
    """Text, and whether what must be reached is."""
    draw = random.Random(2)
    lines = [record(a, i, runs.random_ids(draw, a.header + a.own)) for i in range(a.records)]
    found, _, results = in_turns(a, {"default": (lines, []), "off": (lines, ["--share-prefixes", "off"])})
    s = {name: statistics.median(times) for name, times in found.items()}
    by, same = s["default"] / s["off"], results["default"] == results["off"]
    return [f"{a.shape}, {a.records} prompts of {a.header + a.own} tokens that share nothing, {a.new} generated; medians of "
            f"{a.rounds} in turns", "", "| --share-prefixes | seconds | all |", "|---|---|---|",
            *(f"| {name} | {s[name]:.2f} | {', '.join(f'{t:.2f}' for t in times)} |" for name, times in found.items()), "",
            f"That takes {by:.3f} x the time (at most {APART_MOST} wanted); results are {'equal' if same else 'DIFFERENT'}."
            ], by <= APART_MOST and same


def preflight(a):
    """The same."""
    draw, found, most = random.Random(3), {"off": [], "on": []}, {}
    with tempfile.TemporaryDirectory() as folder:
        shape, source = runs.shape(a.shape, folder), os.path.join(folder, "in.jsonl")
        with open(source, "w", encoding="utf-8") as f:
            kinds = [runs.random_ids(draw, a.header + a.own) for _ in range(50)]
            for i in range(a.preflight):
                f.write(json.dumps(record(a, i, [draw.randrange(10, 50000)] + kinds[i % 50][1:])) + "\n")
        for _ in range(a.rounds):
            for name, times in found.items():
                words = [runs.program(a.build), "generate", "--shape", shape, "--random-weights", "1", "--input", source,
                         "--output", os.path.join(folder, "out.jsonl"), "--cache-dir", folder, "--hardware",
                         "epyc-zen5-2vcpu", "--dry-run", "--quiet", "--share-prefixes", name, *a.rest]
                begin = time.monotonic()
                child = subprocess.Popen(words, stdout=subprocess.DEVNULL)
                _, status, usage = os.wait4(child.pid, 0)
                times.append(time.monotonic() - begin)
                child.returncode = os.waitstatus_to_exitcode(status)
                if child.returncode:
                    sys.exit(f"exit status {child.returncode}")
                most[name] = max(most.get(name, 0), usage.ru_maxrss * 1024)
    more = (statistics.median(found["on"]) - statistics.median(found["off"])) * 1e5 / a.preflight
    return [f"preflight of {a.preflight} records of {a.header + a.own} tokens: "
            f"{', '.join(f'{t:.2f}' for t in found['off'])} s without looking for what is shared, "
            f"{', '.join(f'{t:.2f}' for t in found['on'])} s with it: {more:+.2f} s per 100,000 records (at most "
            f"{PREFLIGHT_S} wanted); {most['on'] / 1e6:.0f} MB at most ({PREFLIGHT_BYTES / 1e6:.0f} wanted), "
            f"{most['off'] / 1e6:.0f} without"], more <= PREFLIGHT_S and most["on"] <= PREFLIGHT_BYTES


def alike(a):
    """The same."""
    found, reports, results = in_turns(a, jobs(a))
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
    return text, reached


def main():
    a = arguments()
    text, reached = preflight(a) if a.preflight else apart(a) if a.apart else alike(a)
    print("\n".join(text))
    if a.output:
        with open(a.output, "w", encoding="utf-8") as f:
            f.write("\n".join(text) + "\n")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
