#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two versions of the program in turns: is one slower?

    python3 bench/versions.py BEFORE AFTER [--turns 5] [--only WORD] [--output NAME]

BEFORE and AFTER are build folders.  Each line runs alternately with both, turn by turn in the other order, so that a
machine that drifts does so for both; its figure is the median over the turns of the ratio after / before, of rates
(more is better).  The lines are those of bench/spine.py and of bench/offload.py --only larger, with fewer tokens.
Exit status 1 when a line's median is below 0.98 and more than three of four turns are below 1: a loss and not noise."""
import argparse, json, os, statistics, subprocess, sys, tempfile, time

import runs

LEAST = 0.98


def kcheck(build, kernel, duration):
    with tempfile.NamedTemporaryFile(suffix=".json") as f:
        runs.text_of([f"{build}/tests/kcheck/kcheck", "--bench", "--filter", kernel, "--duration", duration, "--json",
                      f.name], stderr=subprocess.DEVNULL)
        rows = json.load(open(f.name, encoding="utf-8"))["rows"]
    best = {r["name"]: r for r in rows}  # tables come in rising order
    return {name: r["share_of_bound"] for name, r in best.items() if r.get("share_of_bound")}


def bench(build, key, words):
    r = runs.bench(build, [*words, "--repeats", 1, "--quiet"], stderr=subprocess.DEVNULL)
    return {f"{key}: prefill": r["prefill_tok_s"], f"{key}: decode": r["decode_tok_s"]}


def preflight(build, model, count):
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "many.jsonl")
        with open(path, "w", encoding="utf-8") as f:
            for i in range(count):
                f.write(json.dumps({"id": f"r{i}", "prompt": f"Chapter {i}. It was a dark and stormy night, and the "
                                    "old house stood at the end of the lane.", "max_tokens": 16}) + "\n")
        start = time.monotonic()
        subprocess.run([runs.program(build), "generate", "--model", model, "--input", path, "--output",
                        os.path.join(d, "out.jsonl"), "--dry-run"], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        return {f"preflight of {count} records": count / (time.monotonic() - start)}


def lines(args):
    """(key, what measures it with a build)."""
    for kernel in ("product_bf16_w_bf16_n8192_k2048", "attn_decode_f16_b32_h32x1_d64", "attn_prefill_f16_b1_h32x1_d64"):
        yield f"kernels {kernel}", lambda b, k=kernel: kcheck(b, k, args.duration)
    for shape, prompt, gen, batch in (("opt-1.3b", 32, 16, 1), ("opt-1.3b", 32, 8, 32), ("opt-1.3b", 8, 5, 128),
                                      ("opt-125m", 64, 32, 8)):
        key = f"{shape} {prompt}+{gen}, batch {batch}"
        yield key, lambda b, k=key, s=shape, p=prompt, g=gen, n=batch: bench(b, k, runs.model(s, p, g, n))
    key = "opt-6.7b in a quarter of its bytes"
    yield key, lambda b: bench(b, key, ["--shape", "opt-6.7b", "--prompt-len", 16, "--gen-len", 6, "--cache-dir",
                                        args.cache_dir, "--warmup", 0, "--host-memory", 3400 << 20, "--requests", 24])
    model = os.path.join(os.path.dirname(__file__), "..", "tests", "data", "tiny-opt")
    yield "preflight", lambda b: preflight(b, model, 50000)


def compare(measure, before, after, turns):
    """{line: [(before, after)] of each turn}."""
    found = {}
    for turn in range(turns):
        order = (before, after) if turn % 2 == 0 else (after, before)
        got = {build: measure(build) for build in order}
        for name, value in got[before].items():
            if value and got[after].get(name):
                found.setdefault(name, []).append((value, got[after][name]))
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("before")
    p.add_argument("after")
    p.add_argument("--turns", type=int, default=5)
    p.add_argument("--duration", default="0.12", help="seconds of a kernel's line")
    p.add_argument("--only", default="", help="lines whose name has this in it")
    p.add_argument("--cache-dir", default=os.path.expanduser("~/.cache/aquifer"), help="of the store that streams")
    p.add_argument("--output")
    a = p.parse_args()
    rows, raw = [], dict(before=runs.version(a.before), after=runs.version(a.after), lines={})
    for key, measure in lines(a):
        if a.only not in key:
            continue
        for name, pairs in compare(measure, a.before, a.after, a.turns).items():
            ratios = [y / x for x, y in pairs]
            median = statistics.median(ratios)
            slower = median < LEAST and sum(r < 1 for r in ratios) > 0.75 * len(ratios)
            raw["lines"][name] = dict(pairs=pairs, median=median, slower=slower)
            rows.append(f"| {name} | {statistics.median(x for x, _ in pairs):.4g} | "
                        f"{statistics.median(y for _, y in pairs):.4g} | {median:.3f} | "
                        f"{min(ratios):.3f} to {max(ratios):.3f} | {'**slower**' if slower else ''} |")
            runs.note(rows[-1])
    runs.save(a.output, raw, [f"# {raw['before']} and {raw['after']} in turns", "",
                              f"`python3 bench/versions.py`, {runs.today()}, {a.turns} turns.", "",
                              "| line | before | after | after / before | turns | |", "|---|---|---|---|---|---|", *rows])
    return 1 if any(line["slower"] for line in raw["lines"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
