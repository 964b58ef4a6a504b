#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/quantised: checkpoints of tests/golden/families with their matrices quantised in
each of the forms that are read, with SHA-256 of every decoded matrix in f32, and logits in f64 and
greedy tokens of the decoded matrices.

Quantising and decoding are written out here, loop by loop, from what the forms' own programs do:

  fp8         transformers 5.2, integrations/finegrained_fp8.py and fbgemm_fp8.py
  awq         AutoAWQ 0.2.9, awq/modules/linear/gemm.py, awq/utils/packing_utils.py
  gptq        GPTQModel 7.7, nn_modules/qlinear/__init__.py (pack_original), qlinear/torch.py,
              utils/model.py (formats gptq and gptq_v2)
  compressed-tensors 0.20, compressors/naive_quantized and pack_quantized

`--check SITE...` compares with AutoAWQ 0.2.9 (packing and decoding; its products in f32, not f16) and
compressed-tensors 0.20 (decoding), where they are installed in the folders SITE, and with the shifts
of GPTQModel's torch product, written down here: all were the same, bit for bit.

Needs what make_families.py needs.

    python3 make_quantised.py [output directory [case ...]]
    python3 make_quantised.py --check SITE...
"""

import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import types
import zlib

import numpy
import safetensors
import safetensors.torch
import torch
import transformers

import make_families as families

families.PROMPT_LENGTHS = [1, 17]
F32 = numpy.float32
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def scale_dtype(values, dtype):
    return torch.from_numpy(numpy.asarray(values, dtype=F32)).to(dtype)


def f32(tensor):
    return tensor.to(torch.float32).numpy()


# ---- elements of one byte ------------------------------------------------------------------------


def e4m3(code):
    """Sign, 4 bits of exponent (bias 7), 3 of fraction."""
    exponent, fraction = code >> 3 & 15, code & 7
    value = (8 + fraction) * 2.0 ** (exponent - 10) if exponent else fraction * 2.0 ** -9
    return -value if code & 128 else value


E4M3 = numpy.array([e4m3(c) if c & 127 != 127 else numpy.nan for c in range(256)], dtype=F32)


def blocks_of(w, rows, columns):
    for r in range(0, w.shape[0], rows):
        for k in range(0, w.shape[1], columns):
            yield r // rows, k // columns, slice(r, r + rows), slice(k, k + columns)


def quantise_bytes(w, block, dtype, scales, names):
    """A scale for each block: the largest value is the largest element.  block None: one."""
    rows, columns = block or w.shape
    rows, columns = rows or w.shape[0], columns or w.shape[1]
    grid = numpy.zeros((-(-w.shape[0] // rows), -(-w.shape[1] // columns)), dtype=F32)
    for r, k, i, j in blocks_of(w, rows, columns):
        grid[r, k] = numpy.abs(w[i, j]).max() / (448 if dtype == "e4m3" else 127)
    scale = scale_dtype(grid, scales)
    codes = numpy.zeros(w.shape, dtype=numpy.uint8)
    decoded = numpy.zeros(w.shape, dtype=F32)
    for r, k, i, j in blocks_of(w, rows, columns):
        x, s = w[i, j], f32(scale)[r, k]
        if dtype == "e4m3":
            near = torch.from_numpy((x / s).clip(-448, 448)).to(torch.float8_e4m3fn)
            codes[i, j] = near.view(torch.uint8).numpy()
            decoded[i, j] = E4M3[codes[i, j]] * s
        else:
            codes[i, j] = numpy.rint(x / s).clip(-127, 127).astype(numpy.int8).view(numpy.uint8)
            decoded[i, j] = codes[i, j].view(numpy.int8).astype(F32) * s
    kept = torch.from_numpy(codes).view(torch.float8_e4m3fn if dtype == "e4m3" else torch.int8)
    if block is None:
        scale = scale.reshape(())
    return {".weight": kept, names: scale}, decoded


# ---- codes in groups along k ---------------------------------------------------------------------


def group_codes(w, group, bits, symmetric, of, scales):
    """Codes [rows][k], scales and zeros [rows][groups] of the columns' groups `of`."""
    top, groups = 2 ** bits - 1, max(of) + 1
    scale = numpy.zeros((w.shape[0], groups), dtype=F32)
    zero = numpy.zeros((w.shape[0], groups), dtype=numpy.int64)
    for row in range(w.shape[0]):
        for g in range(groups):
            x = w[row, [k for k in range(w.shape[1]) if of[k] == g]]
            low, high = min(x.min(), 0), max(x.max(), 0)
            if symmetric:
                high = max(-low, high)
                low = -high
            scale[row, g] = (high - low) / top
            zero[row, g] = 2 ** (bits - 1) if symmetric else round(-low / scale[row, g])
    scale = scale_dtype(scale, scales)
    codes = numpy.zeros(w.shape, dtype=numpy.int64)
    decoded = numpy.zeros(w.shape, dtype=F32)
    wide = f32(scale)
    for row in range(w.shape[0]):
        for k in range(w.shape[1]):
            s, z = wide[row, of[k]], zero[row, of[k]]
            codes[row, k] = min(max(round(float(w[row, k] / s)) + z, 0), top)
            decoded[row, k] = F32(codes[row, k] - z) * s
    return codes, scale, zero, decoded


def words(values, bits, order=None):
    """Codes along the last dimension, 32 / bits a word, code order[i] at bit i * bits."""
    each = 32 // bits
    order = order or list(range(each))
    lines, count = values.shape
    packed = numpy.zeros((lines, -(-count // each)), dtype=numpy.uint32)
    for line in range(lines):
        for word in range(packed.shape[1]):
            for i in range(each):
                at = word * each + order[i]
                if at < count:
                    packed[line, word] |= numpy.uint32(int(values[line, at]) << (i * bits))
    return torch.from_numpy(packed.view(numpy.int32))


def quantise_awq(w, group):
    of = [k // group for k in range(w.shape[1])]
    codes, scale, zero, decoded = group_codes(w, group, 4, False, of, torch.float16)
    return {".qweight": words(codes.T, 4, AWQ_ORDER), ".qzeros": words(zero.T, 4, AWQ_ORDER),
            ".scales": scale.T.contiguous()}, decoded


def quantise_gptq(w, group, bits, symmetric, order, version, generator):
    """order: the groups are of columns in a random order, as with desc_act."""
    size = group if group > 0 else w.shape[1]
    of = [k // size for k in range(w.shape[1])]
    if order:
        of = [of[i] for i in torch.randperm(len(of), generator=generator).tolist()]
    codes, scale, zero, decoded = group_codes(w, group, bits, symmetric, of, torch.float16)
    zeros = words(zero.T, bits).numpy().view(numpy.uint32)
    if version == 1:  # one less in every code of a word, as one subtraction of words does it
        zeros = zeros - numpy.uint32(sum(1 << i * bits for i in range(32 // bits)))
    kept = {".qweight": words(codes, bits).T.contiguous(), ".scales": scale.T.contiguous(),
            ".qzeros": torch.from_numpy(zeros.view(numpy.int32))}
    if order is not None:
        kept[".g_idx"] = torch.tensor(of, dtype=torch.int32)
    return kept, decoded


def quantise_packed(w, group, bits, symmetric, order, scales, generator):
    size = group or w.shape[1]
    of = [k // size for k in range(w.shape[1])]
    if order:
        of = [of[i] for i in torch.randperm(len(of), generator=generator).tolist()]
    codes, scale, zero, decoded = group_codes(w, group, bits, symmetric, of, scales)
    kept = {".weight_packed": words(codes, bits), ".weight_scale": scale,
            ".weight_shape": torch.tensor(w.shape, dtype=torch.int64)}
    if not symmetric:
        kept[".weight_zero_point"] = words(zero.T, bits).T.contiguous()
    if order:
        kept[".weight_g_idx"] = torch.tensor(of, dtype=torch.int32)
    return kept, decoded


# ---- cases ---------------------------------------------------------------------------------------


def compressed(form, weights, **more):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None,
             "output_activations": None}
    return dict({"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
                 "quantization_status": "compressed", "kv_cache_scheme": None,
                 "config_groups": {"group_0": dict(group, **more.pop("group", {}))}}, **more)


DYNAMIC = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}
CT_INT = {"type": "int", "dynamic": False, "observer": "minmax"}

# name -> the family's case; quantization_config; how a matrix is quantised (w, generator); and
#   extra    tensors beside each quantised matrix (ending, value), or beside attention (name, value)
#   shards   files
CASES = {
    "fp8_blocks": dict(
        base="qwen3", config={"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                              "weight_block_size": [32, 32], "modules_to_not_convert": ["lm_head"]},
        make=lambda w, g: quantise_bytes(w, (32, 32), "e4m3", torch.float32, ".weight_scale_inv")),
    "fp8_tensors": dict(
        base="mistral", config={"quant_method": "fp8", "activation_scheme": "static",
                                "ignored_layers": ["lm_head"]},
        make=lambda w, g: quantise_bytes(w, None, "e4m3", torch.float32, ".weight_scale"),
        extra=[(".input_scale", 0.0125)]),
    "fp8_rows": dict(
        base="llama_tied", config={"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0,
                                   "modules_to_not_convert": ["lm_head"]},
        make=lambda w, g: quantise_bytes(w, (1, 0), "e4m3", torch.float32, ".weight_scale")),
    "compressed_fp8": dict(
        base="phi3", config=compressed(
            "float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel",
                                "symmetric": True, "dynamic": False},
            group={"input_activations": DYNAMIC},
            kv_cache_scheme={"num_bits": 8, "type": "float", "strategy": "tensor"}),
        make=lambda w, g: quantise_bytes(w, (1, 0), "e4m3", torch.bfloat16, ".weight_scale"),
        attention=[".k_scale", ".v_scale"]),
    "compressed_int8": dict(
        base="qwen2_layer_types", config=compressed(
            "int-quantized", dict(CT_INT, num_bits=8, strategy="channel", symmetric=True)),
        make=lambda w, g: quantise_bytes(w, (1, 0), "int8", torch.bfloat16, ".weight_scale")),
    "awq": dict(
        base="mistral_wide", config={"quant_method": "awq", "bits": 4, "group_size": 16,
                                     "version": "gemm", "zero_point": True,
                                     "modules_to_not_convert": None},
        make=lambda w, g: quantise_awq(w, 16), shards=2),
    "gptq_order": dict(
        base="llama_1", config={"quant_method": "gptq", "bits": 4, "group_size": 16, "sym": True,
                                "desc_act": True, "checkpoint_format": "gptq"},
        make=lambda w, g: quantise_gptq(w, 16, 4, True, True, 1, g), zero_biases=True),
    "gptq_v2": dict(
        base="neox", config={"quant_method": "gptq", "bits": 4, "group_size": 16, "sym": False,
                             "desc_act": False, "checkpoint_format": "gptq_v2"},
        make=lambda w, g: quantise_gptq(w, 16, 4, False, False, 2, g), shards=3),
    "gptq_8": dict(
        base="llama_small", config={"quant_method": "gptq", "bits": 8, "group_size": -1,
                                    "sym": False, "desc_act": False},
        make=lambda w, g: quantise_gptq(w, -1, 8, False, None, 1, g)),
    "packed": dict(
        base="qwen3_tied", config=compressed(
            "pack-quantized", dict(CT_INT, num_bits=4, strategy="group", group_size=16,
                                   symmetric=True)),
        make=lambda w, g: quantise_packed(w, 16, 4, True, False, torch.bfloat16, g)),
    "packed_order": dict(
        base="phi3", config=compressed(
            "pack-quantized", dict(CT_INT, num_bits=4, strategy="group", group_size=16,
                                   symmetric=False, actorder="group")),
        make=lambda w, g: quantise_packed(w, 16, 4, False, True, torch.float16, g)),
    "packed_8": dict(
        base="neox_sequential", config=compressed(
            "pack-quantized", dict(CT_INT, num_bits=8, strategy="channel", symmetric=True)),
        make=lambda w, g: quantise_packed(w, 0, 8, True, False, torch.float32, g)),
}

PLAIN = ("embed_tokens.weight", "lm_head.weight", "embed_in.weight", "embed_out.weight")


def quantise(case, plain, generator):
    """The tensors as they are kept, those as they are meant, and the decoded matrices."""
    kept, meant, decoded = {}, {}, {}
    for name, tensor in plain.items():
        if tensor.ndim != 2 or name.endswith(PLAIN):
            kept[name] = tensor
            meant[name] = tensor.float()
            continue
        parts, decoded[name] = case["make"](f32(tensor), generator)
        module = name[:-len(".weight")]
        meant[name] = torch.from_numpy(decoded[name])
        kept.update({module + ending: t for ending, t in parts.items()})
        kept.update({module + e: torch.tensor(v) for e, v in case.get("extra", [])})
        if case.get("zero_biases"):
            kept[module + ".bias"] = torch.zeros(tensor.shape[0], dtype=torch.float16)
        if name.endswith("o_proj.weight"):
            kept.update({module.rsplit(".", 1)[0] + e: torch.tensor([0.03])
                         for e in case.get("attention", [])})
    return kept, meant, decoded


def save(directory, kept, shards):
    kept = {n: t.contiguous() for n, t in sorted(kept.items())}
    if shards == 1:
        safetensors.torch.save_file(kept, os.path.join(directory, "model.safetensors"),
                                    metadata={"format": "pt"})
        return
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(kept.items())[i::shards])  # a matrix's parts lie in different files
        weight_map.update({n: file for n in part})
        safetensors.torch.save_file(part, os.path.join(directory, file), metadata={"format": "pt"})
    families.write_json(directory, "model.safetensors.index.json",
                        {"metadata": {}, "weight_map": weight_map})


def make_case(root, name, case):
    base = os.path.join(os.path.dirname(os.path.abspath(__file__)), "families", case["base"])
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    with open(os.path.join(base, "config.json")) as f:
        config = json.load(f)
    plain = safetensors.torch.load_file(os.path.join(base, "model.safetensors"))
    plain = {n: t for n, t in plain.items() if t.ndim and not n.endswith(
        ("inv_freq", ".attention.bias", ".masked_bias"))}
    kept, meant, decoded = quantise(case, plain, generator)
    directory = os.path.join(root, name)
    os.makedirs(directory)
    save(directory, kept, case.get("shards", 1))
    families.write_json(directory, "config.json",
                        dict(config, quantization_config=case["config"]))
    own = families.Model(config, meant)
    with tempfile.TemporaryDirectory() as there:  # transformers reads the decoded matrices
        families.write_json(there, "config.json", dict(config, torch_dtype="float32"))
        safetensors.torch.save_file(meant, os.path.join(there, "model.safetensors"),
                                    metadata={"format": "pt"})
        model = families.reference(there, {}, config, meant)
    prompts, rows = families.make_prompts(name, own, model, generator)
    rows.astype("<f4").tofile(os.path.join(directory, "logits.f32"))
    off = max(p.pop("off") for p in prompts)
    digests = {n: [*w.shape, hashlib.sha256(w.astype("<f4").tobytes()).hexdigest()]
               for n, w in decoded.items()}
    with open(os.path.join(directory, "expected.json"), "w") as f:
        json.dump({"vocab": config["vocab_size"], "logit_rows": len(rows),
                   "logit_deviation": round(float(rows.std()), 3), "prompts": prompts,
                   "decoded": digests}, f)
        f.write("\n")
    errors = [numpy.abs(w - f32(plain[n])).max() / numpy.abs(w).max() for n, w in decoded.items()]
    print(f"{name:16} {len(decoded):3} matrices, quantised within {max(errors):.4f}, logits "
          f"deviation {rows.std():6.3f}, transformers {off:.1e} off, margins "
          f"{[p['margin'] for p in prompts]}")


# ---- the libraries -------------------------------------------------------------------------------


def same(what, a, b):
    if not torch.equal(torch.as_tensor(a), torch.as_tensor(b)):
        raise SystemExit(f"{what}: another result")
    print(f"{what}: the same")


def check_awq(w):
    """AutoAWQ imports models that newer transformers lack: its two files alone."""
    def load(path, name):
        for site in sys.path:
            at = os.path.join(site, path)
            if os.path.exists(at):
                spec = importlib.util.spec_from_file_location(name, at)
                module = importlib.util.module_from_spec(spec)
                sys.modules[name] = module
                spec.loader.exec_module(module)
                return module
        raise SystemExit(f"{path} is not there")
    for name in ("awq", "awq.utils", "awq.modules", "awq.modules.triton"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["awq.utils.module"] = types.ModuleType("awq.utils.module")
    sys.modules["awq.utils.module"].try_import = lambda name: (None, "")
    sys.modules["awq.utils.utils"] = types.ModuleType("awq.utils.utils")
    sys.modules["awq.utils.utils"].get_best_device = lambda: "cpu"
    packing = load("awq/utils/packing_utils.py", "awq.utils.packing_utils")
    gemm = load("awq/modules/linear/gemm.py", "awq_gemm")
    kept, decoded = quantise_awq(w, 16)
    of = [k // 16 for k in range(w.shape[1])]
    _, scale, zero, _ = group_codes(w, 16, 4, False, of, torch.float16)
    linear = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
    linear.weight.data = torch.from_numpy(decoded)
    theirs = gemm.WQLinear_GEMM.from_linear(
        linear, 4, 16, scales=scale.T.float(), zeros=torch.from_numpy(zero.T.astype(F32)))
    same("awq: packed codes", theirs.qweight, kept[".qweight"])
    same("awq: packed zeros", theirs.qzeros, kept[".qzeros"])
    back = packing.dequantize_gemm(kept[".qweight"], kept[".qzeros"], kept[".scales"].float(), 4, 16)
    same("awq: decoded", back.T, decoded)


def check_compressed(w, generator):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    for form, args, mine in (
            ("pack-quantized", dict(num_bits=4, strategy="group", group_size=16, symmetric=True),
             quantise_packed(w, 16, 4, True, False, torch.float32, generator)),
            ("pack-quantized", dict(num_bits=4, strategy="group", group_size=16, symmetric=False),
             quantise_packed(w, 16, 4, False, False, torch.float32, generator)),
            ("pack-quantized", dict(num_bits=8, strategy="channel", symmetric=True),
             quantise_packed(w, 0, 8, True, False, torch.float32, generator)),
            ("float-quantized", dict(num_bits=8, type="float", strategy="channel"),
             quantise_bytes(w, (1, 0), "e4m3", torch.float32, ".weight_scale")),
            ("int-quantized", dict(num_bits=8, strategy="channel"),
             quantise_bytes(w, (1, 0), "int8", torch.float32, ".weight_scale"))):
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
        tool = BaseCompressor.get_value_from_registry(form)
        kept, decoded = mine
        back = tool.decompress({n[1:]: t for n, t in kept.items()}, scheme)["weight"]
        same(f"{form} {args}: decoded", back, decoded)


def check_gptq(w, generator):
    """GPTQModel's torch product decodes with these shifts (nn_modules/qlinear/torch.py)."""
    for bits in (4, 8):
        kept, decoded = quantise_gptq(w, 16, bits, False, True, 1, generator)
        wf = torch.arange(0, 32, bits, dtype=torch.int32)
        zeros = kept[".qzeros"] + (0x11111111 if bits == 4 else 0x01010101)
        zeros = torch.bitwise_right_shift(zeros[:, :, None], wf[None, None, :]) & (2 ** bits - 1)
        codes = torch.bitwise_right_shift(kept[".qweight"][:, None, :], wf[None, :, None])
        codes = (codes & (2 ** bits - 1)).reshape(-1, w.shape[0])
        of = kept[".g_idx"].long()
        zeros = zeros.reshape(zeros.shape[0], -1)
        back = kept[".scales"].float()[of] * (codes - zeros[of])
        same(f"gptq, {bits} bits: decoded", back.T, decoded)


def check(sites):
    sys.path[1:1] = sites
    generator = torch.Generator().manual_seed(1)
    w = torch.randn((40, 64), generator=generator).numpy()
    codes = torch.arange(256, dtype=torch.uint8)
    numbers = ~numpy.isnan(E4M3)
    same("e4m3", codes.view(torch.float8_e4m3fn).float()[numbers], E4M3[numbers])
    check_gptq(w, generator)
    check_compressed(w, generator)
    check_awq(w[:32])


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    if sys.argv[1:2] == ["--check"]:
        return check(sys.argv[2:])
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "quantised")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    only = sys.argv[2:]
    for name in only or [""]:
        shutil.rmtree(os.path.join(root, name), ignore_errors=True)
    os.makedirs(root, exist_ok=True)
    for name, case in CASES.items():
        if not only or name in only:
            make_case(root, name, case)
    with open(os.path.join(root, "VERSIONS"), "w") as f:
        f.write(f"torch {torch.__version__}\ntransformers {transformers.__version__}\n"
                f"safetensors {safetensors.__version__}\nnumpy {numpy.__version__}\n")


if __name__ == "__main__":
    main()
