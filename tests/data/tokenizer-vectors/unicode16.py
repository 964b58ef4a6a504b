#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes unicode16.jsonl: characters newer than Unicode 14, with the ids that the tokenizers library
gives for GPT-2 and GPT-NeoX.  Run with `pip install tokenizers unicodedata2==16.0.0` (made with
tokenizers 0.23.3) by Python 3.11, whose own unicodedata has Unicode 14:

    unicode16.py .. > unicode16.jsonl"""
import json
import sys
import unicodedata

import unicodedata2
from tokenizers import Tokenizer

assert unicodedata.unidata_version == "14.0.0" and unicodedata2.unidata_version == "16.0.0"


def stretches():
    """First and last of the characters in a row that got the same new category."""
    found = []
    for c in map(chr, range(0x110000)):
        category = unicodedata2.category(c)
        if category == unicodedata.category(c):
            continue
        if found and ord(found[-1][1]) + 1 == ord(c) and found[-1][2] == category:
            found[-1][1] = c
        else:
            found.append([c, c, category])
    return found


gpt2 = Tokenizer.from_file(f"{sys.argv[1]}/gpt2-tokenizer/tokenizer.json")
neox = Tokenizer.from_file(f"{sys.argv[1]}/gpt-neox-tokenizer/20B_tokenizer.json")
texts = [f"ab{a}c {b}{a} 1{b}'s" for a, b, _ in stretches()]
texts += ["  \U00031350\n\U0002ebf0x", "e\u0897\u0301\u0323", "\U000105d2\u0307", "\U000323b0a \U000323b0",
          "\u088f1 \u0558b"]
for t in texts:
    print(json.dumps({"text": t, "gpt2": gpt2.encode(t).ids, "gpt_neox": neox.encode(t).ids}))
