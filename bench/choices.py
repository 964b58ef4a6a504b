#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Five-shot multiple choice as the lm-evaluation-harness asks it: which tokens are computed, beside the distinct ones.

    python3 bench/choices.py [--build build] [--model tests/data/tiny-opt] [--contexts 1000] [--continuations 4]
        [--shots 5] [--samples 16] [--keep FOLDER] [--output NAME.md] [-- OPTIONS OF generate]

One header of `shots` answered questions stands before every question; each question is as many records as it has
continuations, in the harness' own form ({"request_type": "loglikelihood", "arguments": [context, continuation]}).  The
text is words of the test data's text by a seeded draw, so that it is the same everywhere; --keep leaves the files in a
folder.

Distinct tokens are those of the header, the questions and the continuations, divided by the model's own tokenizer:
what begins alike counts once, as in a prefix tree, up to the first token whose logits are asked for, and from there on
every sequence has rows of its own: from the last token of the context on to the last but one of the continuation.  The
column beside it is the prefix tree of all tokens, where equal beginnings of continuations are one, too.  A second line
is one question with `samples` samples (`n`), whose prompt is to be computed once, but for its last token.

Must reach: tokens computed at most 1.02 x the distinct ones in both lines, and the same results as a run that computes
every prompt whole; exit status 1 when it does not."""
import argparse
import json
import os
import random
import re
import sys
import tempfile

import runs

MOST = 1.02
TEXT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "data", "tiny-opt", "golden", "eval.txt")
BEGINNINGS = ("Who was it that", "What did they say of the", "When did the", "Where was the", "Why would a", "How did one")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--model", default="tests/data/tiny-opt")
    for name, value in (("contexts", 1000), ("continuations", 4), ("shots", 5), ("samples", 16)):
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--keep")
    p.add_argument("--output")
    p.add_argument("rest", nargs="*")
    return p.parse_args()


# ---- the text

class Writer:
    """Questions and answers of single words of a text, the same in every run."""

    def __init__(self):
        with open(TEXT, encoding="utf-8") as f:
            self.words = sorted(set(re.findall(r"[a-z]{3,9}", f.read())))
        self.draw = random.Random(20)

    def some(self, least, most):
        return " ".join(self.draw.choice(self.words) for _ in range(self.draw.randint(least, most)))

    def question(self):
        return f"Question: {self.draw.choice(BEGINNINGS)} {self.some(12, 24)}?\nAnswer:"

    def answer(self):
        return " " + self.some(2, 5)


def contexts(a):
    """Each context with its continuations, which differ."""
    w = Writer()
    header = "The following are questions with answers.\n\n"
    header += "".join(w.question() + w.answer() + "\n\n" for _ in range(a.shots))
    for _ in range(a.contexts):
        context, found = header + w.question(), set()
        while len(found) < a.continuations:
            found.add(w.answer())
        yield context, sorted(found)


def requests(pairs):
    return [{"request_type": "loglikelihood", "arguments": [context, continuation]}
            for context, continuations in pairs for continuation in continuations]


# ---- what there is to compute

def tokens(a, texts, *words):
    """Ids of each text, as the program itself divides them."""
    lines = "".join(json.dumps({"text": t}) + "\n" for t in texts)
    out = runs.text_of([runs.program(a.build), "tokenize", "--model", a.model, *words], input=lines.encode())
    return [json.loads(line)["ids"] for line in out.splitlines()]


def tree(sequences):
    """Tokens of the prefix tree of all sequences: each one's without those that it begins with as its neighbour."""
    count, before = 0, []
    for ids in sorted(sequences):
        n = 0
        while n < min(len(ids), len(before)) and ids[n] == before[n]:
            n += 1
        count += len(ids) - n
        before = ids
    return count


# ---- the lines

def run(a, folder, records, *words):
    """The report, and the results by their place in the input."""
    report = runs.job(a.build, ["--model", a.model, "--ordered", "--quiet", *words, *a.rest], folder, records)
    with open(os.path.join(folder, "out.jsonl"), encoding="utf-8") as f:
        results = [{k: v for k, v in json.loads(line).items() if k != "created"} for line in f]
    return report, results


def line(a, folder, what, records, sequences, asked):
    """A job beside one that computes every prompt whole; of each sequence the logits of the last so many are asked for."""
    report, results = run(a, folder, records)
    whole, same = run(a, folder, records, "--share-prefixes", "off")
    all_of = sum(map(len, sequences))
    if whole["prefill_tokens"] != all_of:
        sys.exit(f"{what}: expected {all_of} tokens to be read, found {whole['prefill_tokens']} in the run's report")
    distinct = tree(ids[:-n] for ids, n in zip(sequences, asked)) + sum(asked)
    return dict(what=what, all=all_of, distinct=distinct, tree=tree(sequences), computed=report["prefill_tokens"],
                seconds=report["total_s"], whole_s=whole["total_s"], equal=results == same, passes=report["passes"])


def lines(a, folder):
    pairs = list(contexts(a))
    records = requests(pairs)
    both = [context + continuation for context, continuations in pairs for continuation in continuations]
    ids = tokens(a, both, "--no-bos")
    contexts_ids = tokens(a, [context for context, _ in pairs], "--no-bos")
    asked = [len(x) - len(contexts_ids[i // a.continuations]) for i, x in enumerate(ids)]
    yield line(a, folder, f"{a.contexts} contexts of {a.shots} shots, {a.continuations} continuations", records,
               [x[:-1] for x in ids], asked)
    if a.samples:
        prompt = pairs[0][0]
        sampled = {"id": "n", "prompt": prompt, "n": a.samples, "temperature": 1, "seed": 3, "max_tokens": 32,
                   "ignore_eos": True}
        yield line(a, folder, f"{a.samples} samples of one prompt", [sampled], tokens(a, [prompt]) * a.samples,
                   [1] * a.samples)


def table(rows):
    yield "| job | tokens of prompts | distinct | computed | by distinct | prefix tree | seconds | whole | results |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for r in rows:
        yield (f"| {r['what']} | {r['all']} | {r['distinct']} | {r['computed']} | {r['computed'] / r['distinct']:.4f} | "
               f"{r['tree']} | {r['seconds']:.2f} | {r['whole_s']:.2f} | {'equal' if r['equal'] else 'DIFFERENT'} |")


def main():
    a = arguments()
    with tempfile.TemporaryDirectory() as folder:
        if a.keep:
            folder = a.keep
            os.makedirs(folder, exist_ok=True)
        rows = list(lines(a, folder))
    text = [f"{os.path.basename(os.path.normpath(a.model))}; {runs.version(a.build)}", "", *table(rows)]
    print("\n".join(text))
    if a.output:
        runs.write(a.output, "\n".join(text) + "\n")
    return 0 if all(r["equal"] and r["computed"] <= MOST * r["distinct"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
