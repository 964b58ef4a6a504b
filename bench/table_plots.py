#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pictures of a table that `aquifer bench --table FILE --json --output ROWS.json` has run.

    python3 bench/table_plots.py ROWS.json [--output NAME]

NAME.batch.svg: generated tok/s by seats of the block; NAME.budget.svg: by bytes of the memory budget; one line for each
model, lengths, formats and KV policy, predictions dashed, published figures as levels.  NAME.roofline.svg: generated
tok/s of every row under the roof of its own plan: the fewest seconds that any of its lanes needs for a token."""
import argparse
import json
import os
import sys

import runs
from svg import COLOURS, Plot


def kind(r):
    """What rows on one line have in common."""
    p = r["plan"]
    name = f"{r['model']['name']} {r['row']['prompt_len']}+{r['row']['gen_len']}"
    if p["kv_policy"] != "full":
        name += f", {p['kv_policy']}"
    if p["weight_format"] in ("int8", "int4"):
        name += f", {p['weight_format']}"
    if p["kv_format"] in ("int8", "int4"):
        name += f", KV {p['kv_format']}"
    return name


def lines_by(rows, x_of):
    """{kind: [(x, row)]}, x rising; kinds of one x alone among them: they are a point."""
    found = {}
    for r in rows:
        x = x_of(r)
        if x:
            found.setdefault(kind(r), []).append((x, r))
    return {k: sorted(v, key=lambda at: at[0]) for k, v in found.items()}


def throughput(title, x_name, rows, x_of):
    plot = Plot(title, x_name, "generated tok/s (log)", x_log=True, y_log=True, legend=290)
    lines = lines_by(rows, x_of)
    if not lines:
        return None
    xs = [x for line in lines.values() for x, _ in line]
    plot.x_range = (min(xs), max(xs)) if max(xs) > min(xs) else (min(xs) / 2, min(xs) * 2)
    for i, (name, line) in enumerate(sorted(lines.items())):
        colour = COLOURS[i % len(COLOURS)]
        plot.line(name, [(x, r["gen_tok_s"], r["gen_tok_s_sd"] or 0) for x, r in line], colour)
        said = [(x, r["predicted"]["gen_tok_s"]) for x, r in line if r["predicted"]]
        if said:
            plot.line(name + ", predicted", said, colour, dash="5 4", markers=False)
    for r in rows:
        if r["published"]:
            plot.level(f"published: {r['name']}", r["published"]["gen_tok_s"])
    return plot


def lane_bound(r):
    """Tokens per second if nothing but the plan's busiest lane took time: of a decode pass, as predicted."""
    busy = [lane["busy"] * r["predicted"]["decode_pass_s"] for lane in r["predicted"]["lanes"].values()]
    return runs.seats(r) / max(busy) if busy and max(busy) > 0 else None


def roofline(rows):
    """Decode passes: tokens made for each byte that the pass moves, under what the busiest lane allows."""
    points = []
    for r in rows:
        if not r["predicted"] or not r["decode_tok_s"]:
            continue
        moved = sum(lane["bytes_per_pass"] for lane in r["predicted"]["lanes"].values())
        held = sum(i["bytes"] for i in r["plan"]["ledger"] if i["purpose"] in ("weights", "kv"))
        points.append((runs.seats(r) / (max(moved, held) / 1e9), r["decode_tok_s"], lane_bound(r)))
    if not points:
        return None
    points.sort()
    xs = [p[0] for p in points]
    plot = Plot("Decode under the roof of the plan", "tokens a GB of weights and KV, held or moved in a pass (log)",
                "decode tok/s (log)", x_log=True, y_log=True)
    plot.x_range = (xs[0], xs[-1]) if xs[-1] > xs[0] else (xs[0] / 2, xs[0] * 2)
    roof = [(x, bound) for x, _, bound in points if bound]
    if roof:
        plot.line("busiest lane alone", roof, COLOURS[7], dash="5 4")
    plot.line("measured", [(x, y) for x, y, _ in points], COLOURS[0])
    return plot


def plots(rows):
    yield "batch", throughput("Throughput by batch", "seats of the block (log)", rows, runs.seats)
    budgets = {r["memory"]["host"]["budget"] for r in rows}
    if len(budgets) > 1:
        yield "budget", throughput("Throughput by budget", "host memory, GiB (log)", rows,
                                   lambda r: r["memory"]["host"]["budget"] / 2**30)
    yield "roofline", roofline(rows)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("rows")
    p.add_argument("--output", help="otherwise the rows' name without .json")
    a = p.parse_args()
    with open(a.rows, encoding="utf-8") as f:
        document = json.load(f)
    rows = [r for r in (document if isinstance(document, list) else [document]) if "error" not in r]
    if not rows:
        sys.exit(f"{a.rows}: no row was run")
    output = a.output or os.path.splitext(a.rows)[0]
    for name, plot in plots(rows):
        if plot:
            plot.save(f"{output}.{name}.svg")
            print(f"{output}.{name}.svg")


if __name__ == "__main__":
    main()
