# SPDX-License-Identifier: Apache-2.0
"""Small tokenizers in the forms that families of models have, and texts that try them.  make.py makes the
files of this folder from them; tests/hostile/tokens.py compares the program with the libraries.
Needs sentencepiece and tokenizers."""
import io, json, os, random
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as pb

HERE = os.path.dirname(os.path.abspath(__file__))
MARK = "\u2581"
LINES = ["The quick brown fox jumps over the lazy dog, 12345 times.", "It's what we're here for; they'll say so.",
         "def f(x):\n    return x + 1\n", "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u4f60\u597d", "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c",
         "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u041a\u0430\u043a \u0434\u0435\u043b\u0430?", "\u00c9t\u00e9 \u00e0 la plage, \u00e7a va; na\u00efve fa\u00e7ade",
         "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e", "a  b   c    d     e      f", "\n\n\n\t\t{}[]();",
         "\U0001f642\U0001f642 emoji \u2764\ufe0f", "http://example.org/index.html?a=1&b=2", "abcab ababab aaaa aaaaaaaa"]


# ---- SentencePiece models, trained here ----

def corpus():
    with open(os.path.join(HERE, "../../../LICENSE"), encoding="utf-8") as f:
        text = [line.strip("\n") for line in f if line.strip()]
    for line in LINES:
        text += [part for part in line.split("\n") if part] * 3
    return text


def train(vocab, **options):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()), model_writer=out, model_type="bpe", vocab_size=vocab, num_threads=1,
        normalization_rule_name="identity", character_coverage=0.995, minloglevel=2, **options)
    return out.getvalue()


def ties(model):
    """Scores that many pieces share, and characters that are no pieces while pieces have them."""
    m = pb.ModelProto()
    m.ParseFromString(model)
    for p in m.pieces:
        p.score = float(int(p.score) // 16)
        if p.type == 1 and p.piece in ("e", "q", "\u4f60"):
            p.piece = "<was %s>" % p.piece
    return m.SerializeToString()


def models():
    llama = train(900, byte_fallback=True, remove_extra_whitespaces=False, split_digits=True,
                  allow_whitespace_only_pieces=True)
    return {
        "llama": llama,
        "ties": ties(llama),
        # spaces in a row and at the ends go; unknown characters are unknown
        "squeezed": train(500, user_defined_symbols=["<sep>", "[INST]", "ab", "fox" + MARK + "j"]),
        # no space in front; symbols of spaces and lines
        "gemma": train(800, byte_fallback=True, remove_extra_whitespaces=False, add_dummy_prefix=False, pad_id=3,
                       allow_whitespace_only_pieces=True,
                       user_defined_symbols=["\n", "\n\n", MARK * 2, MARK * 4, "<start_of_turn>"]),
    }


# ---- tokenizer.json ----

def pieces_of(model):
    m = pb.ModelProto()
    m.ParseFromString(model)
    return m.pieces


def vocab_and_merges(model):
    """A SentencePiece model as tokens and merges: every way to make a piece of two."""
    pieces = pieces_of(model)
    normal = {p.piece for p in pieces if p.type == 1}
    merges = []
    for p in sorted((p for p in pieces if p.type == 1), key=lambda p: -p.score):
        for i in range(1, len(p.piece)):
            if p.piece[:i] in normal and p.piece[i:] in normal:
                merges.append([p.piece[:i], p.piece[i:]])
    return [p.piece for p in pieces], merges


def spelling():
    """GPT-2's character for every byte."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


def byte_vocab_and_merges(count=700):
    with open(os.path.join(HERE, "../opt-tokenizer/merges.txt"), encoding="utf-8") as f:
        merges = [line.split() for line in f.read().split("\n")[1:1 + count]]
    return list(spelling().values()) + [a + b for a, b in merges], merges


def added(id, content, special=True, normalized=False, **flags):
    return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": normalized, "special": special} | flags


def template(*names):
    """names: tokens and ids in front of the text, then None for it, then those behind."""
    single = [{"SpecialToken": {"id": n[0], "type_id": 0}} if n else {"Sequence": {"id": "A", "type_id": 0}} for n in names]
    return {"type": "TemplateProcessing", "single": single,
            "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {n[0]: {"id": n[0], "ids": [n[1]], "tokens": [n[0]]} for n in names if n}}


def decoder(*more):
    replace = {"type": "Replace", "pattern": {"String": MARK}, "content": " "}
    return {"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}, *more]}


def metaspace(scheme, split=False):
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split}


REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
LEGACY = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": MARK}, REPLACE]}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
        r"\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(pattern):
    regex = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [regex, BYTE_LEVEL]}


def forms(end, byte_end):
    """Each form without vocabulary and merges; "base" says whose it takes.  end: the first id after them."""
    edges = [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>"), added(end, "<pad>"), added(end + 1, "<l>", lstrip=True),
             added(end + 2, "<r>", rstrip=True), added(end + 3, "<n>", special=False, normalized=True),
             added(end + 4, "fox j", special=False, normalized=True)]
    of_text = {"base": "text", "added_tokens": edges, "post_processor": template(("<s>", 1), None), "decoder": decoder(STRIP),
               "model": {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}}
    begin = added(byte_end, "<|begin_of_text|>"), added(byte_end + 1, "<|im_start|>"), added(byte_end + 2, "<tool>", special=False)
    of_bytes = {"base": "bytes", "added_tokens": list(begin), "decoder": BYTE_LEVEL, "model": {}}
    trimming = {"type": "Sequence", "processors": [BYTE_LEVEL, template(("<|begin_of_text|>", byte_end), None)]}
    return {
        "legacy": of_text | {"normalizer": LEGACY},
        "metaspace first": of_text | {"pre_tokenizer": metaspace("first")},
        "metaspace always": of_text | {"pre_tokenizer": metaspace("always")},
        "metaspace never": of_text | {"pre_tokenizer": metaspace("never"), "decoder": decoder()},
        "metaspace split": of_text | {"pre_tokenizer": metaspace("always", True), "post_processor": template(("<s>", 1), None, ("</s>", 2))},
        "gemma": of_text | {"normalizer": REPLACE, "decoder": decoder(),
                            "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}},
        "split with spaces": of_text | {"decoder": decoder(),
                                        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}},
        "unknown fused": of_text | {"normalizer": LEGACY, "model": of_text["model"] | {"byte_fallback": False}},
        "unknown one by one": of_text | {"normalizer": LEGACY, "drop_bytes": True, "model": of_text["model"] | {"fuse_unk": False}},
        "whole texts first": of_text | {"pre_tokenizer": metaspace("first", True), "merges_from": 600,
                                        "model": of_text["model"] | {"ignore_merges": True}},
        "qwen": of_bytes | {"normalizer": {"type": "NFC"}, "pre_tokenizer": split(QWEN), "post_processor": BYTE_LEVEL},
        "llama 3": of_bytes | {"pre_tokenizer": split(LLAMA3), "post_processor": trimming, "merges_from": 300,
                               "model": {"ignore_merges": True}},
        "o200k": of_bytes | {"pre_tokenizer": split(O200K), "post_processor": BYTE_LEVEL},
    }


def whole(form, bases):
    """The form as a tokenizer.json."""
    f = dict(form)
    tokens, merges = bases[f.pop("base")]
    merges = merges[f.pop("merges_from", 0):]
    vocab = {t: i for i, t in enumerate(tokens)}
    if f.pop("drop_bytes", False):  # there are not all of them: some characters become bytes, others unknown
        vocab = {t.replace("<0xE", "<no 0xE").replace("<0x80", "<no 0x80"): i for t, i in vocab.items()}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": False} | f.pop("model")
    rest = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": None, "post_processor": None}
    return rest | f | {"model": model | {"vocab": vocab, "merges": merges}}


# ---- texts ----

FIXED = ["", " ", "  ", "      ", "\n", "Hello", " Hello", "  Hello", "Hello ", "Hello  world", "<s>Hello", "<s> Hello", "Hello</s>", "a<s>b",
         "<s><s>", " <s> ", "<unk>", "<0x0A>", MARK, MARK + "Hello", MARK * 3 + " x", "x " + MARK + " y " + MARK, "a\tb\r\nc\n\n\nd", "<pad>x<pad> y",
         "a  <l>  b<r>   c", " <n> fox j fox  j", "The quick brown fox", "1234567890 12 3", "ababab ab abcab [INST] x<sep>y", "fox jumps fox  jumps",
         "\U0001f642 \u2764\ufe0f \U0001f468\u200d\U0001f469\u200d\U0001f467", "e\u0301 \u00e9 \u1e0b\u0323", "\u4f60\u597d\u4e16\u754c \u9f98 \u3042",
         "\u0e01\u0e33 \u1820\u1821 \u0f56\u0f7c\u0f51", "\x00 \x01\x7f", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "eqeqeq ee \u4f60 the quiet queen",
         "it'S we'LL THE'Re I'm", "\u00a0x\u3000y\u2003", "    def f(x):\n        return x\n", "<start_of_turn>user\nhi\n\n\n", "<|im_start|>x<tool> <|begin_of_text|>"]
ALPHABET = ["a", "b", "ab", "c", "e", "q", "the", "The", " the", "fox", "HELLO", "wOrLd", "don't", "'LL", "\u00e9", "\u00df", "\u0130", "\u01c5", "\u02b0", "\u0301",
            "\u0323", "\u093c", "\u4f60", "\u597d", "\u9f98", "\u3042", "\uac00", "\U0001f642", "\U0001f468\u200d\U0001f469", "\u2764\ufe0f", " ", " ", "  ", "   ",
            "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u200d", "1", "23", "4567", ".", ",", "!!", "_", "/", "//\n", "\u2026", "\u2460", "\u2167", "\u00b2", MARK, MARK * 2,
            "<s>", "</s>", "<unk>", "<0x0A>", "<0xE4>", "<pad>", "<l>", "<r>", "<n>", "fox j", "[INST]", "<sep>", "<start_of_turn>", "<|im_start|>", "<tool>",
            "\x00", "\u0e01\u0e33", "\u1820", "\u041f\u0440\u0438\u0432\u0435\u0442", "\u0645\u0631\u062d\u0628\u0627"]


def random_text(r):
    kind = r.random()
    if kind < .001:  # a very long word
        return "".join(r.choice(("ab", "a", "\u4f60", "x")) for _ in range(r.randrange(2000, 20000)))
    out = []
    for _ in range(r.randrange(20)):
        k = r.random()
        if k < .75:
            out.append(r.choice(ALPHABET))
        elif k < .85:
            out.append(" " * r.randrange(1, 20))
        elif k < .93:
            out.append(chr(r.randrange(32, 127)))
        else:
            out.append(chr(r.choice((r.randrange(0x80, 0x3100), r.randrange(0xa000, 0xac00), r.randrange(0x10000, 0x20000)))))
    return "".join(out)


def texts(seed, count):
    r = random.Random(seed)
    return FIXED + [random_text(r) for _ in range(count)]


def random_ids(r, end):
    """Ids of tokens, in part of bytes in a row (which begin with id 3 in SentencePiece models)."""
    out = []
    for _ in range(r.randrange(1, 8)):
        if r.random() < .4:
            out += [3 + b for b in r.choice((chr(r.randrange(0x80, 0xd000)).encode(), bytes([r.randrange(256)]), b"\xe4\xbd", b"\xf0\x9f\x99\x82\xff"))]
        else:
            out.append(r.randrange(259, end))
    return out


# ---- what the libraries give ----

def cut(specials, text, encode):
    """A text's ids, where special tokens are cut out of it first, as all programs do it."""
    ids = []
    while text:
        found = [(text.find(s), -len(s), s) for s in specials if s in text]
        at, _, name = min(found) if found else (len(text), 0, "")
        ids += encode(text[:at]) if at else []
        if name:
            ids.append(specials[name])
        text = text[at + len(name):]
    return ids


def sentencepiece_specials(sp):
    return {sp.id_to_piece(i): i for i in range(sp.get_piece_size()) if sp.is_control(i) or sp.is_unknown(i)}


def sentencepiece_ids(sp, text):
    return cut(sentencepiece_specials(sp), text, sp.encode)
