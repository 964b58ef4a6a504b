# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks here share: the program run and its document read, lines that must reach something, rows
that are kept as they finish, and results written as NAME.json and NAME.md.

Needs nothing but Python's standard library."""
import json
import os
import random
import shlex
import subprocess
import sys
import time


def program(build):
    return os.path.join(build, "engine", "cli", "aquifer")


def note(text):
    print(text, file=sys.stderr, flush=True)


def text_of(words, **how):
    """Standard output of a command that must succeed; the command itself goes to standard error."""
    words = [str(w) for w in words]
    note("+ " + " ".join(map(shlex.quote, words)))
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, **how).stdout


def json_of(words, **how):
    return json.loads(text_of(words, **how))


def bench(build, args, **how):
    """One row of `aquifer bench` with random weights, as its report."""
    return json_of([program(build), "bench", "--random-weights", "1", "--json", *args], **how)


def random_ids(draw, count):
    return [draw.randrange(10, 50000) for _ in range(count)]


def records(count, prompts, news):
    """Prompts of random ids, with lengths and new tokens from .. to; the same for the same count."""
    draw = random.Random(count)
    for i in range(count):
        ids = random_ids(draw, draw.randint(*prompts))
        yield {"id": i, "prompt": ids, "max_tokens": draw.randint(*news), "ignore_eos": True}


def job(build, args, folder, lines):
    """A job of `aquifer generate` over these records, as its report; results are in out.jsonl of the folder.  With
    --dry-run among args what is planned and predicted."""
    source, out, report = (os.path.join(folder, n) for n in ("in.jsonl", "out.jsonl", "report.json"))
    with open(source, "w", encoding="utf-8") as f:
        for line in lines:
            f.write(json.dumps(line) + "\n")
    words = [program(build), "generate", "--input", source, "--output", out, "--overwrite"]
    if "--dry-run" in args:
        return json_of([*words, "--json", *args])
    text_of([*words, "--report", report, *args])
    with open(report, encoding="utf-8") as f:
        return json.load(f)


def generate(build, args, folder, count, prompts, news):
    return job(build, args, folder, records(count, prompts, news))


def spread(weights="100/0/0", kv="100/0/0", hidden="100/0/0", head="device"):
    return ["--placement", f"weights={weights} kv={kv} hidden={hidden} head={head}"]


def model(shape, prompt, gen, batch, batches=1):
    """A shape, and as many requests as one block has seats."""
    return ["--shape", shape, "--prompt-len", prompt, "--gen-len", gen, "--micro-batch", batch, "--micro-batches",
            batches, "--requests", batch * batches]


def probe(build, path, words=()):
    """The machine as it is now, into `path`: what the next run is predicted from."""
    text_of([program(build), "probe", "--quick", "--output", path, "--quiet", *words])


def version(build):
    return text_of([program(build), "--version"]).decode().strip()


def seats(r):
    return r["plan"]["micro_batch"] * r["plan"]["micro_batches"]


def decode_pass_s(r):
    """Seconds of a decode pass: every repeat decodes gen - 1 times with all seats."""
    return seats(r) / r["decode_tok_s"]


def opt_shape(layers, hidden=4096, heads=32, vocab=50272):
    """A config.json of OPT's shape; the widths are opt-6.7b's unless said otherwise."""
    return dict(model_type="opt", architectures=["OPTForCausalLM"], vocab_size=vocab, hidden_size=hidden,
                ffn_dim=4 * hidden, num_attention_heads=heads, num_hidden_layers=layers,
                max_position_embeddings=2048, word_embed_proj_dim=hidden, do_layer_norm_before=True,
                activation_function="relu", torch_dtype="float16", bos_token_id=2, eos_token_id=2, pad_token_id=1)


def llama_shape(layers, hidden, inner, heads, kv_heads, vocab, kind="llama", **more):
    """The same of LLaMA's shape, or of a kind with its keys: heads that share keys, a gated MLP."""
    return dict(model_type=kind, vocab_size=vocab, hidden_size=hidden, intermediate_size=inner, num_attention_heads=heads,
                num_key_value_heads=kv_heads, num_hidden_layers=layers, max_position_embeddings=8192, hidden_act="silu",
                rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=False, torch_dtype="bfloat16",
                bos_token_id=1, eos_token_id=2, **more)


def neox_shape(layers, hidden, heads, vocab=50304):
    """The same of GPT-NeoX's: layers of one step."""
    return dict(model_type="gpt_neox", vocab_size=vocab, hidden_size=hidden, intermediate_size=4 * hidden,
                num_attention_heads=heads, num_hidden_layers=layers, max_position_embeddings=2048, hidden_act="gelu",
                rotary_pct=0.25, rotary_emb_base=10000, layer_norm_eps=1e-5, use_parallel_residual=True,
                tie_word_embeddings=False, torch_dtype="float16", bos_token_id=0, eos_token_id=0)


# Shapes that benchmarks name beside those that aquifer knows: few layers of large models, and small ones.
OWN_SHAPES = {
    "cut-6.7b": opt_shape(3),
    "cut-llama-3.1-8b": llama_shape(6, 4096, 14336, 32, 8, 128256),
    "cut-qwen2.5-7b": llama_shape(6, 3584, 18944, 28, 4, 152064, "qwen2"),
    "llama-1.3b": llama_shape(24, 2048, 5504, 16, 16, 32000),
    "small-llama": llama_shape(8, 1024, 2816, 16, 4, 50304),
    "small-llama-wide": llama_shape(8, 1024, 2816, 16, 2, 50304, head_dim=128),
    "small-mistral": llama_shape(8, 1024, 2816, 16, 2, 50304, "mistral", sliding_window=96),
    "small-qwen3": llama_shape(8, 1024, 3072, 16, 8, 50304, "qwen3", head_dim=128),
    "small-neox": neox_shape(8, 1024, 8),
}


def shape(name, folder):
    """What --shape takes: of our own a file, else the name."""
    if name not in OWN_SHAPES:
        return name
    path = os.path.join(folder, name + ".json")
    if not os.path.exists(path):
        write(path, json.dumps(OWN_SHAPES[name]))
    return path


def parts(parser, option, text, known):
    """A comma list of some of what a benchmark consists of; anything else is a usage error."""
    found = text.split(",")
    if not set(found) <= set(known):
        parser.error(f"{option}: expected some of {', '.join(known)}, found '{text}'")
    return found


class Lines:
    """Figures, some of which must reach something."""

    def __init__(self, quiet=False):
        self.rows, self.quiet = [], quiet

    def add(self, what, need, found, unit, more="", at_most=False):
        ok = None if need is None or found is None else found <= need if at_most else found >= need
        self.rows.append(dict(what=what, need=need, found=found, unit=unit, note=more, ok=ok, at_most=at_most))
        if self.quiet:
            return
        limit = "" if need is None else f" (must be {'at most' if at_most else 'at least'} {need:g})"
        note(f"{'ok  ' if ok else 'MISS' if ok is False else '    '} {what}: "
             f"{'-' if found is None else f'{found:.3g}'} {unit}{limit} {more}")

    def predicted(self, what, r):
        """The simulator's decode pass beside the measured one; off by at most 5 % either way."""
        found, said = decode_pass_s(r), r["predicted"]["decode_pass_s"]
        self.add(f"{what}: simulated and measured pass, the larger by the smaller", 1.05,
                 max(found / said, said / found), "x", f"simulated {said:.3f} s, measured {found:.3f} s", at_most=True)

    def table(self):
        yield "| line | must reach | found | |"
        yield "|---|---|---|---|"
        for r in self.rows:
            need = "" if r["need"] is None else ("<= " if r["at_most"] else ">= ") + f"{r['need']:g}"
            found = "-" if r["found"] is None else f"{r['found']:.3g} {r['unit']}"
            mark = "**missed** " if r["ok"] is False else "reached " if r["ok"] and self.quiet else ""
            yield f"| {r['what']} | {need} | {found} | {mark}{r['note']} |"

    def status(self):
        """Exit status: 1 when a line misses what it must reach."""
        return 1 if any(r["ok"] is False for r in self.rows) else 0


def today():
    return time.strftime("%Y-%m-%d")


def write(path, text):
    """Replaces a file as a whole."""
    with open(path + ".part", "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(path + ".part", path)


def save(output, document, text):
    """NAME.json and NAME.md, and the text to standard output; None: nothing but that."""
    text = text if isinstance(text, str) else "\n".join(text) + "\n"
    if output:
        write(output + ".json", json.dumps(document, indent=1) + "\n")
        write(output + ".md", text)
    print(text, end="")


class Kept:
    """Documents by key, kept in NAME.json as they come: started again, what is there is not made again."""

    def __init__(self, output):
        self.path = output + ".json" if output else None
        self.document = {}
        if self.path and os.path.exists(self.path):
            with open(self.path, encoding="utf-8") as f:
                self.document = json.load(f)

    def get(self, key, make):
        if key not in self.document:
            self.document[key] = make()
            if self.path:
                write(self.path, json.dumps(self.document, indent=1) + "\n")
        return self.document[key]
