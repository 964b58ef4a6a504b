#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What drawing tokens costs beside taking the largest logit: whole jobs of `aquifer generate`, every way in each round.

    python3 bench/draws.py [--build build] [--shape opt-125m] [--seats 32] [--prompt 16] [--gen 32] [--rounds 3]
        [--output NAME]

Random weights give logits that are nearly alike, more so than trained models do, so that top_p and min_p have to look
through many ids.  opt-125m is the model of which a draw is the largest part.

Must reach: generated tokens a second of each way at least 0.95 of greedy's, medians of the rounds; exit status 1 when
one does not."""
import argparse
import statistics
import sys
import tempfile

import runs

LEAST = 0.95
WAYS = {
    "greedy": [],
    "temperature 0.8": ["--temperature", "0.8"],
    "top_k 50": ["--temperature", "0.8", "--top-k", "50"],
    "top_p 0.95": ["--temperature", "0.8", "--top-p", "0.95"],
    "min_p 0.05": ["--temperature", "0.8", "--min-p", "0.05"],
    "top_k 50, top_p 0.95": ["--temperature", "0.8", "--top-k", "50", "--top-p", "0.95"],
    "repetition_penalty 1.1": ["--temperature", "0.8", "--repetition-penalty", "1.1"],
}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--shape", default="opt-125m")
    for name, value in (("seats", 32), ("prompt", 16), ("gen", 32), ("rounds", 3)):
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--output")
    return p.parse_args()


def measure(a, folder):
    """Tokens a second of each way, by round."""
    found = {way: [] for way in WAYS}
    fixed = ["--shape", runs.shape(a.shape, folder), "--random-weights", "1", "--micro-batch", a.seats, "--quiet"]
    for _ in range(a.rounds):
        for way, words in WAYS.items():
            report = runs.generate(a.build, fixed + words, folder, a.seats, (a.prompt, a.prompt), (a.gen, a.gen))
            found[way].append(report["gen_tok_s"])
            runs.note(f"{way}: {found[way][-1]:.1f} tok/s")
    return found


def main():
    a = arguments()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(a, folder)
    greedy = statistics.median(found["greedy"])
    lines = runs.Lines()
    for way, rates in found.items():
        rate = statistics.median(rates)
        lines.add(f"{a.shape}, {a.seats} seats, {way}", None if way == "greedy" else LEAST, rate / greedy, "of greedy",
                  f"{rate:.1f} tok/s ({min(rates):.1f} to {max(rates):.1f})")
    text = [f"# Ways to draw, {runs.version(a.build)}", "", f"`python3 bench/draws.py`, {runs.today()}.", "", *lines.table()]
    print("\n".join(text))
    if a.output:
        runs.write(a.output + ".md", "\n".join(text) + "\n")
    return lines.status()


if __name__ == "__main__":
    sys.exit(main())
