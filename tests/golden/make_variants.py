#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/data: tiny random OPT checkpoints of every architecture variant and file
layout, each with the logits and greedy tokens that transformers computes from the same directory.

Needs torch, transformers and safetensors (any recent versions; those used are noted in
data/VERSIONS).  Deterministic: weights come from a generator seeded with the variant's name.

    python3 make_variants.py [output directory]
"""

import json
import os
import shutil
import sys
import zlib

import numpy
import safetensors.torch
import torch
import transformers

BASE = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "activation_function": "relu",
    "vocab_size": 131,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_dim": 72,
    "max_position_embeddings": 40,
    "word_embed_proj_dim": 32,
    "do_layer_norm_before": True,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "prefix": "</s>",
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "init_std": 0.02,
    "layerdrop": 0.0,
    "use_cache": True,
    "torch_dtype": "float16",
}

PROMPT_LENGTHS = [1, 7, 24]
GREEDY_TOKENS = 16  # 24 + 16: the longest prompt fills the context
MARGIN = 0.02       # every greedy choice wins by this much: rounding cannot change it

# name -> changed config keys; how the tensors are kept:
#   dtype    f16, bf16, f32, or mixed (f16 matrices, f32 vectors)
#   files    safetensors or bin, and in how many shards
#   prefix   of all tensors but lm_head
#   rename   [(part of a name, its replacement)]: metaseq's names
#   extra    further tensors: "lm_head" is a copy of the tied embedding, "unused" what old
#            checkpoints carry along
VARIANTS = {
    "prenorm": dict(files=("safetensors", 1), prefix="model.decoder."),
    "postnorm_projected": dict(
        config=dict(do_layer_norm_before=False, word_embed_proj_dim=20),
        files=("bin", 1), prefix="decoder."),
    "prenorm_projected": dict(
        config=dict(word_embed_proj_dim=48),
        files=("bin", 2), prefix="decoder.",
        rename=[("decoder.final_layer_norm", "decoder.layer_norm"),
                ("project_in", "project_in_dim"), ("project_out", "project_out_dim")]),
    "bare_names": dict(files=("safetensors", 1), prefix=""),
    "untied_gelu": dict(
        config=dict(tie_word_embeddings=False, activation_function="gelu"),
        files=("safetensors", 1), prefix="model.decoder."),
    "tied_with_lm_head": dict(files=("bin", 3), prefix="model.decoder.", extra=["lm_head"]),
    "biasless_gelu_new": dict(
        config=dict(enable_bias=False, activation_function="gelu_new"),
        files=("safetensors", 3), prefix="model.decoder."),
    "plain_norms": dict(
        config=dict(layer_norm_elementwise_affine=False),
        files=("safetensors", 1), prefix="decoder."),
    "no_final_norm": dict(
        config=dict(_remove_final_layer_norm=True),
        files=("safetensors", 1), prefix="model.decoder."),
    "bf16": dict(
        config=dict(torch_dtype="bfloat16"), dtype="bf16",
        files=("safetensors", 1), prefix="decoder.", extra=["lm_head"]),
    "bf16_bin": dict(
        config=dict(torch_dtype="bfloat16", activation_function="silu"), dtype="bf16",
        files=("bin", 1), prefix="model.decoder."),
    "f32": dict(
        config=dict(torch_dtype="float32"), dtype="f32",
        files=("bin", 1), prefix="decoder."),
    "mixed_dtypes": dict(dtype="mixed", files=("safetensors", 2), prefix="model.decoder."),
    "odd_sizes": dict(
        config=dict(vocab_size=101, hidden_size=33, word_embed_proj_dim=33, num_attention_heads=3,
                    ffn_dim=45, num_hidden_layers=3),
        files=("safetensors", 1), prefix="model.decoder."),
    "head_dim_80": dict(
        config=dict(vocab_size=67, hidden_size=80, word_embed_proj_dim=80, num_attention_heads=1,
                    ffn_dim=40, num_hidden_layers=1),
        files=("safetensors", 1), prefix="model.decoder."),
    "biasless_postnorm_plain_untied": dict(
        config=dict(do_layer_norm_before=False, enable_bias=False, tie_word_embeddings=False,
                    layer_norm_elementwise_affine=False),
        files=("bin", 1), prefix="model.decoder."),
}

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


def draw(name, shape, generator):
    """Values that make every tensor matter: nothing zero, no norm weight close to one."""
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    if "norm.weight" in name:
        return 1 + 0.3 * normal
    if name.endswith(".bias"):
        return 0.2 * normal
    if "embed_positions" in name:
        return 0.3 * normal
    return normal * (0.5 if "embed_tokens" in name or "lm_head" in name else 0.2)


def make_state(config, dtype, generator):
    """Tensors by their names in OPTForCausalLM, rounded to what the files will hold."""
    model = transformers.OPTForCausalLM(transformers.OPTConfig(**config))
    tied = config.get("tie_word_embeddings", True)
    state = {}
    for name, tensor in sorted(model.state_dict().items()):
        if name == "lm_head.weight" and tied:
            continue
        kept = dtype
        if dtype == "mixed":
            kept = "f32" if tensor.dim() == 1 else "f16"
        state[name] = draw(name, tensor.shape, generator).to(DTYPES[kept])
    return state


def kept_state(state, variant):
    """The same tensors under the names this variant's files use."""
    kept = {}
    for name, tensor in state.items():
        new = name.replace("model.decoder.", variant["prefix"])
        for old, replacement in variant.get("rename", []):
            new = new.replace(old, replacement)
        kept[new] = tensor.contiguous()
    if "lm_head" in variant.get("extra", []):
        kept["lm_head.weight"] = state["model.decoder.embed_tokens.weight"].clone()
    return kept


def save(directory, kept, kind, shards):
    base, suffix = ("model", "safetensors") if kind == "safetensors" else ("pytorch_model", "bin")

    def save_one(tensors, path):
        if kind == "safetensors":
            safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
        else:
            torch.save(tensors, path)

    if shards == 1:
        save_one(kept, os.path.join(directory, f"{base}.{suffix}"))
        return
    names = list(kept)
    weight_map = {}
    for i in range(shards):
        part = f"{base}-{i + 1:05d}-of-{shards:05d}.{suffix}"
        share = names[len(names) * i // shards:len(names) * (i + 1) // shards]
        save_one({n: kept[n] for n in share}, os.path.join(directory, part))
        weight_map.update({n: part for n in share})
    total = sum(t.numel() * t.element_size() for t in kept.values())
    with open(os.path.join(directory, f"{base}.{suffix}.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f, indent=1)
        f.write("\n")


def load_reference(directory, config, state, variant):
    """transformers' own reading of the directory, in f64; its parameters must be those drawn, so
    that a name it does not know cannot go unnoticed.  Names that only metaseq's files or stores
    have are given to it directly."""
    if "rename" in variant or not variant["prefix"]:
        model = transformers.OPTForCausalLM(transformers.OPTConfig(**config)).double()
        missing, unexpected = model.load_state_dict(state, strict=False)
        if unexpected or missing not in ([], ["lm_head.weight"]):
            raise SystemExit(f"{directory}: {missing} {unexpected}")
    else:
        model = transformers.OPTForCausalLM.from_pretrained(directory, dtype=torch.float64)
    loaded = model.state_dict()
    for name, tensor in state.items():
        if not torch.equal(loaded[name], tensor.double()):
            raise SystemExit(f"{directory}: transformers read another {name}")
    return model.eval()


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def greedy(model, ids):
    ids, tokens, margin = list(ids), [], float("inf")
    for _ in range(GREEDY_TOKENS):
        top = torch.topk(logits_of(model, ids)[-1], 2)
        margin = min(margin, float(top.values[0] - top.values[1]))
        tokens.append(int(top.indices[0]))
        ids.append(tokens[-1])
    return tokens, margin


def make_prompts(model, config, generator):
    """Random ids; a prompt whose continuation has a near tie is drawn again."""
    prompts = []
    for length in PROMPT_LENGTHS:
        for _ in range(1000):
            ids = torch.randint(3, config["vocab_size"], (length,), generator=generator).tolist()
            ids[0] = 2
            if length == 1:
                ids[0] = int(torch.randint(3, config["vocab_size"], (1,), generator=generator))
            tokens, margin = greedy(model, ids)
            if margin >= MARGIN and len(set(tokens)) >= 4:
                break
        else:
            raise SystemExit(f"no prompt of {length} tokens without near ties")
        prompts.append({"ids": ids, "greedy": tokens, "margin": round(margin, 4)})
    return prompts


def make_variant(root, name, variant):
    seed = zlib.crc32(name.encode())
    generator = torch.Generator().manual_seed(seed)
    config = dict(BASE, **variant.get("config", {}))
    directory = os.path.join(root, name)
    os.makedirs(directory)
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
        f.write("\n")
    state = make_state(config, variant.get("dtype", "f16"), generator)
    save(directory, kept_state(state, variant), *variant["files"])
    model = load_reference(directory, config, state, variant)
    prompts = make_prompts(model, config, generator)
    rows = torch.cat([logits_of(model, p["ids"]) for p in prompts])
    rows.to(torch.float32).numpy().astype("<f4").tofile(os.path.join(directory, "logits.f32"))
    with open(os.path.join(directory, "expected.json"), "w") as f:
        json.dump({"vocab": config["vocab_size"], "logit_rows": len(rows),
                   "logit_deviation": round(float(rows.std()), 3), "prompts": prompts}, f)
        f.write("\n")
    print(f"{name:32} logits deviation {float(rows.std()):6.3f}, margins "
          f"{[p['margin'] for p in prompts]}")


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "data")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.use_deterministic_algorithms(True)
    shutil.rmtree(root, ignore_errors=True)
    os.makedirs(root)
    for name, variant in VARIANTS.items():
        make_variant(root, name, variant)
    with open(os.path.join(root, "VERSIONS"), "w") as f:
        f.write(f"torch {torch.__version__}\ntransformers {transformers.__version__}\n"
                f"safetensors {safetensors.__version__}\nnumpy {numpy.__version__}\n")


if __name__ == "__main__":
    main()
