#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains tiny-llama: a LLaMA of 11.5 million parameters on novels and on texts that ask for what they said
before (bench/recall.py), so that it looks keys up at any distance within its context.

    venv/bin/pip install 'torch>=2.6' 'tokenizers>=0.22' numpy
    venv/bin/python tests/data/tiny-llama/train.py --novels DIR --work WORK [--tokens 7.5e6] [--compile]
    venv/bin/python tests/data/tiny-llama/train.py --work WORK --check          # losses and recall of the checkpoint
    venv/bin/python tests/data/tiny-llama/train.py --work WORK --export tests/data/tiny-llama

DIR has the books, one in each .txt file (README.md says which); those whose names begin with --held-out are for the
check. WORK keeps the tokenizer, the ids and checkpoint.pt, written every
--minutes and at SIGTERM: started again, it goes on from there, also with another --tokens. Products are in f32,
which on the CPU it was made on is twice as fast as torch's bf16."""
import argparse
import json
import math
import os
import random
import re
import signal
import struct
import sys
import time

import numpy
import torch
import torch.nn.functional as F

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../bench"))
import recall

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 4096,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-05,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "torch_dtype": "bfloat16",
}
END = "<|endoftext|>"
# Until which part of all tokens: context, tokens of a step, and the share of sequences that are prose alone. Short
# texts that repeat much come first; prose and distance after.
STAGES = [(0.1, 256, 8192, 0.4), (0.3, 512, 8192, 0.5), (0.55, 1024, 8192, 0.6), (1.0, 2048, 8192, 0.65)]
MICRO_TOKENS = 4096
WARMUP_STEPS, DECAY_FROM = 150, 0.7  # the rate is level, and falls to nothing over the last part
RATE_MATRICES, RATE_OTHERS = 0.008, 1e-3
NEAR, MATCH, TAKEN, BROUGHT = 2.5, 1.6, 0.37, 0.37  # weights that heads begin with: look_back()
ASKED_WEIGHT = 2.0  # of a token that repeats, in the mean loss
DISTANCES = [125, 250, 500, 1000, 1500, 1900]


# ---- text ----------------------------------------------------------------------------------------


def clean(text):
    """A book with a paragraph on each line."""
    lines = [line.strip() for line in text.replace("\r\n", "\n").replace("\t", " ").split("\n")]
    lengths = sorted(len(line) for line in lines if line)
    paragraphs, now = [], []
    if lengths[int(len(lengths) * 0.9)] > 120:  # its lines are paragraphs
        paragraphs = [line for line in lines if line]
    else:
        for line in lines + [""]:
            if line:
                now.append(line)
            elif now:
                paragraphs.append(" ".join(now))
                now = []
    return "\n".join(re.sub(" {2,}", " ", p) for p in paragraphs)


def books(folder, held_out):
    """Texts to train on, and the held-out ones."""
    train, held = [], []
    for name in sorted(n for n in os.listdir(folder) if n.endswith(".txt")):
        with open(os.path.join(folder, name), encoding="utf-8-sig", errors="replace") as f:
            (held if name.startswith(held_out) else train).append(clean(f.read()))
    return train, held


def make_tokenizer(texts, path):
    """GPT-2's way of cutting text, with merges of these texts; nouns of recall.py and digits are one token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    said = "".join(" " + n for n in recall.NOUNS + list("0123456789")) * 4000
    t.train_from_iterator([said] + [line for b in texts for line in b.split("\n")], trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"], special_tokens=[END], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.post_processor = processors.TemplateProcessing(single=f"{END} $A", pair=f"{END} $A {END} $B",
                                                     special_tokens=[(END, 0)])
    t.save(path)


def prepare(a):
    """Tokenizer, ids and text in WORK, made once."""
    from tokenizers import Tokenizer
    path = os.path.join(a.work, "tokenizer.json")
    if not os.path.exists(os.path.join(a.work, "held.txt")):
        train, held = books(a.novels, a.held_out)
        make_tokenizer(train, path)
        t = Tokenizer.from_file(path)
        for name, texts in (("train", train), ("held", held)):
            ids = []
            for book in texts:
                lines = book.split("\n")
                ids.append(0)
                for i in range(0, len(lines), 64):
                    ids += t.encode("\n".join(lines[i:i + 64]) + "\n", add_special_tokens=False).ids
            numpy.save(os.path.join(a.work, name + ".npy"), numpy.array(ids, dtype=numpy.uint16))
            with open(os.path.join(a.work, name + ".txt"), "w", encoding="utf-8") as f:
                f.write("\n".join(texts))
    found = {"tokenizer": Tokenizer.from_file(path)}
    for name in ("train", "held"):
        found[name] = numpy.load(os.path.join(a.work, name + ".npy"))
        with open(os.path.join(a.work, name + ".txt"), encoding="utf-8") as f:
            found[name + "_text"] = f.read()
    return found


class Texts:
    """Sequences to train on; the same for the same draw."""

    def __init__(self, data):
        self.data, self.ids_of = data, {}

    def encode(self, words):
        ids = self.ids_of.get(words)
        if ids is None:
            ids = self.data["tokenizer"].encode(words, add_special_tokens=False).ids
            if len(words) < 40:
                self.ids_of[words] = ids
        return ids

    def prose(self, draw, size):
        text = self.data["train_text"]
        at = text.find(" ", draw.randrange(len(text) - 2 * size))
        return text[at + 1:at + size]

    def pieces(self, draw, size):
        way = draw.random()
        if way < 0.3:
            return recall.story(draw, self.prose(draw, 2 * size), size)
        if way < 0.6:
            return recall.pairs(draw, size)
        if way < 0.9:
            return recall.copies(draw, self.prose(draw, 2 * size), size)
        return recall.repeats(draw, size)

    @staticmethod
    def any_tokens(draw, context):
        """Any tokens whatever, said again and again."""
        span = [draw.randrange(1, CONFIG["vocab_size"]) for _ in range(draw.randint(4, context // 3))]
        ids = [0] + span * (context // len(span) + 1)
        weights = [0.0] * (len(span) + 1) + [1.0] * context
        return ids[:context + 1], weights[:context]

    def sequence(self, draw, context, prose_share):
        """context + 1 ids, and the weight of each of the last `context` ones."""
        n = context + 1
        if draw.random() < prose_share:
            ids = self.data["train"]
            at = draw.randrange(len(ids) - n)
            ids = ids[at:at + n].tolist()
            if draw.random() < 0.5:
                ids[0] = 0
            return ids, [1.0] * context
        if draw.random() < 0.2:
            return self.any_tokens(draw, context)
        ids, weights = [0], [0.0]
        while len(ids) < n:
            for words, asked in self.pieces(draw, 18 * context // 5):
                more = self.encode(words)
                ids += more
                weights += [ASKED_WEIGHT if asked else 1.0] * len(more)
                if len(ids) >= n:
                    break
        return ids[:n], weights[1:n]

    def batch(self, seed, step, context, tokens, prose_share):
        """Micro-batches of one step: ids [sequences][context + 1] and weights [sequences][context]."""
        each = MICRO_TOKENS // context
        for i in range(tokens // MICRO_TOKENS):
            draw = random.Random(f"{seed} {step} {i}")
            found = [self.sequence(draw, context, prose_share) for _ in range(each)]
            yield torch.tensor([f[0] for f in found]), torch.tensor([f[1] for f in found])


# ---- model ---------------------------------------------------------------------------------------


class Norm(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight, CONFIG["rms_norm_eps"])


class Linear(torch.nn.Module):
    def __init__(self, to, of, scale):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(to, of) * scale if scale else torch.zeros(to, of))

    def forward(self, x):
        return F.linear(x, self.weight)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        c = CONFIG
        self.heads, self.kv_heads, self.dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        scale = c["hidden_size"] ** -0.5
        self.q_proj = Linear(self.heads * self.dim, c["hidden_size"], scale)
        self.k_proj = Linear(self.kv_heads * self.dim, c["hidden_size"], scale)
        self.v_proj = Linear(self.kv_heads * self.dim, c["hidden_size"], scale)
        self.o_proj = Linear(c["hidden_size"], self.heads * self.dim, 0)

    def forward(self, x, cos, sin):
        batch, n, _ = x.shape
        q = rotate(self.q_proj(x).view(batch, n, self.heads, self.dim).transpose(1, 2), cos, sin)
        k = rotate(self.k_proj(x).view(batch, n, self.kv_heads, self.dim).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(batch, n, self.kv_heads, self.dim).transpose(1, 2)
        k, v = (y.repeat_interleave(self.heads // self.kv_heads, 1) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, n, -1))


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
        self.gate_proj = Linear(inner, hidden, hidden ** -0.5)
        self.up_proj = Linear(inner, hidden, hidden ** -0.5)
        self.down_proj = Linear(hidden, inner, 0)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm = Norm(CONFIG["hidden_size"])
        self.self_attn = Attention()
        self.post_attention_layernorm = Norm(CONFIG["hidden_size"])
        self.mlp = Mlp()

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


@torch.no_grad()
def look_back(model):
    """Heads that from the first step on look up what followed the last time (Olsson et al., "In-context Learning and
    Induction Heads", 2022); to find them by itself takes a model many times the tokens that a CPU trains on in hours.

    The residual begins as [1 constant | 255 of the token's own | 64 zeros | 64 zeros]. Heads 0 and 1 of layer 0 write
    the token before and the one before that into the zeros: their keys and queries are the constant alone, turned so
    that one distance fits. Layers 1 and 3 match on that and bring along the token found. Rotation leaves the slow
    pairs of a head nearly alone, so these hold what is matched."""
    size, half = CONFIG["head_dim"], CONFIG["head_dim"] // 2
    own, before, before_that = 1, 256, 320  # where a token's own part begins, and what layer 0 writes
    e = model.embed_tokens.weight
    e[:, 0], e[:, before:] = 0.27, 0
    whole, fast, slow = torch.arange(size), torch.arange(10), torch.arange(16, half)
    rates = CONFIG["rope_theta"] ** (-torch.arange(0, size, 2) / size)
    a = model.layers[0].self_attn
    k, v = a.k_proj.weight[:size].zero_(), a.v_proj.weight[:size].zero_()
    k[fast, 0], v[whole, own + whole] = NEAR, TAKEN
    for head, (distance, to) in enumerate(((1, before), (2, before_that))):
        q, turn = a.q_proj.weight[head * size:(head + 1) * size].zero_(), rates[fast] * distance
        q[fast, 0], q[half + fast, 0] = NEAR * torch.cos(turn), -NEAR * torch.sin(turn)
        a.o_proj.weight[to + whole, head * size + whole] = BROUGHT
    pairs = torch.cat((slow, half + slow))
    for layer, two in ((1, False), (3, True)):  # two: half of a head matches the token before as well
        a = model.layers[layer].self_attn
        for kv in range(a.kv_heads):
            code = (torch.arange(len(pairs)) + len(pairs) * kv) % size  # these dimensions of a token, wherever it is
            asks, holds = own + code, before + code
            if two:
                asks[::2], holds[::2] = before + code[::2], before_that + code[::2]
            brings = own + (whole + size * (kv + 2 * two)) % 255
            k, v = (m.weight[kv * size:(kv + 1) * size].zero_() for m in (a.k_proj, a.v_proj))
            k[pairs, holds], v[whole, brings] = MATCH, TAKEN
            for head in range(kv * a.heads // a.kv_heads, (kv + 1) * a.heads // a.kv_heads):
                a.q_proj.weight[head * size:(head + 1) * size].zero_()[pairs, asks] = MATCH
                a.o_proj.weight[brings, head * size + whole] = BROUGHT


class Llama(torch.nn.Module):
    """Names of parameters are those of the checkpoint."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(CONFIG["vocab_size"], CONFIG["hidden_size"])
        torch.nn.init.normal_(self.embed_tokens.weight, std=0.08)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(CONFIG["num_hidden_layers"]))
        self.norm = Norm(CONFIG["hidden_size"])
        torch.nn.init.constant_(self.norm.weight, 0.4)
        dim = CONFIG["head_dim"]
        rates = CONFIG["rope_theta"] ** (-torch.arange(0, dim, 2) / dim)
        turns = torch.outer(torch.arange(CONFIG["max_position_embeddings"]), rates)
        self.register_buffer("cos", turns.cos(), persistent=False)
        self.register_buffer("sin", turns.sin(), persistent=False)
        look_back(self)

    def logits(self, ids):
        n = ids.shape[1]
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, self.cos[:n], self.sin[:n])
        return F.linear(self.norm(x), self.embed_tokens.weight)

    def forward(self, ids, weights):
        """The sum of the weighted losses."""
        losses = F.cross_entropy(self.logits(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(),
                                 reduction="none")
        return (losses * weights.flatten()).sum()


# ---- steps ---------------------------------------------------------------------------------------


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are made nearly orthogonal by five Newton-Schulz steps (Keller Jordan, "Muon", 2024,
    kellerjordan.github.io/posts/muon, which has the coefficients)."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr, "momentum": 0.95})

    @staticmethod
    def orthogonal(g):
        x = g / (g.norm() + 1e-7)
        tall = x.shape[0] > x.shape[1]
        x = x.T if tall else x
        for _ in range(5):
            y = x @ x.T
            x = 3.4445 * x + (-4.7750 * y + 2.0315 * (y @ y)) @ x
        return x.T if tall else x

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                held = self.state[p].setdefault("momentum", torch.zeros_like(p))
                held.lerp_(p.grad, 1 - group["momentum"])
                move = self.orthogonal(p.grad.lerp(held, group["momentum"]))
                p.add_(move, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def optimizers(model):
    matrices = [p for p in model.layers.parameters() if p.dim() == 2]
    known = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in known]
    return [Muon(matrices, RATE_MATRICES),
            torch.optim.AdamW(others, lr=RATE_OTHERS, betas=(0.9, 0.95), weight_decay=0.0, fused=True)]


def rate(step, part):
    """Of the full learning rate."""
    falls = min(1, (1 - part) / (1 - DECAY_FROM))
    return max(0.01, falls) * min(1, (step + 1) / WARMUP_STEPS)


def train_step(model, opts, texts, state, a):
    part = state["tokens"] / a.tokens
    context, tokens, prose_share = next(rest for until, *rest in STAGES if part < until)
    batches = list(texts.batch(a.seed, state["step"], context, tokens, prose_share))
    whole = sum(w.sum() for _, w in batches)
    total = 0.0
    for ids, weights in batches:
        loss = model(ids, weights) / whole
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_([p for g in opts[1].param_groups for p in g["params"]], 1.0)
    for opt, full in zip(opts, (RATE_MATRICES, RATE_OTHERS)):
        for group in opt.param_groups:
            group["lr"] = full * rate(state["step"], part)
        opt.step()
        opt.zero_grad(set_to_none=True)
    state["step"] += 1
    state["tokens"] += tokens
    return context, total


# ---- checks --------------------------------------------------------------------------------------


@torch.no_grad()
def held_out_loss(model, data, context, windows):
    ids = torch.from_numpy(data["held"][:windows * context + 1].astype(numpy.int64))
    one = torch.ones(1, context)
    return sum(model(ids[i * context:(i + 1) * context + 1][None], one).item()
               for i in range(windows)) / (windows * context)


@torch.no_grad()
def recall_at(model, data, distance, prompts):
    """Of how many needles every token of the answer is the likeliest one."""
    t = data["tokenizer"]
    lines = recall.sentences(data["held_text"])
    right = 0
    for i in range(prompts):
        draw = random.Random(f"needle {distance} {i}")
        parts = recall.needle(draw, lines, lambda texts: [
            len(e.ids) for e in t.encode_batch(texts, add_special_tokens=False)], distance, min(1980, distance + 500))
        ids, said = t.encode(parts[0] + parts[1]).ids, t.encode(parts[2] + ".", add_special_tokens=False).ids
        logits = model.logits(torch.tensor([(ids + said)[:CONFIG["max_position_embeddings"]]]))
        right += logits[0, len(ids) - 1:len(ids) + len(said) - 1].argmax(-1).tolist() == said
    return right / prompts


def check(model, data, context, windows, prompts):
    return {"held_out_loss": round(held_out_loss(model, data, context, windows), 4), "context": context,
            "recall": {d: recall_at(model, data, d, prompts) for d in DISTANCES if d < 2 * context}}


# ---- checkpoints ---------------------------------------------------------------------------------


def save(a, model, opts, state):
    path = os.path.join(a.work, "checkpoint.pt")
    torch.save({"model": model.state_dict(), "opts": [o.state_dict() for o in opts], "state": state}, path + ".new")
    os.replace(path + ".new", path)


def load(a, model, opts):
    path = os.path.join(a.work, "checkpoint.pt")
    if not os.path.exists(path):
        return {"step": 0, "tokens": 0, "cpu_s": 0.0}
    found = torch.load(path)
    model.load_state_dict(found["model"])
    for opt, held in zip(opts, found["opts"]):
        opt.load_state_dict(held)
    return found["state"]


def export(a, model):
    """config.json, tokenizer files and bf16 safetensors."""
    tensors = {"model." + k: v.bfloat16().contiguous() for k, v in model.state_dict().items()}
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(tensors):
        size = 2 * tensors[name].numel()
        head[name] = {"dtype": "BF16", "shape": list(tensors[name].shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(a.export, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            f.write(tensors[name].view(torch.uint8).numpy().tobytes())
    tokenizer_config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "eos_token": END,
                        "model_max_length": CONFIG["max_position_embeddings"]}
    for name, value in (("config", CONFIG), ("tokenizer_config", tokenizer_config)):
        with open(os.path.join(a.export, name + ".json"), "w", encoding="utf-8") as f:
            f.write(json.dumps(value, indent=2) + "\n")
    with open(os.path.join(a.work, "tokenizer.json"), encoding="utf-8") as f:
        tokenizer = f.read()
    with open(os.path.join(a.export, "tokenizer.json"), "w", encoding="utf-8") as f:
        f.write(tokenizer)


# ---- all -----------------------------------------------------------------------------------------


def log(a, line):
    with open(os.path.join(a.work, "log.jsonl"), "a", encoding="utf-8") as f:
        f.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)


def train(a, model, data):
    opts = optimizers(model)
    state = load(a, model, opts)
    texts, run = Texts(data), torch.compile(model, dynamic=False) if a.compile else model
    spent, saved, noted = state["cpu_s"], time.monotonic(), time.monotonic()
    checked, mean = state["tokens"], None
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    while state["tokens"] < a.tokens and not stopped:
        context, loss = train_step(run, opts, texts, state, a)
        assert math.isfinite(loss)
        mean = loss if mean is None else 0.9 * mean + 0.1 * loss
        state["cpu_s"] = spent + time.process_time()
        if state["step"] % 10 == 0:
            now = time.monotonic()
            log(a, {**state, "context": context, "loss": round(mean, 4), "s_step": round((now - noted) / 10, 2)})
            noted = now
        if time.monotonic() - saved > 60 * a.minutes:
            save(a, model, opts, state)
            saved = time.monotonic()
        if state["tokens"] - checked >= a.check_every:
            checked = state["tokens"]
            log(a, {**state, **check(model, data, context, 8, 24)})
            noted = time.monotonic()
    save(a, model, opts, state)
    return not stopped


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--novels")
    p.add_argument("--held-out", default="Bennet_Helen")
    p.add_argument("--work", required=True)
    p.add_argument("--tokens", type=float, default=7.5e6)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--minutes", type=float, default=4)
    p.add_argument("--check-every", type=float, default=2e6, help="tokens")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--check", action="store_true")
    p.add_argument("--export")
    a = p.parse_args()
    os.makedirs(a.work, exist_ok=True)
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    data, model = prepare(a), Llama()
    if a.export or a.check:
        load(a, model, [])
        if a.export:
            export(a, model)
        if a.check:
            print(json.dumps(check(model, data, 2048, 40, 100), indent=1))
    else:
        log(a, {"parameters": sum(q.numel() for q in model.parameters()), "tokens_planned": a.tokens})
        if train(a, model, data):
            log(a, check(model, data, 2048, 40, 100))


if __name__ == "__main__":
    main()
