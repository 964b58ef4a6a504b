#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a smaller KV cache costs in loss, and how attention is spread: tables and plots.

    python3 bench/kv_quality.py [--build build] [--model tests/data/tiny-opt] [--text FILE]
        [--prompt-tokens 512] [--score-tokens 128] [--windows N] [--compute f32] [--host-memory 2GiB] [--threads N]
        [--only budgets,slots,attention] [--output bench/results/NAME]

Every number is `aquifer eval`'s on the same windows of held-out text.  Writes NAME.md, NAME.json (the
documents as eval printed them) and NAME.loss.svg, .agreement.svg, .sparsity.svg, .scores.svg, .tokens.svg."""
import argparse
import json
import math
import os
import sys

import runs
from svg import COLOURS, Plot

BUDGETS = [4, 10, 20, 40, 60, 100]  # % of all tokens of a window
# Name, and options for a budget of b %.
POLICIES = [
    ("h2o 1:1", lambda b: f"kv-policy=h2o kv-budget={b}%"),
    ("h2o 1:3", lambda b: f"kv-policy=h2o kv-budget={b}% kv-heavy={b / 4:g}%"),
    ("h2o 1:7", lambda b: f"kv-policy=h2o kv-budget={b}% kv-heavy={b / 8:g}%"),
    ("window, 4 sinks", lambda b: f"kv-policy=window kv-budget={b}% kv-sinks=4"),
    ("recent alone", lambda b: f"kv-policy=window kv-budget={b}% kv-sinks=0"),
    ("heavy", lambda b: f"kv-policy=heavy kv-budget={b}%"),
    ("adakv 1:1", lambda b: f"kv-policy=adakv kv-budget={b}%"),
    ("adakv 1:7", lambda b: f"kv-policy=adakv kv-budget={b}% kv-heavy={b / 8:g}%"),
]
# Of 128 slots; the losses of the plain torch program (tests/data/tiny-opt/README.md), first two windows.
SLOTS = [
    ("h2o 16 + 112", "kv-policy=h2o kv-budget=128 kv-heavy=16", 4.106),
    ("window 4 + 124", "kv-policy=window kv-budget=128 kv-sinks=4", 4.327),
    ("recent 128", "kv-policy=window kv-budget=128 kv-sinks=0", 4.427),
    ("h2o 64 + 64", "kv-policy=h2o kv-budget=128", 5.574),
    ("heavy 127 + 1", "kv-policy=heavy kv-budget=128", 6.277),
]
SLOTS_FULL = 3.816


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--model", default="tests/data/tiny-opt")
    p.add_argument("--text")
    p.add_argument("--prompt-tokens", type=int, default=512)
    p.add_argument("--score-tokens", type=int, default=128)
    p.add_argument("--windows", type=int)
    p.add_argument("--compute", default="f32")
    p.add_argument("--host-memory", default="2GiB")
    p.add_argument("--threads", type=int)
    p.add_argument("--only", default="budgets,slots,attention")
    p.add_argument("--output", default="kv-quality")
    a = p.parse_args()
    a.only = runs.parts(p, "--only", a.only, PARTS) if a.only else []  # none: table and plots from what is there
    a.text = a.text or a.model + "/golden/eval.txt"
    a.program = runs.program(a.build)
    return a


def evaluate(a, lengths, windows, more):
    args = [a.program, "eval", "--model", a.model, "--text", a.text, "--prompt-tokens", str(lengths[0]),
            "--score-tokens", str(lengths[1]), "--compute", a.compute, "--host-memory", a.host_memory,
            "--json", "--quiet"] + (["--windows", str(windows)] if windows else []) + more
    args += ["--threads", str(a.threads)] if a.threads else []
    return runs.json_of(args)


def sweep(a, windows, texts):
    more = ["--compare-full"]
    for text in texts:
        more += ["--sweep", text]
    return evaluate(a, (a.prompt_tokens, a.score_tokens), windows, more)


# ---- budgets ------------------------------------------------------------------------------------


def budgets_run(a):
    return sweep(a, a.windows, [text(b) for _, text in POLICIES for b in BUDGETS])


def by_policy(doc):
    """[(name, [row of each budget])]."""
    n = len(BUDGETS)
    return [(name, doc["rows"][i * n:(i + 1) * n]) for i, (name, _) in enumerate(POLICIES)]


def budgets_table(doc):
    full = doc["full"]
    yield "## Loss against budget"
    yield ""
    yield (f"{doc['tokens_scored']} tokens in {doc['windows']} windows of {doc['prompt_tokens']} + "
           f"{doc['score_tokens']}, {full['compute']} arithmetic, KV in {full['kv_format']}. Full cache: nll "
           f"{full['nll']:.4f}, perplexity {full['perplexity']:.2f}, standard error {full['nll_se']:.3f} "
           "(between windows); differences are paired by window, their standard errors much smaller. "
           "A budget is a share of all tokens of a window; heavy:recent as named.  KV is of a sequence in whole "
           "pages; heads that share slots (adakv) round up each for itself.")
    yield ""
    yield "| policy | budget | slots | KV, KiB | nll | difference | s.e. | perplexity | KL to full | top-1 as full |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for name, rows in by_policy(doc):
        for budget, r in zip(BUDGETS, rows):
            yield (f"| {name} | {budget} % | {r['kept_slots']['max']} | {r['kv_bytes'] // 1024} | {r['nll']:.4f} | "
                   f"{r['delta_nll']:+.4f} | {r['delta_nll_se']:.4f} | {r['perplexity']:.2f} | "
                   f"{r['kl_to_full']:.4f} | {100 * r['top1_agreement']:.1f} % |")
    yield ""


def budgets_plots(doc, output):
    ticks = [(b, f"{b} %") for b in BUDGETS]
    loss = Plot("Loss against KV budget (bars: s.e. of the difference to full)",
                "KV budget, share of all tokens (log)", "loss, nats a token",
                x_log=True, x_ticks=ticks)
    same = Plot("Likeliest token as with the full cache", "KV budget, share of all tokens (log)",
                "share of tokens, %", x_log=True, x_ticks=ticks, y_range=(0, 100))
    for name, rows in by_policy(doc):
        dash = "6 3" if "h2o" not in name else ""
        loss.line(name, [(b, r["nll"], r["delta_nll_se"]) for b, r in zip(BUDGETS, rows)], dash=dash)
        same.line(name, [(b, 100 * r["top1_agreement"]) for b, r in zip(BUDGETS, rows)], dash=dash)
    loss.level(f"full cache, {doc['full']['nll']:.3f}", doc["full"]["nll"])
    loss.save(output + ".loss.svg")
    same.save(output + ".agreement.svg")


# ---- 128 slots ----------------------------------------------------------------------------------


def slots_run(a):
    texts = [text for _, text, _ in SLOTS]
    return {"first two": sweep(a, 2, texts), "all": sweep(a, a.windows, texts)}


def slots_table(docs):
    two, many = docs["first two"], docs["all"]
    yield f"## {two['prompt_tokens']} + {two['score_tokens']}, 128 slots"
    yield ""
    yield (f"The first two windows, beside the plain torch program (tests/data/tiny-opt/README.md), and all "
           f"{many['windows']}.")
    yield ""
    yield "| policy | torch, 2 windows | nll, 2 windows | nll, all | difference to full | s.e. | KL to full |"
    yield "|---|---|---|---|---|---|---|"
    yield (f"| full | {SLOTS_FULL:.3f} | {two['full']['nll']:.3f} | {many['full']['nll']:.4f} | | | |")
    for (name, _, torch), a, b in zip(SLOTS, two["rows"], many["rows"]):
        yield (f"| {name} | {torch:.3f} | {a['nll']:.3f} | {b['nll']:.4f} | {b['delta_nll']:+.4f} | "
               f"{b['delta_nll_se']:.4f} | {b['kl_to_full']:.4f} |")
    yield ""


def slots_check(docs):
    """What does not equal the reference program's loss to its three digits."""
    two = docs["first two"]
    found = [("full", SLOTS_FULL, two["full"]["nll"])]
    found += [(name, torch, r["nll"]) for (name, _, torch), r in zip(SLOTS, two["rows"])]
    return [f"{n}: {x:.4f}, expected {want}" for n, want, x in found if abs(x - want) > 6e-4]


# ---- attention ----------------------------------------------------------------------------------


def attention_run(a):
    return evaluate(a, (0, a.prompt_tokens + a.score_tokens), a.windows, ["--attention-stats"])


def attention_table(doc):
    s = doc["attention_stats"]
    names = ", ".join(f"{100 * x:g} %" for x in s["shares"])
    yield "## Attention"
    yield ""
    yield (f"{s['prompts']} windows of {doc['score_tokens']} tokens, attended in full. Sparsity: share of "
           f"(query, earlier key) entries whose probability is below {100 * s['threshold']:g} % of their "
           "query's largest, and the same in the last third of the queries. Then what share of all attention "
           f"the keys that get most of it get, the first {names} of them; mean over heads.")
    yield ""
    yield "| layer | sparsity | last third | least and most sparse head | " + \
        " | ".join(f"top {100 * x:g} %" for x in s["shares"]) + " |"
    yield "|---|---|---|---|" + "---|" * len(s["shares"])
    for l in s["layers"]:
        heads = l["sparsity_by_head"]
        yield (f"| {l['layer']} | {100 * l['sparsity']:.1f} % | {100 * l['sparsity_by_third'][2]:.1f} % | "
               f"{100 * min(heads):.1f} to {100 * max(heads):.1f} % | " +
               " | ".join(f"{100 * x:.1f} %" for x in l["top_share"]) + " |")
    yield ""


def slope(ranks, values, low, high):
    """Exponent of a power law fitted to ranks low..high, by least squares in logarithms."""
    pairs = [(math.log(r), math.log(v)) for r, v in zip(ranks, values) if low <= r <= high and v > 0]
    n = len(pairs)
    mx, my = sum(x for x, _ in pairs) / n, sum(y for _, y in pairs) / n
    return sum((x - mx) * (y - my) for x, y in pairs) / sum((x - mx) ** 2 for x, _ in pairs)


def attention_plots(doc, output):
    s = doc["attention_stats"]
    bars = Plot("Entries below 1 % of their query's largest", "layer", "share of entries, %",
                x_ticks=[(i, str(l["layer"])) for i, l in enumerate(s["layers"])], y_range=(0, 100))
    bars.bars(["first third", "middle third", "last third", "sparsest head"],
              [[100 * x for x in l["sparsity_by_third"]] + [100 * max(l["sparsity_by_head"])]
               for l in s["layers"]])
    bars.save(output + ".sparsity.svg")
    scores = Plot("Attention that keys get, by rank", "rank of the key in its head (log)",
                  "share of the head's attention (log)", x_log=True, y_log=True)
    tokens = Plot("Attention that vocabulary tokens get, by rank", "rank of the token in its layer (log)",
                  "share of the layer's attention (log)", x_log=True, y_log=True, y_range=(1e-6, 0.5))
    for i, l in enumerate(s["layers"]):
        for plot, key in ((scores, "score_at_rank"), (tokens, "token_share_at_rank")):
            plot.line(f"layer {l['layer']}", list(zip(s["ranks"], l[key])),
                      colour=COLOURS[i % len(COLOURS)], markers=False)
    scores.save(output + ".scores.svg")
    tokens.save(output + ".tokens.svg")


def attention_slopes(doc):
    s = doc["attention_stats"]
    found = [slope(s["ranks"], l["token_share_at_rank"], 3, 300) for l in s["layers"]]
    yield ("By vocabulary token the shares fall like rank to the power " +
           ", ".join(f"{x:.2f}" for x in found) + " (layers in order, ranks 3 to 300). Frequent tokens get more for being there more often.")
    yield ""


# ---- all ----------------------------------------------------------------------------------------

PARTS = {"budgets": budgets_run, "slots": slots_run, "attention": attention_run}


def main():
    a = arguments()
    docs, path = {}, a.output + ".json"
    if os.path.exists(path):  # what is not run again stays
        with open(path, encoding="utf-8") as f:
            docs = json.load(f)
    for part in a.only:
        docs["version"] = runs.version(a.build)
        docs[part] = PARTS[part](a)
        runs.write(path, json.dumps(docs, indent=1) + "\n")
    base = os.path.basename(a.output)
    shown = ["python3 bench/kv_quality.py"] + [f"--windows {a.windows}" if a.windows else ""]
    text = [f"# KV policies: {a.model}", "",
            "`" + " ".join(filter(None, shown)) + f"`, {docs['version']}.", ""]
    if "budgets" in docs:
        text += budgets_table(docs["budgets"])
        text += [f"![loss]({base}.loss.svg)", "", f"![agreement]({base}.agreement.svg)", ""]
        budgets_plots(docs["budgets"], a.output)
    if "slots" in docs:
        text += slots_table(docs["slots"])
    if "attention" in docs:
        text += attention_table(docs["attention"])
        text += [f"![sparsity]({base}.sparsity.svg)", "", f"![scores]({base}.scores.svg)", ""]
        text += attention_slopes(docs["attention"])
        text += [f"![tokens]({base}.tokens.svg)", ""]
        attention_plots(docs["attention"], a.output)
    runs.write(a.output + ".md", "\n".join(text))
    wrong = slots_check(docs["slots"]) if "slots" in docs else []
    print("\n".join(text + ["not as the reference: " + w for w in wrong]))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
