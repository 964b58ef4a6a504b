#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes variants.json: small tokenizers in the format of the tokenizers library, each with texts and
the ids that library gives.  Run with `pip install tokenizers` (made with 0.23.3):

    make.py ../opt-tokenizer/merges.txt > variants.json

A variant lacks the vocabulary and the merges, which all share: "vocab" lists the tokens by id,
"merges" the first merges of OPT.  --texts SEED COUNT adds random texts, for a longer comparison."""
import json, random, sys
from tokenizers import Tokenizer

MERGES = 300
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
POSSESSIVE = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
              r"\s*[\r\n]|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def spelling():
    """GPT-2's character for every byte."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


def byte_level(prefix=False, use_regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def added(id, content, special=False, normalized=False, **flags):
    return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": normalized, "special": special} | flags


def template(before=None, after=None):
    def token(t):
        return [{"SpecialToken": {"id": t[0], "type_id": 0}}] if t else []
    text = [{"Sequence": {"id": "A", "type_id": 0}}]
    return {"type": "TemplateProcessing", "single": token(before) + text + token(after),
            "pair": text + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t[0]: {"id": t[0], "ids": [t[1]], "tokens": [t[0]]}
                               for t in (before, after) if t}}


END = 256 + MERGES  # the first id after the model's own
EDGES = [added(END, "<l>", lstrip=True), added(END + 1, "<r>", rstrip=True), added(END + 2, "<w>", single_word=True),
         added(END + 3, "word", single_word=True, normalized=True), added(END + 4, "<b>", lstrip=True, rstrip=True),
         added(END + 5, "  "), added(END + 6, "    "), added(END + 7, "<s>", special=True),
         added(END + 8, "caf\u00e9", normalized=True), added(END + 9, "<|x|>", special=True, normalized=True),
         added(END + 10, "the", single_word=True, lstrip=True),
         added(ord("<") - ord("!"), "<")]  # the model has it: keeps its id
VARIANTS = {
    "prefix space": {"pre_tokenizer": byte_level(prefix=True)},
    "prefix space and added tokens": {"pre_tokenizer": byte_level(prefix=True), "added_tokens": EDGES},
    "edges of added tokens": {"pre_tokenizer": byte_level(), "added_tokens": EDGES},
    "added tokens behind NFC": {"pre_tokenizer": byte_level(), "added_tokens": EDGES, "normalizer": {"type": "NFC"}},
    "normaliser in a sequence": {"pre_tokenizer": byte_level(),
                                 "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}},
    "no regex": {"pre_tokenizer": byte_level(use_regex=False)},
    "split as cl100k": {"pre_tokenizer": sequence(split(CL100K), byte_level(use_regex=False))},
    "split with possessive quantifiers": {"pre_tokenizer": sequence(split(POSSESSIVE), byte_level(use_regex=False))},
    "split as o200k": {"pre_tokenizer": sequence(split(O200K), byte_level(use_regex=False))},
    "split removed and inverted": {"pre_tokenizer": sequence(split(CL100K, "Removed", True), byte_level(use_regex=False))},
    "split leaves gaps": {"pre_tokenizer": sequence(split(r"[a-m]+|\d"), byte_level())},
    "split drops gaps": {"pre_tokenizer": sequence(split(r"[a-m]+|\d", "Removed", True), byte_level())},
    "split at empty matches": {"pre_tokenizer": sequence(split(r"(?=t)|x*"), byte_level())},
    "split looks around": {"pre_tokenizer": sequence(split(r"(?<=[^\s])e|^\S+$|\u0074h"), byte_level())},
    "split at a literal": {"pre_tokenizer": sequence(split("e.", kind="String"), byte_level())},
    "splits in a chain": {"pre_tokenizer": sequence(split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f]+"),
                                                    sequence(split(r"[!-/:-~]\p{Lu}+| ?\p{L}+")), byte_level(use_regex=False))},
    "split by script": {"pre_tokenizer": sequence(split(r"\p{Han}+|\p{Hiragana}|\p{^Greek}\p{Greek}|\x41\x{3042}", "Removed", True), byte_level())},
    "split by category": {"pre_tokenizer": sequence(split(r"\p{Mn}+|\p{Mc}\P{L}?|[^\P{Lo}x]+e|\p{Cn}|\d|[\D\P{Lu}]t|(?i:\p{M}s|\p{N}[\p{Nd}x])"), byte_level())},
    "prefix space behind a split": {"pre_tokenizer": sequence(split(r" |[^ ]+"), byte_level(prefix=True))},
    "digits one by one": {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": True}, byte_level())},
    "digits together": {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": False}, byte_level())},
    "whole pieces first": {"pre_tokenizer": byte_level(), "model": {"ignore_merges": True}, "merges_from": 150},
    "template": {"pre_tokenizer": byte_level(), "added_tokens": [added(END, "<s>", True), added(END + 1, "</s>", True)],
                 "post_processor": template(("<s>", END), ("</s>", END + 1))},
    "template in a sequence": {"pre_tokenizer": byte_level(), "added_tokens": [added(END, "<s>", True)],
                               "post_processor": {"type": "Sequence", "processors":
                                                  [byte_level(), template(("<s>", END))]}},
}
TEXTS = ["", " ", "  ", "\n", "the", " the", "  the word  ", "It's the word we're in; I'LL say he'd THE 'S",
         "12 345 6789 \u00b2\u2167\u0664", "a<l>b  <l>  c <r>  d<r>e <b> f", "<w> x<w>y <w>z (<w>) _<w> \u00e9<w>\u0301<w> <w>",
         "word words sword word, word\u2460 word\u24b6 word\u200d", "caf\u00e9 cafe\u0301 caf\u00e9s", "<s>the<s> <|x|><|x|",
         "<", "<<l>> <<", "a    b     c      d <r>    e", "\u00a0\u2003<l>\u3000x\u0085<b>\u2028 y",
         "\u1e0b\u0323 \u0344 \u2126 \uac00\u11a8 \u1112\u1161\u11ab \u0958", "a\r\nb\r\n\r\nc \n d\n\n", "tab\tx\t\ty \t z",
         "HTTPServer'S camelCase \u01c5x \u4f60\u597d\u3042 \u2764\ufe0f\U0001f468\u200d\U0001f469", "'\u017f '\u017fT \u212a'D",
         "\u180e a\u180eb \u200b \ufeff", "one.two,three!!??...  --- //\n///\n", "xx the\nthe^ eee.e. e.", "the the the",
         "\u4f60\u3001\u597d\u3042\u30fc\u3044A\u3042 \u03b1\u0342\u03b2 \u3005\u3007",
         # newer than Unicode 14: letters, digits, marks; assigned to none yet in 16
         "x\u1c89\u1c8a \U00031350\U0002ebf0! \U00010d4a\U00010d65 a\U00010d40 \U00011f02\U00011f34 \u088f\U000323b0z",
         "the\u0897 \U0001171e \ua7cb\ua7dc's \u2427\u31e4 \u1b4e \U00011f50 \U00010d40\U00010d41x \U0001171es",
         # NFC has Unicode 9 there: newer marks stay where they are, newer letters do not compose
         "\U000105d2\u0307 e\u0897\u0323\u0301 \u0d3b\u0334 \U00011935\U00011930 a\u1df6\u0323 c\u0327\u0301\u0d4d",
         "\U00010d69<w> \U0001e5d0<w> \u1c89<w>\u0897 \U00016d67<w> \u1acf<w>"]


def random_text(r):
    out = []
    for _ in range(r.randrange(30)):
        k = r.random()
        if k < .3:
            out.append(r.choice(TEXTS))
        elif k < .6:
            out.append(chr(r.randrange(32, 127)))
        elif k < .8:
            out.append(r.choice("  \n\r\t\u00a0\u3000<>eth12'"))
        else:
            out.append(chr(r.choice((r.randrange(0x80, 0x3100), r.randrange(0xa000, 0xac00),
                                     r.randrange(0x10000, 0x20000)))))
    return "".join(out)


def main():
    texts, args = list(TEXTS), sys.argv[1:]
    if len(args) > 1:
        r = random.Random(int(args[2]))
        texts += [random_text(r) for _ in range(int(args[3]))]
    with open(args[0], encoding="utf-8") as f:
        merges = [line.split() for line in f.read().split("\n")[1:1 + MERGES]]
    tokens = list(spelling().values()) + [a + b for a, b in merges]
    variants = []
    for name, v in VARIANTS.items():
        v = dict(v)
        first = v.pop("merges_from", 0)
        model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                 "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False} | v.pop("model", {})
        whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                 "post_processor": None, "decoder": byte_level()} | v
        full = model | {"vocab": {t: i for i, t in enumerate(tokens)}, "merges": [list(m) for m in merges[first:]]}
        tk = Tokenizer.from_str(json.dumps(whole | {"model": full}))
        whole["model"] = model
        cases = [{"text": t, "ids": tk.encode(t).ids} for t in texts]
        variants.append({"name": name, "merges_from": first, "tokenizer": whole, "cases": cases})
    json.dump({"vocab": tokens, "merges": merges, "variants": variants}, sys.stdout, ensure_ascii=True,
              separators=(",", ":"))
    print()


main()
