#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a smaller KV cache costs in loss, and how attention is spread: tables and plots.

    python3 bench/kv_quality.py [--build build] [--model tests/data/tiny-opt] [--text FILE]
        [--prompt-tokens 512] [--score-tokens 128] [--windows N] [--compute f32] [--host-memory 2GiB] [--threads N]
        [--only budgets,slots,attention] [--output bench/results/NAME]
    python3 bench/kv_quality.py --only bytes --prompt-tokens 896 --score-tokens 64 [--asked 48] [--rows NAME,NAME]

Every number is `aquifer eval`'s on the same windows of held-out text.  Writes NAME.md, NAME.json (the
documents as eval printed them) and NAME.loss.svg, .agreement.svg, .sparsity.svg, .scores.svg, .tokens.svg.

The part `bytes` gives every policy and format as many bytes of KV as the others, by what eval says a sequence holds
at its end; it adds what must be looked up in the prompt (recall.py), by loss and by the tokens that `aquifer
generate` writes. Writes NAME.bytes.svg, .needles.svg and .copies.svg."""
import argparse
import json
import math
import os
import sys
import tempfile

import recall
import runs
from svg import COLOURS, DASHES, Plot

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
# Of the full cache's bytes, in KV_FORMAT; what each policy is given, and what it makes of so many slots of a head.
BYTES = [10, 20, 40]
KV_FORMAT = "f16"
EQUALS = [
    ("h2o 1:1", lambda s: f"kv-policy=h2o kv-budget={s}"),
    ("h2o 1:3", lambda s: f"kv-policy=h2o kv-budget={s} kv-heavy={max(1, s // 4)}"),
    ("h2o 1:7", lambda s: f"kv-policy=h2o kv-budget={s} kv-heavy={max(1, s // 8)}"),
    ("h2o 1:7 sinks", lambda s: f"kv-policy=h2o kv-budget={s} kv-heavy={max(1, s // 8)} kv-sinks=4"),
    ("h2o 1:7 fading", lambda s: f"kv-policy=h2o kv-budget={s} kv-heavy={max(1, s // 8)} kv-decay=0.99"),
    ("h2o:hf", lambda s: f"kv-policy=h2o:hf kv-heavy={s // 2} kv-recent={s - s // 2}"),
    ("heavy", lambda s: f"kv-policy=heavy kv-budget={s}"),
    ("adakv 1:7", lambda s: f"kv-policy=adakv kv-budget={s} kv-heavy={max(1, s // 8)}"),
    ("window", lambda s: f"kv-policy=window kv-budget={s} kv-sinks=4"),
    ("recent", lambda s: f"kv-policy=window kv-budget={s} kv-sinks=0"),
    ("tova", lambda s: f"kv-policy=tova kv-budget={s}"),
    ("snapkv", lambda s: f"kv-policy=snapkv kv-budget={s} kv-observe={min(32, s // 2)}"),
    ("snapkv max:7", lambda s: f"kv-policy=snapkv kv-budget={s} kv-observe={min(32, s // 2)} kv-pool=max:7"),
    ("pyramidkv", lambda s: f"kv-policy=pyramidkv kv-budget={s} kv-observe={min(32, s // 2)}"),
    ("h2o 1:7 bulk", lambda s: f"kv-policy=h2o kv-budget={s} kv-heavy={max(1, s // 8)} kv-decode=bulk"),
    ("snapkv bulk", lambda s: f"kv-policy=snapkv kv-budget={s} kv-observe={min(32, s // 4)} kv-decode=bulk"),
    ("scissorhands", lambda s: f"kv-policy=scissorhands kv-budget={s}"),
    ("ada-snapkv", lambda s: f"kv-policy=ada-snapkv kv-budget={s} kv-observe={min(32, s // 2)}"),
    ("ada-pyramid", lambda s: f"kv-policy=ada-pyramid kv-budget={s} kv-observe={min(32, s // 2)}"),
    ("knorm", lambda s: f"kv-policy=knorm kv-budget={s}"),
    ("keydiff", lambda s: f"kv-policy=keydiff kv-budget={s}"),
    ("expected", lambda s: f"kv-policy=expected kv-budget={s} kv-sinks={min(4, s - 1)}"),
    ("fastgen", lambda s: f"kv-policy=fastgen kv-budget={s} kv-sinks={min(4, s - 1)}"),
    ("h2o 1:7 int8", lambda s: f"kv-policy=h2o kv-budget={s} kv-heavy={max(1, s // 8)} kv-format=int8"),
    ("h2o 1:7 int4", lambda s: f"kv-policy=h2o kv-budget={s} kv-heavy={max(1, s // 8)} kv-format=int4"),
    ("snapkv int4", lambda s: f"kv-policy=snapkv kv-budget={s} kv-observe={min(32, s // 2)} kv-format=int4"),
    ("snapkv max:7 int4", lambda s: f"kv-policy=snapkv kv-budget={s} kv-observe={min(32, s // 2)} kv-pool=max:7 "
                                    "kv-format=int4"),
    ("ada-snapkv int4", lambda s: f"kv-policy=ada-snapkv kv-budget={s} kv-observe={min(32, s // 2)} kv-format=int4"),
    ("snapkv kivi2", lambda s: f"kv-policy=snapkv kv-budget={s} kv-observe={min(32, s // 2)} kv-format=kivi2 kv-residual=32"),
    ("full int8", "kv-policy=full kv-format=int8"),  # no slots to choose: its own bytes
    ("full int4", "kv-policy=full kv-format=int4"),
    ("full kivi4", "kv-policy=full kv-format=kivi4 kv-residual=32"),
    ("full kivi2", "kv-policy=full kv-format=kivi2 kv-residual=32"),
]


def arguments(words=None):
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
    p.add_argument("--rows", help="of the part bytes: some of its rows")
    p.add_argument("--asked", type=int, default=48, help="prompts of each kind that ask for something")
    p.add_argument("--output", default="kv-quality")
    a = p.parse_args(words)
    a.only = runs.parts(p, "--only", a.only, PARTS) if a.only else []  # none: table and plots from what is there
    a.rows = runs.parts(p, "--rows", a.rows, [n for n, _ in EQUALS]) if a.rows else [n for n, _ in EQUALS]
    a.text = a.text or a.model + "/golden/eval.txt"
    a.program = runs.program(a.build)
    return a


def shared(a):
    return ["--model", a.model, "--compute", a.compute, "--host-memory", a.host_memory, "--quiet"] + \
        (["--threads", str(a.threads)] if a.threads else [])


def evaluate(a, lengths, windows, more, source=()):
    return runs.json_of([a.program, "eval", *(source or ["--text", a.text]), "--prompt-tokens", str(lengths[0]),
                         "--score-tokens", str(lengths[1]), *shared(a), "--json",
                         *(["--windows", str(windows)] if windows else []), *more])


def sweep(a, windows, texts, lengths=None, more=("--compare-full",), source=()):
    words = [w for text in texts for w in ("--sweep", text)]
    return evaluate(a, lengths or (a.prompt_tokens, a.score_tokens), windows, [*more, *words], source)


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


# ---- equal bytes --------------------------------------------------------------------------------


def equal_budgets(a, full_bytes):
    """[(row's name, share of the bytes or None, options)]: the most slots whose measured bytes are within the share.
    Rows that hold more with the least budget are left out."""
    ways = dict(EQUALS)
    asked = [(n, b) for n in a.rows if callable(ways[n]) for b in BYTES]
    low, high = {k: 3 for k in asked}, {k: a.prompt_tokens + a.score_tokens for k in asked}  # 3: none is known to fit
    while any(low[k] < high[k] for k in asked):
        tried = [(k, (low[k] + high[k] + 1) // 2) for k in asked if low[k] < high[k]]
        doc = sweep(a, 1, [ways[k[0]](s) for k, s in tried], more=("--kv-format", KV_FORMAT))
        for (k, s), row in zip(tried, doc["rows"]):
            fits = 100 * row["kv_bytes"] <= k[1] * full_bytes
            low[k], high[k] = (s, high[k]) if fits else (low[k], s - 1)
    found = [(n, b, ways[n](low[n, b])) for n, b in asked if low[n, b] > 3]
    return found + [(n, None, ways[n]) for n in a.rows if not callable(ways[n])]


class Asked:
    """Windows of ids that ask for something in their prompts: what each is called, [(prompt, what should follow)]."""

    def __init__(self, a):
        self.a, self.ids = a, {}
        with open(a.text, encoding="utf-8") as f:
            prose = " ".join(f.read().split())
        self.bos, = self.tokenized([""], "--bos", "auto")
        more = (self.encode, self.bos, prose, a.prompt_tokens)
        self.windows = {"needle": recall.needle_windows(*more, a.asked),
                        "late": recall.needle_windows(*more, a.asked, late=True),
                        "copy": recall.copy_windows(*more, a.score_tokens, a.asked)}

    def tokenized(self, texts, *bos):
        lines = "".join(json.dumps({"text": t}) + "\n" for t in texts)
        out = runs.text_of([self.a.program, "tokenize", "--model", self.a.model, *bos], input=lines.encode())
        return [json.loads(line)["ids"] for line in out.decode().splitlines()]

    def encode(self, texts):
        new = [t for t in dict.fromkeys(texts) if t not in self.ids]
        self.ids.update(zip(new, self.tokenized(new, "--no-bos") if new else []))
        return [self.ids[t] for t in texts]

    def losses(self, kind, texts, folder):
        """eval's document: the losses of what follows, fed one by one."""
        path, windows = os.path.join(folder, kind), self.windows[kind]
        runs.write(path, " ".join(str(i) for ahead, behind in windows for i in ahead + behind))
        return sweep(self.a, None, texts, (self.a.prompt_tokens, len(windows[0][1])),
                     ("--compare-full", "--kv-format", KV_FORMAT), ("--ids", path))

    def written(self, kind, text, folder):
        """Which share of what should follow is generated, up to the first wrong token, and how often all of it."""
        source, out, windows = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.jsonl"), self.windows[kind]
        runs.write(source, "".join(json.dumps({
            "id": i, "prompt": ahead, "max_tokens": len(behind), "ignore_eos": True}) + "\n"
            for i, (ahead, behind) in enumerate(windows)))
        words = ["--kv-format", KV_FORMAT] if "kv-format" not in text else []
        words += [w for word in text.split() for w in ("--" + word).split("=", 1)]
        runs.text_of([self.a.program, "generate", "--input", source, "--output", out, "--overwrite", *shared(self.a),
                      *words])
        right = {}
        with open(out, encoding="utf-8") as f:
            for line in f:
                done = json.loads(line)
                behind = windows[done["id"]][1]
                same = [x == y for x, y in zip(done["tokens"], behind)] + [False]
                right[done["id"]] = same.index(False) / len(behind)
        assert len(right) == len(windows)
        return {"share": sum(right.values()) / len(right), "whole": sum(x == 1 for x in right.values()) / len(right)}


def bytes_run(a):
    """Started again after it was stopped, it goes on."""
    same = (a.model, a.text, a.prompt_tokens, a.score_tokens, a.windows, a.compute, a.asked, ",".join(a.rows))
    kept = runs.Kept(a.output + ".part")

    def get(key, make):
        return kept.get(" ".join(map(str, (*same, key))), make)
    whole = get("whole", lambda: sweep(a, 1, [], more=("--kv-format", KV_FORMAT))["kv_bytes"])
    rows = [{"name": n, "share": b, "options": text}
            for n, b, text in get("budgets", lambda: equal_budgets(a, whole))]
    texts = [r["options"] for r in rows]
    more = ("--compare-full", "--kv-format", KV_FORMAT)
    doc = {"text": get("text", lambda: sweep(a, a.windows, texts, more=more)), "rows": rows, "full": {}}
    asked = Asked(a)
    with tempfile.TemporaryDirectory() as folder:
        for kind in asked.windows:
            doc[kind] = get(kind, lambda k=kind: asked.losses(k, texts, folder))
        for kind in ("needle", "copy"):
            for r in [doc["full"], *rows]:
                options = r.get("options", "kv-policy=full")
                r[kind] = get(f"{kind} {options}", lambda k=kind, o=options: asked.written(k, o, folder))
    os.remove(kept.path)
    return doc


def bytes_table(doc):
    text, full = doc["text"], doc["full"]
    whole = text["full"]["kv_bytes"]
    sizes = {k: doc[k]["score_tokens"] for k in ("needle", "late", "copy")}
    yield "## Equal bytes"
    yield ""
    yield (f"Every row has the most slots with which a sequence of {text['prompt_tokens']} + {text['score_tokens']} tokens "
           f"holds no more than so many % of the full cache's {whole // 1024} KiB ({text['full']['kv_format']}) at its "
           "end, in whole pages; formats alone hold what they hold. Policies that cut the prompt alone "
           "(snapkv, knorm, keydiff) keep each new token beside it.")
    yield ""
    yield (f"Text: {text['tokens_scored']} tokens in {text['windows']} windows, full cache {text['full']['nll']:.4f} nats. "
           f"Asked: {doc['needle']['windows']} prompts of each kind, all as long: a number that stands once at some depth, "
           f"asked for at the prompt's end ({sizes['needle']} tokens, full cache {doc['needle']['full']['nll']:.3f} nats, "
           f"{100 * full['needle']['whole']:.0f} % right); the same, the question after the prompt ({sizes['late']} "
           f"tokens, {doc['late']['full']['nll']:.3f}); and a passage of the prompt to be said again ({sizes['copy']} tokens, "
           f"{doc['copy']['full']['nll']:.3f}, {100 * full['copy']['share']:.0f} % until the first wrong one). Losses are "
           "differences to the full cache.")
    yield ""
    yield ("| policy | bytes | KV, KiB | slots | text | s.e. | KL to full | top-1 as full | number right | number | "
           "asked late | copied | copy |")
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    for i, r in enumerate(doc["rows"]):
        t = text["rows"][i]
        more = {k: doc[k]["rows"][i]["delta_nll"] for k in ("needle", "late", "copy")}
        error = "" if t["delta_nll_se"] is None else f"{t['delta_nll_se']:.4f}"  # of one window none is known
        yield (f"| {r['name']} | {100 * t['kv_bytes'] / whole:.1f} % | {t['kv_bytes'] // 1024} | "
               f"{t['kept_slots']['max']} | {t['delta_nll']:+.4f} | {error} | {t['kl_to_full']:.4f} | "
               f"{100 * t['top1_agreement']:.1f} % | {100 * r['needle']['whole']:.0f} % | {more['needle']:+.3f} | "
               f"{more['late']:+.3f} | {100 * r['copy']['share']:.0f} % | {more['copy']:+.3f} |")
    yield ""


def bytes_plots(doc, output):
    text = doc["text"]
    whole = text["full"]["kv_bytes"]
    ticks = [(x, f"{x} %") for x in (5, 10, 20, 40, 100)]
    x_name = "KV of a sequence, share of the full cache's bytes (log)"
    plots = {
        "bytes": (Plot("Loss on text at equal bytes (bars: s.e.; more than 0.5: at the border)", x_name,
                       "above the full cache's, nats a token", x_log=True, x_ticks=ticks, x_range=(5, 100),
                       y_range=(-0.05, 0.5), legend=210),
                  lambda i, r: (text["rows"][i]["delta_nll"], text["rows"][i]["delta_nll_se"] or 0)),
        "needles": (Plot("Numbers found in the prompt", x_name, "right, %", x_log=True, x_ticks=ticks, x_range=(5, 100),
                         y_range=(0, 100), legend=210), lambda i, r: (100 * r["needle"]["whole"],)),
        "copies": (Plot("Passages said again", x_name, "right until the first wrong token, %", x_log=True, x_ticks=ticks,
                        x_range=(5, 100), y_range=(0, 100), legend=210), lambda i, r: (100 * r["copy"]["share"],)),
    }
    names = list(dict.fromkeys(r["name"] for r in doc["rows"]))
    for name, (plot, value) in plots.items():
        for n, row in enumerate(names):
            points = [(100 * text["rows"][i]["kv_bytes"] / whole, *value(i, r))
                      for i, r in enumerate(doc["rows"]) if r["name"] == row]
            plot.line(row, sorted(points), dash=DASHES[n // len(COLOURS) % len(DASHES)])
        if name != "bytes":
            kind = {"needles": ("needle", "whole"), "copies": ("copy", "share")}[name]
            plot.level("full cache", 100 * doc["full"][kind[0]][kind[1]])
        plot.save(f"{output}.{name}.svg")


# ---- all ----------------------------------------------------------------------------------------

PARTS = {"budgets": budgets_run, "slots": slots_run, "attention": attention_run, "bytes": bytes_run}


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
    if set(docs) == {"version", "bytes"}:
        shown += [f"--only bytes --prompt-tokens {a.prompt_tokens} --score-tokens {a.score_tokens} --asked {a.asked}"]
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
    if "bytes" in docs:
        text += bytes_table(docs["bytes"])
        text += [f"![loss]({base}.bytes.svg)", "", f"![numbers]({base}.needles.svg)", "",
                 f"![copies]({base}.copies.svg)", ""]
        bytes_plots(docs["bytes"], a.output)
    runs.write(a.output + ".md", "\n".join(text))
    wrong = slots_check(docs["slots"]) if "slots" in docs else []
    print("\n".join(text + ["not as the reference: " + w for w in wrong]))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
