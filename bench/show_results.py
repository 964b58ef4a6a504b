#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints prompts and what became of them: show_results.py PROMPTS RESULTS.

Both are JSONL, plain records or OpenAI batch ones; records are matched by their id.
"""
import json
import sys
import textwrap


def read(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.strip()]


def key_of(record, index):
    return str(record.get("custom_id", record.get("id", index)))


def prompt_of(record):
    return record.get("body", record)["prompt"]


def texts_of(result):
    """The generated texts of a result, or its error in brackets."""
    if result.get("error"):
        return [f"[{result['error']['code']}: {result['error']['message']}]"]
    body = (result.get("response") or {}).get("body", result)
    return [choice["text"] for choice in body.get("choices") or [body]]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    results = {key_of(r, i): r for i, r in enumerate(read(sys.argv[2]))}
    shown = 0
    for index, record in enumerate(read(sys.argv[1])):
        key = key_of(record, index)
        result = results.get(key)
        if result is None:
            print(f"{key}: no result\n")
            continue
        shown += 1
        for text in texts_of(result):
            joined = " ".join(f"{prompt_of(record)} >>>{text}".split())
            print(textwrap.fill(f"{key}: {joined}", 96, subsequent_indent="    "), end="\n\n")
    sys.exit(0 if shown else 1)


if __name__ == "__main__":
    main()
