#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""FlexGen's and H2O's tables, predicted: bench/results/published-rows.md anew.

    python3 bench/published.py [--build build] [--output bench/results/published-rows.md]

Runs `aquifer published` on configs/tables/flexgen.yaml and h2o.yaml, and puts what it prints below the words that
people wrote at the top of the file, which stay."""
import argparse
import os
import sys

import runs

MARK = "<!-- From here on: bench/published.py -->"
TABLES = ("flexgen", "h2o")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--output", default="bench/results/published-rows.md")
    a = p.parse_args()
    words = ""
    if os.path.exists(a.output):
        with open(a.output, encoding="utf-8") as f:
            words, mark, _ = f.read().partition(MARK)
        if not mark:
            sys.exit(f"{a.output}: expected the line '{MARK}', below which everything is replaced")
    text = [f"{words}{MARK}", "", f"`python3 bench/published.py`, {runs.version(a.build)}, {runs.today()}.", ""]
    for name in TABLES:
        table = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "configs", "tables", name + ".yaml")
        text.append(runs.text_of([runs.program(a.build), "published", table]).decode())
    runs.write(a.output, "\n".join(text))


if __name__ == "__main__":
    main()
