#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/families: tiny random checkpoints of every family but OPT (make_variants.py), in
the spellings that config.json has had, each with logits in f64 and with greedy tokens; and
rotary.json, frequencies of rotary positions.

The logits are computed here, by the formulas that the families' papers and modeling files have, from
config.json and the tensors alone (forward()); transformers reads the same directory, and both must
agree.  The greedy tokens are those of transformers.

Needs torch, transformers, safetensors and numpy (those used are noted in families/VERSIONS).
Deterministic: weights come from a generator seeded with the case's name.

    python3 make_families.py [output directory [case ...]]
"""

import copy
import json
import math
import os
import shutil
import sys
import zlib

import numpy
import safetensors.torch
import torch
import transformers

PROMPT_LENGTHS = [1, 9, 44]
GREEDY_TOKENS = 20  # 44 + 20: the longest prompt fills the context of most
MARGIN = 0.02       # every greedy choice wins by this much: rounding cannot change it
AGREE = 5e-5        # transformers computes norms and rotations in f32, whatever the model is in

BASE = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
LLAMA = dict(BASE, architectures=["LlamaForCausalLM"], model_type="llama", rope_theta=10000.0)
MISTRAL = dict(BASE, architectures=["MistralForCausalLM"], model_type="mistral", rope_theta=10000.0)
QWEN2 = dict(BASE, architectures=["Qwen2ForCausalLM"], model_type="qwen2", rope_theta=1000000.0,
             rms_norm_eps=1e-06, use_sliding_window=False, sliding_window=32, max_window_layers=2)
QWEN3 = dict(BASE, architectures=["Qwen3ForCausalLM"], model_type="qwen3", rope_theta=1000000.0,
             rms_norm_eps=1e-06, head_dim=20, attention_bias=False, use_sliding_window=False,
             sliding_window=None, max_window_layers=2)
PHI3 = dict(BASE, architectures=["Phi3ForCausalLM"], model_type="phi3", rope_theta=10000.0,
            pad_token_id=0, sliding_window=None, original_max_position_embeddings=64)
NEOX = dict({k: v for k, v in BASE.items() if k not in ("rms_norm_eps", "num_key_value_heads")},
            architectures=["GPTNeoXForCausalLM"], model_type="gpt_neox", num_attention_heads=3,
            hidden_act="gelu", layer_norm_eps=1e-05, rotary_pct=0.25, rotary_emb_base=10000,
            use_parallel_residual=True, bos_token_id=0, eos_token_id=0)
BANDS = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 32}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32}
LONG = {"type": "longrope", "short_factor": [1.0 + .05 * i for i in range(6)],
        "long_factor": [1.5 + .3 * i for i in range(6)]}


def without(config, *keys):
    return {k: v for k, v in config.items() if k not in keys}


def newer(config, rope, *gone):
    """The same as transformers 5 writes it: 'dtype', and all of the rotation in 'rope_parameters'."""
    new = without(config, "torch_dtype", "rope_theta", "rope_scaling", "rotary_pct",
                  "rotary_emb_base", "partial_rotary_factor", *gone)
    return dict(new, dtype=config["torch_dtype"], rope_parameters=rope)


# name -> config.json; the same in another spelling; and how the tensors are kept:
#   dtype    bf16, f16 or f32
#   scale    of the token table, where it is not 1
#   prefix   (of transformers' names, its replacement): models of text and pictures
#   extra    tensors that are to be left alone
CASES = {
    "llama_1": dict(
        config=dict(without(LLAMA, "max_position_embeddings", "num_key_value_heads", "rope_theta",
                            "tie_word_embeddings"),
                    architectures=["LLaMAForCausalLM"], max_sequence_length=64, pad_token_id=-1,
                    torch_dtype="float16"),
        other=dict(without(LLAMA, "num_key_value_heads"), torch_dtype="float16", head_dim=None,
                   rope_scaling=None, attention_bias=False, mlp_bias=False, pretraining_tp=1),
        dtype="f16", extra=["model.layers.0.self_attn.rotary_emb.inv_freq"]),
    "llama_3": dict(
        config=dict(LLAMA, head_dim=32, rope_theta=500000.0, rope_scaling=BANDS,
                    eos_token_id=[2, 5]),
        other=newer(dict(LLAMA, head_dim=32, eos_token_id=[2, 5]),
                    dict(BANDS, rope_theta=500000.0))),
    "llama_yarn_biased": dict(
        config=dict(LLAMA, head_dim=20, attention_bias=True, mlp_bias=True,
                    rope_scaling=dict(YARN, type="yarn")),
        other=newer(dict(LLAMA, head_dim=20, attention_bias=True, mlp_bias=True),
                    dict(YARN, rope_type="yarn", rope_theta=10000.0))),
    "llama_yarn_mscale": dict(
        config=newer(dict(LLAMA, head_dim=32, num_attention_heads=2, num_key_value_heads=1),
                     dict(YARN, rope_type="yarn", rope_theta=10000.0, mscale=0.7,
                          mscale_all_dim=1.3, truncate=False, beta_fast=16.0, beta_slow=2.0)),
        other=dict(LLAMA, head_dim=32, num_attention_heads=2, num_key_value_heads=1,
                   rope_scaling=dict(YARN, rope_type="yarn", type="yarn", mscale=0.7,
                                     mscale_all_dim=1.3, truncate=False, beta_fast=16,
                                     beta_slow=2))),
    "llama_linear": dict(
        config=dict(LLAMA, num_key_value_heads=1,
                    rope_scaling={"type": "linear", "rope_type": "linear", "factor": 4.0}),
        other=newer(dict(LLAMA, num_key_value_heads=1),
                    {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0})),
    "llama_dynamic": dict(
        config=dict(LLAMA, rope_scaling={"type": "dynamic", "factor": 2.0}),
        other=newer(LLAMA, {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})),
    "llama_tied": dict(
        config=dict(LLAMA, tie_word_embeddings=True, num_attention_heads=6, num_key_value_heads=2,
                    head_dim=8)),
    "llama_small": dict(config=dict(LLAMA, rms_norm_eps=1e-06), scale=0.02),
    "llama_f32": dict(config=dict(LLAMA, torch_dtype="float32", num_key_value_heads=4), dtype="f32"),
    "mistral": dict(
        config=dict(MISTRAL, sliding_window=9),
        other=newer(dict(MISTRAL, sliding_window=9),
                    {"rope_type": "default", "rope_theta": 10000.0})),
    "mistral_wide": dict(
        config=dict(MISTRAL, sliding_window=None, head_dim=20, torch_dtype="float16",
                    rope_theta=1000000.0), dtype="f16"),
    "mistral_nested": dict(
        config={"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
                "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
                "text_config": dict(without(MISTRAL, "architectures", "torch_dtype",
                                            "bos_token_id", "eos_token_id"),
                                    sliding_window=None, head_dim=16),
                "vision_config": {"model_type": "pixtral", "hidden_size": 16}},
        prefix=[("model.", "language_model.model."), ("lm_head.", "language_model.lm_head.")],
        extra=["vision_tower.ln_pre.weight", "multi_modal_projector.linear_1.weight"]),
    "qwen2": dict(
        config=dict(QWEN2, hidden_size=56, num_attention_heads=7, num_key_value_heads=1),
        other=newer(dict(QWEN2, hidden_size=56, num_attention_heads=7, num_key_value_heads=1,
                         sliding_window=None, layer_types=["full_attention"] * 2),
                    {"rope_type": "default", "rope_theta": 1000000.0})),
    "qwen2_windows": dict(
        config=dict(QWEN2, tie_word_embeddings=True, use_sliding_window=True, sliding_window=7,
                    max_window_layers=1),
        other=newer(dict(QWEN2, tie_word_embeddings=True, use_sliding_window=True, sliding_window=7,
                         max_window_layers=1, layer_types=["full_attention", "sliding_attention"]),
                    {"rope_type": "default", "rope_theta": 1000000.0})),
    "qwen2_layer_types": dict(
        config=newer(dict(QWEN2, num_hidden_layers=3, use_sliding_window=True, sliding_window=12,
                          layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                          num_attention_heads=2),
                     {"rope_type": "default", "rope_theta": 1000000.0})),
    "qwen3": dict(
        config=QWEN3,
        other=newer(dict(QWEN3, layer_types=["full_attention"] * 2),
                    {"rope_type": "default", "rope_theta": 1000000.0})),
    "qwen3_tied": dict(
        config=dict(QWEN3, tie_word_embeddings=True, num_attention_heads=3, num_key_value_heads=1,
                    head_dim=32)),
    "phi3": dict(
        config=dict(PHI3, sliding_window=10, num_key_value_heads=4, rope_scaling=None),
        other=newer(dict(PHI3, sliding_window=10, num_key_value_heads=4),
                    {"rope_type": "default", "rope_theta": 10000.0,
                     "partial_rotary_factor": 1.0})),
    "phi3_long": dict(
        config=dict(PHI3, max_position_embeddings=128, original_max_position_embeddings=32,
                    rope_scaling=LONG),
        other=dict(PHI3, max_position_embeddings=128, original_max_position_embeddings=32,
                   rope_scaling=dict(LONG, type="su"))),
    "phi3_partial": dict(
        config=dict(PHI3, num_attention_heads=3, num_key_value_heads=1, tie_word_embeddings=True,
                    partial_rotary_factor=0.75, max_position_embeddings=128,
                    original_max_position_embeddings=32, rope_scaling=LONG),
        other=newer(dict(PHI3, num_attention_heads=3, num_key_value_heads=1,
                         tie_word_embeddings=True, max_position_embeddings=128,
                         original_max_position_embeddings=32),
                    dict(without(LONG, "type"), rope_type="longrope", rope_theta=10000.0,
                         partial_rotary_factor=0.75, original_max_position_embeddings=32))),
    "neox": dict(
        config=NEOX,
        other=newer(NEOX, {"rope_type": "default", "rope_theta": 10000,
                           "partial_rotary_factor": 0.25}),
        extra=["gpt_neox.layers.1.attention.rotary_emb.inv_freq",
               "gpt_neox.layers.0.attention.bias",
               "gpt_neox.layers.0.attention.masked_bias"]),
    "neox_sequential": dict(
        config=dict(NEOX, use_parallel_residual=False, rotary_pct=1.0, num_attention_heads=4,
                    torch_dtype="float16"), dtype="f16"),
    "neox_tanh": dict(
        config=dict(NEOX, hidden_act="gelu_fast", attention_bias=False, tie_word_embeddings=True,
                    rotary_pct=0.5, torch_dtype="float16"), dtype="f16"),
    "neox_linear": dict(
        config=dict(NEOX, num_attention_heads=2, num_hidden_layers=3,
                    rope_scaling={"type": "linear", "factor": 2.0})),
}

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}

# ---- the formulas -------------------------------------------------------------------------------


def rope_of(config):
    """All of the rotation under the names of transformers 5, from either spelling."""
    rope = dict(config.get("rope_scaling") or {}, **(config.get("rope_parameters") or {}))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "su" or (kind == "yarn" and config["model_type"] == "phi3"):
        kind = "longrope"
    rope["kind"] = kind
    rope["theta"] = rope.get("rope_theta", config.get("rope_theta",
                                                      config.get("rotary_emb_base", 10000.0)))
    rope["share"] = rope.get("partial_rotary_factor", config.get(
        "partial_rotary_factor", config.get(
            "rotary_pct", 0.25 if config["model_type"] == "gpt_neox" else 1.0)))
    rope["max"] = config.get("max_position_embeddings", config.get("max_sequence_length"))
    rope["original"] = config.get("original_max_position_embeddings", rope.get(
        "original_max_position_embeddings", rope["max"]))
    return rope


def frequencies(rope, head_dim, long):
    """Radians a position in f64, and what cosine and sine are multiplied by."""
    dims = int(head_dim * rope["share"])
    index = numpy.arange(dims // 2)
    f = rope["theta"] ** (-2.0 * index / dims)
    kind, factor, original = rope["kind"], rope.get("factor"), rope["original"]
    if kind == "linear":
        return f / factor, 1.0
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        wave = 2 * numpy.pi / f
        share = (original / wave - low) / (high - low)
        middle = (1 - share) * f / factor + share * f
        return numpy.where(wave > original / low, f / factor,
                           numpy.where(wave < original / high, f, middle)), 1.0
    if kind == "yarn":
        def place(turns):
            return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope["theta"]))
        first, last = place(rope.get("beta_fast") or 32), place(rope.get("beta_slow") or 1)
        if rope.get("truncate", True):
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dims - 1)
        ramp = numpy.clip((index - first) / ((last - first) or 0.001), 0, 1)

        def scale(by):
            return 0.1 * by * math.log(factor) + 1 if factor > 1 else 1.0
        both = rope.get("mscale") and rope.get("mscale_all_dim")
        attention = rope.get("attention_factor") or \
            (scale(rope["mscale"]) / scale(rope["mscale_all_dim"]) if both else scale(1))
        return f / factor * ramp + f * (1 - ramp), attention
    if kind == "longrope":
        factor = factor or rope["max"] / original
        attention = rope.get("attention_factor") or \
            (math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0)
        return f / numpy.array(rope["long_factor" if long else "short_factor"]), attention
    assert kind in ("default", "dynamic"), kind
    return f, 1.0


def rotate(x, f, factor):
    """x [n][heads][d]: pairs (i, i + half) turned by position * f[i], which is rounded to f32."""
    f32, half = numpy.float32, len(f)
    angle = numpy.arange(len(x), dtype=f32)[:, None] * f.astype(f32)
    turn = [(t(angle.astype(float)).astype(f32) * f32(factor)).astype(float)[:, None]
            for t in (numpy.cos, numpy.sin)]
    y = x.copy()
    y[..., :half] = x[..., :half] * turn[0] - x[..., half:2 * half] * turn[1]
    y[..., half:2 * half] = x[..., half:2 * half] * turn[0] + x[..., :half] * turn[1]
    return y


def attend(q, k, v, window):
    n, heads, d = q.shape
    out = numpy.empty((n, heads, d))
    i = numpy.arange(n)
    hidden = i[None] > i[:, None]
    if window:
        hidden |= i[:, None] - i[None] >= window
    for h in range(heads):
        kv = h // (heads // k.shape[1])
        s = numpy.where(hidden, -numpy.inf, q[:, h] @ k[:, kv].T / math.sqrt(d))
        e = numpy.exp(s - s.max(1, keepdims=True))
        out[:, h] = e / e.sum(1, keepdims=True) @ v[:, kv]
    return out.reshape(n, -1)


ACTIVATIONS = {
    "silu": lambda x: x / (1 + numpy.exp(-x)),
    "gelu": lambda x: .5 * x * (1 + numpy.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_fast": lambda x: .5 * x * (1 + numpy.tanh(math.sqrt(2 / math.pi)
                                                    * (x + .044715 * x ** 3))),
}


def rms(x, w, eps):
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


class Model:
    """One of the cases in f64: config.json and the tensors by transformers' names."""

    def __init__(self, config, tensors):
        self.c = config
        self.t = {k: v.double().numpy() for k, v in tensors.items()}
        self.neox = config["model_type"] == "gpt_neox"
        self.heads = config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads") or self.heads
        self.d = config.get("head_dim") or config["hidden_size"] // self.heads
        self.rope = rope_of(config)
        self.act = ACTIVATIONS[config["hidden_act"]]

    def linear(self, x, name):
        y = x @ self.t[name + ".weight"].T
        return y + self.t[name + ".bias"] if name + ".bias" in self.t else y

    def norm(self, x, name):
        if not self.neox:
            return rms(x, self.t[name + ".weight"], self.c["rms_norm_eps"])
        x = x - x.mean(-1, keepdims=True)
        return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + self.c["layer_norm_eps"]) \
            * self.t[name + ".weight"] + self.t[name + ".bias"]

    def window(self, layer):
        c = self.c
        window = c.get("sliding_window") or 0
        if "use_sliding_window" in c and not c["use_sliding_window"]:
            return 0
        if c.get("layer_types"):
            return window if c["layer_types"][layer] == "sliding_attention" else 0
        if "use_sliding_window" in c:
            return window if layer >= c["max_window_layers"] else 0
        return window

    def attention(self, a, prefix, layer, turn):
        n, p = len(a), prefix + "self_attn."
        if self.neox:
            qkv = self.linear(a, prefix + "attention.query_key_value")
            q, k, v = qkv.reshape(n, self.heads, 3, self.d).transpose(2, 0, 1, 3)
        else:
            if p + "qkv_proj.weight" in self.t:
                rows = self.heads * self.d
                parts = numpy.split(self.linear(a, p + "qkv_proj"),
                                    [rows, rows + self.kv_heads * self.d], axis=1)
            else:
                parts = [self.linear(a, p + x + "_proj") for x in "qkv"]
            q, k, v = (x.reshape(n, -1, self.d) for x in parts)
        if p + "q_norm.weight" in self.t:
            q = rms(q, self.t[p + "q_norm.weight"], self.c["rms_norm_eps"])
            k = rms(k, self.t[p + "k_norm.weight"], self.c["rms_norm_eps"])
        o = attend(rotate(q, *turn), rotate(k, *turn), v, self.window(layer))
        return self.linear(o, prefix + "attention.dense" if self.neox else p + "o_proj")

    def mlp(self, b, prefix):
        p = prefix + "mlp."
        if self.neox:
            return self.linear(self.act(self.linear(b, p + "dense_h_to_4h")), p + "dense_4h_to_h")
        if p + "gate_up_proj.weight" in self.t:
            gate, up = numpy.split(self.linear(b, p + "gate_up_proj"), 2, axis=1)
        else:
            gate, up = (self.linear(b, p + x + "_proj") for x in ("gate", "up"))
        return self.linear(self.act(gate) * up, p + "down_proj")

    def forward(self, ids, long):
        base = "gpt_neox." if self.neox else "model."
        table = self.t[base + ("embed_in" if self.neox else "embed_tokens") + ".weight"]
        turn = frequencies(self.rope, self.d, long)
        x = table[ids]
        for layer in range(self.c["num_hidden_layers"]):
            p = f"{base}layers.{layer}."
            o = self.attention(self.norm(x, p + "input_layernorm"), p, layer, turn)
            parallel = self.neox and self.c["use_parallel_residual"]
            b = self.norm(x if parallel else x + o, p + "post_attention_layernorm")
            x = x + o + self.mlp(b, p)
        x = self.norm(x, base + ("final_layer_norm" if self.neox else "norm"))
        head = self.t.get("embed_out.weight" if self.neox else "lm_head.weight", table)
        return x @ head.T


# ---- checkpoints --------------------------------------------------------------------------------


def draw(name, shape, case, tied, generator):
    """Values that make every tensor matter: norm weights away from 1, biases away from 0, and q and
    k so large that attention is not flat, so that a wrong position or head shows."""
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    if "norm" in name and name.endswith(".weight"):
        return 1 + 0.2 * normal
    if name.endswith(".bias"):
        return 0.2 * normal
    if "embed_tokens" in name or "embed_in" in name:
        return normal * (0.3 if tied else 1) * case.get("scale", 1)
    if any(part in name for part in ("q_proj", "k_proj", "qkv", "query_key_value", "lm_head",
                                     "embed_out")):
        return 0.3 * normal
    return 0.15 * normal


def write_json(directory, name, value):
    with open(os.path.join(directory, name), "w") as f:
        json.dump(value, f, indent=1)
        f.write("\n")


def text_model(config, **options):
    """transformers' model of the configuration, where the directory cannot be read by it."""
    gone = ["architectures", "max_sequence_length"]
    gone += ["pad_token_id"] if config.get("pad_token_id") == -1 else []
    keys = copy.deepcopy(without(config, *gone))  # whose objects it changes
    return transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**keys), **options)


def save(directory, case, state, generator):
    kept = {}
    for name, tensor in state.items():
        for old, new in case.get("prefix", []):
            if name.startswith(old):
                name = new + name[len(old):]
                break
        kept[name] = tensor.contiguous()
    for name in case.get("extra", []):
        kept[name] = torch.randn((3,), generator=generator)
    safetensors.torch.save_file(kept, os.path.join(directory, "model.safetensors"),
                                metadata={"format": "pt"})


def reference(directory, case, config, state):
    """transformers' own reading of the directory, in f64; its parameters must be those drawn."""
    if "prefix" in case or config.get("pad_token_id") == -1:
        model = text_model(config, attn_implementation="eager").double()
        missing, unexpected = model.load_state_dict(state, strict=False)
        if missing or unexpected:
            raise SystemExit(f"{directory}: {missing} {unexpected}")
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float64, attn_implementation="eager")
    loaded = model.state_dict()
    for name, tensor in state.items():
        if not torch.equal(loaded[name], tensor.double()):
            raise SystemExit(f"{directory}: transformers read another {name}")
    return model.eval()


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


def greedy(forward, ids):
    ids, tokens, margin = list(ids), [], float("inf")
    for _ in range(GREEDY_TOKENS):
        logits = forward(ids)[-1]
        first, second = numpy.argsort(logits)[:-3:-1]
        margin = min(margin, logits[first] - logits[second])
        tokens.append(int(first))
        ids.append(tokens[-1])
    return tokens, margin


def make_prompts(name, own, model, generator):
    """Random ids; a prompt whose continuation has a near tie is drawn again."""
    prompts, rows = [], []
    for length in PROMPT_LENGTHS:
        long = length + GREEDY_TOKENS > own.rope["original"]
        for _ in range(1000):
            ids = torch.randint(3, own.c["vocab_size"], (length,), generator=generator).tolist()
            tokens, margin = greedy(lambda i, long=long: own.forward(i, long), ids)
            if margin >= MARGIN and len(set(tokens)) >= 4:
                break
        else:
            raise SystemExit(f"{name}: no prompt of {length} tokens without near ties")
        logits = own.forward(ids, long)
        off = numpy.abs(logits - logits_of(model, ids)).max()
        if not off <= AGREE:
            raise SystemExit(f"{name}: {length} tokens: transformers' logits are {off:.2e} off")
        if greedy(lambda i: logits_of(model, i), ids)[0] != tokens:
            raise SystemExit(f"{name}: {length} tokens: transformers goes on with others")
        prompts.append({"ids": ids, "greedy": tokens, "margin": round(float(margin), 4),
                        "off": off})
        rows.append(logits)
    return prompts, numpy.concatenate(rows)


def make_case(root, name, case):
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    directory = os.path.join(root, name)
    os.makedirs(directory)
    write_json(directory, "config.json", case["config"])
    if "other" in case:
        write_json(directory, "other.json", case["other"])
    config = dict(case["config"].get("text_config", case["config"]))
    tied = config.get("tie_word_embeddings", False)
    shapes = text_model(config).state_dict()
    dtype = DTYPES[case.get("dtype", "bf16")]
    state = {n: draw(n, t.shape, case, tied, generator).to(dtype) for n, t in sorted(shapes.items())
             if not (tied and n in ("lm_head.weight", "embed_out.weight"))}
    save(directory, case, state, generator)
    own = Model(config, state)
    model = reference(directory, case, config, state)
    prompts, rows = make_prompts(name, own, model, generator)
    rows.astype("<f4").tofile(os.path.join(directory, "logits.f32"))
    off = max(p.pop("off") for p in prompts)
    with open(os.path.join(directory, "expected.json"), "w") as f:
        json.dump({"vocab": config["vocab_size"], "logit_rows": len(rows),
                   "logit_deviation": round(float(rows.std()), 3), "prompts": prompts}, f)
        f.write("\n")
    print(f"{name:18} logits deviation {rows.std():6.3f}, transformers {off:.1e} off, margins "
          f"{[p['margin'] for p in prompts]}")


# ---- frequencies of published sizes -------------------------------------------------------------

ROTARY = {
    "plain": (LLAMA, {"head_dim": 128, "max_position_embeddings": 4096}),
    "a large base": (QWEN3, {"head_dim": 128, "max_position_embeddings": 40960}),
    "a quarter of the head": (NEOX, {"hidden_size": 288, "max_position_embeddings": 2048}),
    "linear": (LLAMA, {"head_dim": 64, "rope_scaling": {"type": "linear", "factor": 8.0}}),
    "dynamic": (LLAMA, {"head_dim": 64, "rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    "bands": (LLAMA, {"head_dim": 128, "rope_theta": 500000.0, "max_position_embeddings": 131072,
                      "rope_scaling": dict(BANDS, original_max_position_embeddings=8192)}),
    "bands of a small one": (LLAMA, {"head_dim": 64, "rope_theta": 500000.0,
                                     "max_position_embeddings": 131072,
                                     "rope_scaling": dict(BANDS, factor=32.0,
                                                          original_max_position_embeddings=8192)}),
    "yarn": (QWEN2, {"head_dim": 128, "max_position_embeddings": 32768,
                     "rope_scaling": {"type": "yarn", "factor": 4.0,
                                      "original_max_position_embeddings": 32768}}),
    "yarn without a factor": (LLAMA, {"head_dim": 64, "max_position_embeddings": 65536,
                                      "rope_scaling": {"type": "yarn", "factor": None,
                                                       "original_max_position_embeddings": 4096}}),
    "yarn, scaled": (LLAMA, {"head_dim": 64, "max_position_embeddings": 163840,
                             "rope_scaling": {"type": "yarn", "factor": 40.0, "beta_fast": 32,
                                              "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.5,
                                              "original_max_position_embeddings": 4096}}),
    "yarn, not truncated": (LLAMA, {"head_dim": 64, "max_position_embeddings": 131072,
                                    "rope_theta": 150000.0,
                                    "rope_scaling": {"rope_type": "yarn", "factor": 32.0,
                                                     "truncate": False, "attention_factor": 1.25,
                                                     "beta_fast": 24.0, "beta_slow": 2.5,
                                                     "original_max_position_embeddings": 4096}}),
    "long": (PHI3, {"hidden_size": 384, "max_position_embeddings": 131072,
                    "original_max_position_embeddings": 4096,
                    "rope_scaling": {"type": "longrope",
                                     "short_factor": [1 + i / 64 for i in range(48)],
                                     "long_factor": [1.08 + i * i / 40 for i in range(48)]}}),
    "long, with a factor": (PHI3, {"hidden_size": 64, "max_position_embeddings": 131072,
                                   "original_max_position_embeddings": 4096,
                                   "rope_scaling": {"type": "su", "factor": 16.0,
                                                    "short_factor": [1.0] * 8,
                                                    "long_factor": [4.5] * 8}}),
}


def rotary_rows():
    rows = []
    for name, (base, changes) in ROTARY.items():
        config = dict(base, **changes)
        rope = rope_of(config)
        if rope["kind"] == "yarn" and not rope.get("factor"):
            rope["factor"] = rope["max"] / rope["original"]
        head_dim = config.get("head_dim") or \
            config["hidden_size"] // config["num_attention_heads"]
        tables = [frequencies(rope, head_dim, long)
                  for long in ([False, True] if rope["kind"] == "longrope" else [False])]
        rows.append({"name": name, "config": config, "dims": int(head_dim * rope["share"]),
                     "long_from": rope["original"] if rope["kind"] == "longrope" else 0,
                     "factors": [t[1] for t in tables],
                     "frequencies": [t[0].tolist() for t in tables]})
    return rows


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "families")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    only = sys.argv[2:]
    for name in only:
        shutil.rmtree(os.path.join(root, name), ignore_errors=True)
    if not only:
        shutil.rmtree(root, ignore_errors=True)
    os.makedirs(root, exist_ok=True)
    for name, case in CASES.items():
        if not only or name in only:
            make_case(root, name, case)
    write_json(root, "rotary.json", rotary_rows())
    with open(os.path.join(root, "VERSIONS"), "w") as f:
        f.write(f"torch {torch.__version__}\ntransformers {transformers.__version__}\n"
                f"safetensors {safetensors.__version__}\nnumpy {numpy.__version__}\n")


if __name__ == "__main__":
    main()
