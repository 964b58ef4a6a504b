#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What int8 and int4 weights and KV cost in loss and save in bytes: a Markdown table.

    python3 bench/formats.py [--build build] [--model tests/data/tiny-opt] [--text FILE]
        [--prompt-tokens 512] [--score-tokens 128] [--windows N] [--compute f32] [--output FILE.md]

Every row is `aquifer eval` on the same windows; differences are against weights and KV in f16.  Weight
bytes are those of a packed store (matrices in panels, tables, vectors), KV bytes what eval holds."""
import argparse
import sys

import runs
from runs import json_of

# Weights, KV, and --compute where it is another than the one asked for.
ROWS = [("f16", "f16"), ("f16", "f32"), ("bf16", "f16"), ("int8", "f16"), ("int4", "f16"),
         ("f16", "int8"), ("f16", "int4"), ("int8", "int8"), ("int4", "int8"), ("int4", "int4"),
        ("int8", "f16", "bf16"), ("int8", "f16", "int8"), ("int4", "f16", "bf16"), ("int4", "f16", "int8")]


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--model", default="tests/data/tiny-opt")
    p.add_argument("--text")
    p.add_argument("--prompt-tokens", type=int, default=512)
    p.add_argument("--score-tokens", type=int, default=128)
    p.add_argument("--windows", type=int)
    p.add_argument("--compute", default="f32")
    p.add_argument("--output")
    a = p.parse_args()
    a.text = a.text or a.model + "/golden/eval.txt"
    a.program = runs.program(a.build)
    return a


def evaluate(a, weight, kv, compute=None):
    args = [a.program, "eval", "--model", a.model, "--text", a.text, "--prompt-tokens",
            str(a.prompt_tokens), "--score-tokens", str(a.score_tokens), "--weight-format", weight,
            "--kv-format", kv, "--compute", compute or a.compute, "--json", "--quiet"]
    if a.windows:
        args += ["--windows", str(a.windows)]
    return json_of(args)


def weight_bytes(a, weight):
    return json_of([a.program, "pack", "--model", a.model, "--list", "--weight-format", weight,
                     "--json", "--quiet"])["bytes"]


def table(rows, packed):
    base = rows[0][3]
    yield "| weights | KV | compute | nll | difference | perplexity | weight bytes | KV bytes |"
    yield "|---|---|---|---|---|---|---|---|"
    for weight, kv, compute, r in rows:
        share_w = packed[weight] / packed["f16"]
        share_kv = r["kv_bytes"] / base["kv_bytes"]
        yield (f"| {weight} | {kv} | {compute} | {r['nll']:.4f} | {r['nll'] - base['nll']:+.4f} | "
               f"{r['perplexity']:.3f} | {packed[weight]} ({100 * share_w:.1f} %) | "
               f"{r['kv_bytes']} ({100 * share_kv:.1f} %) |")


def main():
    a = arguments()
    rows = [(*row[:2], (row[2:] or [a.compute])[0], evaluate(a, *row)) for row in ROWS]
    packed = {w: weight_bytes(a, w) for w in sorted({row[0] for row in rows})}
    base = rows[0][3]
    text = [f"# Formats of weights and KV: {a.model}", "",
            f"`python3 bench/formats.py {' '.join(sys.argv[1:])}`".replace(" `", "`") +
            f", {runs.version(a.build)}.",
            f"{base['tokens_scored']} tokens in {base['windows']} windows of {a.prompt_tokens} + "
            f"{a.score_tokens}; standard error of each nll "
            f"{base['nll_se']:.3f}, the same windows in every row.", ""]
    text += table(rows, packed)
    print("\n".join(text))
    if a.output:
        runs.write(a.output, "\n".join(text) + "\n")


if __name__ == "__main__":
    main()
