#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Allocations that fail, one run for each: the program ends with a sentence and status 2 or 4, or with
the right result; a results file that it leaves is resumed to exactly the right lines.

    alloc.py AQUIFER MODEL LIBRARY [CASE,...] [FIRST] [LAST] [--step N] [--every] [--kind heap|map|thread] [--on]

Allocations that come from the same chain of calls are tried once, with --step N those of each N-th
chain (CI does few), with --every each of them.  --on: every allocation from the k-th on fails, and not only that one.  MODEL is not used: a
far smaller one is written here, because there are as many runs as allocations."""
import argparse, array, collections, concurrent.futures, json, os, random, re, shutil, struct
import subprocess, sys, tempfile

LETTERS = "abcdefgmnoprs"
RUN_S = 60  # on a busy machine; a run takes some hundredths of a second
# Functions of libraries that do not survive a failed allocation, whatever their callers do, and why.
EXCEPTIONS = {
    "libfyaml.so.0(fy_input_create+": "0.7.12 uses what asprintf() leaves behind when it fails",
}


def write_model(where):
    """An OPT of one layer with a vocabulary of single letters; its weights are drawn."""
    os.makedirs(where)
    hidden, ffn, context, vocab = 32, 64, 64, 24
    draw = random.Random(1)
    layer = {"fc1.bias": [ffn], "fc1.weight": [ffn, hidden], "fc2.bias": [hidden], "fc2.weight": [hidden, ffn]}
    for name in ["final_layer_norm", "self_attn_layer_norm"]:
        layer.update({f"{name}.bias": [hidden], f"{name}.weight": [hidden]})
    for name in "kvq":
        layer.update({f"self_attn.{name}_proj.bias": [hidden], f"self_attn.{name}_proj.weight": [hidden, hidden]})
    layer.update({"self_attn.out_proj.bias": [hidden], "self_attn.out_proj.weight": [hidden, hidden]})
    shapes = {"embed_positions.weight": [context + 2, hidden], "embed_tokens.weight": [vocab, hidden],
              "final_layer_norm.bias": [hidden], "final_layer_norm.weight": [hidden]}
    shapes.update({f"layers.0.{name}": shape for name, shape in layer.items()})
    header, data = {}, array.array("f")
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        begin = len(data) * 4
        data.extend(draw.gauss(1 if "norm.weight" in name else 0, 0.3) for _ in range(count))
        header["model.decoder." + name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(data) * 4]}
    text = json.dumps(header).encode()
    with open(os.path.join(where, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data.tobytes())
    config = {"architectures": ["OPTForCausalLM"], "model_type": "opt", "activation_function": "relu",
              "bos_token_id": 2, "pad_token_id": 1, "eos_token_id": 2, "do_layer_norm_before": True,
              "_remove_final_layer_norm": False, "ffn_dim": ffn, "hidden_size": hidden,
              "max_position_embeddings": context, "num_attention_heads": 1, "num_hidden_layers": 1,
              "torch_dtype": "float32", "vocab_size": vocab, "word_embed_proj_dim": hidden,
              "enable_bias": True, "layer_norm_elementwise_affine": True}
    words = ["<s>", "<pad>", "</s>", "<unk>", "\u0120", "\u010a", "ab", *LETTERS]
    for name, document in [("config.json", config), ("vocab.json", {w: i for i, w in enumerate(words)}),
                           ("tokenizer_config.json", {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>",
                                                      "add_bos_token": True, "tokenizer_class": "GPT2Tokenizer"})]:
        with open(os.path.join(where, name), "w", encoding="utf-8") as f:
            json.dump(document, f)
    with open(os.path.join(where, "merges.txt"), "w", encoding="utf-8") as f:
        f.write("#version: 0.2\na b\n")
    with open(os.path.join(where, "chat_template.jinja"), "w", encoding="utf-8") as f:
        f.write(TEMPLATE)


RECORDS = [
    {"id": "plain", "prompt": "a cab of beans", "max_tokens": 3, "metadata": {"tag": "a string longer than 16"}},
    {"id": "many", "prompt": "ab", "max_tokens": 3, "temperature": 0.9, "n": 2},
    {"id": "scores", "prompt": [5, 6, 7, 8], "max_tokens": 2, "logprobs": 2, "stop": ["zz"]},
    {"id": "wrong", "prompt": "a", "max_tokens": -1},
    {"custom_id": "batch", "method": "POST", "url": "/v1/completions",
     "body": {"model": "m", "prompt": "bad fog", "max_tokens": 2}},
]
# A conversation's prompt, with what templates do: a macro, a namespace, filters, a date.
TEMPLATE = """{%- macro turn(m, first=false) -%}
{{ m.role | upper | replace('USER', 'a') | replace('SYSTEM', 'b') }} {{ m['content'] | trim }}{{ ' ' if not first }}
{%- endmacro -%}
{%- set ns = namespace(count=0) -%}
{{ strftime_now('%d') | replace('1', 'd') | replace('2', 'e') | replace('0', 'f') }}
{%- for m in messages -%}
{%- if m.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('no ' ~ m.role) }}{% endif -%}
{{ turn(m, loop.first) }}{% set ns.count = ns.count + 1 %}
{%- endfor -%}
{%- if add_generation_prompt %} {{ ['a', 'b'][ns.count % 2:] | join('c') }}{% endif -%}
"""
CHATS = [
    {"id": "plain", "messages": [{"role": "system", "content": " a bean "}, {"role": "user", "content": "a cab"}],
     "max_tokens": 3},
    {"id": "refused", "messages": [{"role": "tool", "content": "a"}], "max_tokens": 2},
    {"custom_id": "batch", "method": "POST", "url": "/v1/chat/completions",
     "body": {"model": "m", "max_completion_tokens": 3, "logprobs": True, "top_logprobs": 2,
              "messages": [{"role": "user", "content": [{"type": "text", "text": "a fog"}]}]}},
]


class Case:
    """One command.  words(where): the command line in a folder of its own; keeps: whether it leaves a
    results file that another run goes on with."""

    def __init__(self, words, keeps=False, status=0, output=None):
        self.words, self.keeps, self.status, self.output = words, keeps, status, output


def cases(d):
    model, given = os.path.join(d, "model"), os.path.join(d, "in.jsonl")
    hardware = os.path.join(d, "hardware.yaml")
    common = ["--threads", "2", "--quiet"]

    def generate(*extra, read=given):
        return Case(lambda w: ["generate", "--model", model, "--input", read, "--output", w + "/out", "--disk-dir",
                               w, "--disk-dir-any", "--cache-dir", w + "/cache", "--micro-batch", "2", "--micro-batches",
                               "2", "--report", w + "/report", "--device", "cpu", *common, *extra], keeps=True, status=3, output="out")

    known = ["--hardware", hardware]  # else every run measures the machine, and fails in the same calls
    fixed = ["--host-memory", "1GiB", "--prompt-len", "6", "--gen-len", "2"]
    return {
        "generate": generate(),
        "ordered": generate("--ordered", *known),
        "disk": generate("--placement", "weights=0/0/100 kv=0/50/50 hidden=0/100/0", *known),
        "h2o": generate("--kv-policy", "h2o", "--kv-budget", "50%", *known),
        "chat": generate("--chat-time", "2026-02-11", *known, read=os.path.join(d, "chat.jsonl")),
        "plan": Case(lambda w: ["plan", "--shape", model + "/config.json", "--hardware", hardware, "--json", "--requests",
                                "4", *fixed, *common]),
        "plan-text": Case(lambda w: ["plan", "--shape", model + "/config.json", "--hardware", hardware, "--micro-batch",
                                     "2", "--micro-batches", "1", "--write-config", w + "/out", *fixed, *common]),
        "pack": Case(lambda w: ["pack", "--model", model, "--output", w + "/store", *common]),
        "tokenize": Case(lambda w: ["tokenize", "--model", model, "--input", d + "/text.jsonl"]),
        "eval": Case(lambda w: ["eval", "--model", model, "--text", d + "/text", "--prompt-tokens", "6", "--score-tokens",
                                "3", "--windows", "2", "--json", "--device", "cpu", *common]),
        "bench": Case(lambda w: ["bench", "--model", model, "--prompt-len", "6", "--gen-len", "2", "--requests", "2",
                                 "--micro-batch", "2", "--micro-batches", "1", "--repeats", "1", "--warmup", "0",
                                 "--hardware", hardware, "--json", "--device", "cpu", *common]),
        "info": Case(lambda w: ["info", "--json", "--cache-dir", w + "/cache"]),
    }


Outcome = collections.namedtuple("Outcome", "k verdict detail where")
class Bench:
    def __init__(self, program, library, d, name, case, kind, on):
        self.program, self.library, self.d, self.name, self.case = program, library, d, name, case
        self.kind, self.on = kind, on
        self.base = self.fresh("undisturbed")
        done, self.calls = self.run(self.base, f"{kind}:0")
        if done is None or done.returncode != case.status:
            sys.exit(f"{name}: the undisturbed run ends with {done and (done.returncode, done.stderr.decode())}")
        self.want = self.results(self.base, done)

    def ks(self, every):
        """Numbers of the calls to fail: all, or of each chain of calls one."""
        path = os.path.join(self.base, "stacks")
        with open(path, "rb") as f:
            rows = list(struct.iter_unpack("=QQ", f.read()))
        return sorted(n for n, _ in rows) if every else sorted({stack: n for n, stack in rows}.values())

    def fresh(self, name):
        where = os.path.join(self.d, self.name, name)
        os.makedirs(where)
        return where

    def run(self, where, fail):
        """The finished run (None: it hung) and its log: calls of each kind, or the failed one's frames."""
        env = dict(os.environ, LD_PRELOAD=self.library, AQ_FAIL_LOG=where + "/log", HOME=where, LC_ALL="C")
        env.pop("AQ_FAIL", None)
        env.pop("AQ_FAIL_STACKS", None)
        if fail:
            env["AQ_FAIL"] = fail
            if fail.endswith(":0"):
                env["AQ_FAIL_STACKS"] = where + "/stacks"
        try:
            done = subprocess.run([self.program, *self.case.words(where)], env=env, timeout=RUN_S, cwd=where,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        except subprocess.TimeoutExpired:
            done = None
        with open(where + "/log", encoding="utf-8") as f:
            log = f.read().splitlines()
        return done, log

    def results(self, where, done):
        """What must be the same as ever."""
        if self.case.keeps:
            path = os.path.join(where, self.case.output)
            if not os.path.exists(path):
                return None
            with open(path, encoding="utf-8") as f:
                lines = f.read().splitlines()
            return [VARYING.sub("", x) for x in (lines if "--ordered" in self.case.words("") else sorted(lines))]
        text = done.stdout.decode().replace(where, "DIR")
        try:
            return skeleton(json.loads(text))
        except ValueError:
            return re.sub(r"[0-9.]+", "N", text) if self.name != "tokenize" else text

    def judge(self, k):
        where = self.fresh(str(k))
        done, log = self.run(where, f"{self.kind}:{k}{'+' if self.on else ''}")
        frames = [x for x in log if not x.startswith("calls ")]
        verdict, detail = self.verdict(where, done)
        if verdict in ("fine", "told") and self.case.keeps:
            again, _ = self.run(where, None)
            if again is None or again.returncode not in (0, self.case.status):  # 0: nothing was left to do
                verdict = "not resumed"
                detail = f"{again and again.returncode}: {again and again.stderr.decode()[-300:]}; first: {detail}"
            elif self.results(where, again) != self.want:
                verdict, detail = "wrong", "resumed to other lines"
        shutil.rmtree(where)
        return Outcome(k, verdict, detail, frames)

    def verdict(self, where, done):
        if done is None:
            return "hung", f"no end within {RUN_S} s"
        said = done.stderr.decode(errors="replace").strip()
        if done.returncode < 0 or done.returncode > 4:
            return "crashed", f"status {done.returncode}: {said[-300:]}"
        if done.returncode in (2, 4):
            last = said.splitlines()[-1] if said else ""
            if not last.startswith("aquifer: error: "):
                return "silent", f"status {done.returncode}: {said!r}"
            if "memory" not in last:
                return "unclear", last
            return "told", last
        if done.returncode != self.case.status:
            return "wrong", f"status {done.returncode}: {said[-300:]}"
        got = self.results(where, done)
        if got != self.want:
            return "wrong", f"{difference(self.want, got)}: {said[-200:]}"
        return "fine", said


VARYING = re.compile(r'"created":[0-9]+')


def skeleton(value, key=""):
    """Documents differ in times and rates; they must not in what they hold.  Numbers are left out, all
    else is compared."""
    if isinstance(value, dict):
        return {k: skeleton(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [skeleton(v, key) for v in value]
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def difference(want, got, at=""):
    if isinstance(want, dict) and isinstance(got, dict):
        for k in list(want) + [k for k in got if k not in want]:
            if want.get(k) != got.get(k) or (k in want) != (k in got):
                return difference(want.get(k), got.get(k), f"{at}.{k}")
    if isinstance(want, list) and isinstance(got, list):
        for i, w in enumerate(want):
            if i >= len(got) or w != got[i]:
                return difference(w, got[i] if i < len(got) else None, f"{at}[{i}]")
    return f"{at}: {str(want)[:150]} became {str(got)[:150]}"


def named(frames, names):
    """Frames with the functions of the program, as its symbols have them."""
    found = []
    for frame in frames:
        match = re.match(r"(.*)\((.*)\+(0x[0-9a-f]+)\) ?\[", frame)
        if match and not match.group(2) and os.path.basename(match.group(1)) == "aquifer":
            at = int(match.group(3), 16)
            below = [n for a, n in names if a <= at]
            found.append(below[-1] if below else frame)
        elif match:
            found.append(os.path.basename(match.group(1)) + ":" + (match.group(2) or match.group(3)))
    return " < ".join(found[:14])


def symbols(program):
    if not shutil.which("nm"):
        return []
    out = subprocess.run(["nm", program], capture_output=True, text=True).stdout
    rows = [line.split() for line in out.splitlines()]
    return sorted((int(r[0], 16), r[2]) for r in rows if len(r) == 3 and r[1] in "tT")


def excused(frames):
    return any(e in frame for e in EXCEPTIONS for frame in frames[:6])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("model")
    p.add_argument("library")
    p.add_argument("cases", nargs="?")
    p.add_argument("first", nargs="?", type=int, default=1)
    p.add_argument("last", nargs="?", type=int, default=10 ** 9)
    p.add_argument("--step", type=int, default=1)
    p.add_argument("--kind", choices=["heap", "map", "thread"])
    p.add_argument("--on", action="store_true")
    p.add_argument("--every", action="store_true")
    o = p.parse_args()
    o.program, o.library = os.path.abspath(o.program), os.path.abspath(o.library)
    names, bad, totals = symbols(o.program), 0, collections.Counter()
    with tempfile.TemporaryDirectory() as d:
        # Alone: beside a module with the CUDA code, CUDA's own libraries would be started, and fail.
        o.program = shutil.copy(o.program, os.path.join(d, "aquifer"))
        write_model(os.path.join(d, "model"))
        with open(os.path.join(d, "in.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps(r) + "\n" for r in RECORDS)
        with open(os.path.join(d, "chat.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps(r) + "\n" for r in CHATS)
        with open(os.path.join(d, "text.jsonl"), "w", encoding="utf-8") as f:
            f.write('{"text": "a cab of beans and more"}\n')
        with open(os.path.join(d, "text"), "w", encoding="utf-8") as f:
            f.write("a cab of beans and a band of bad fog on a prom\n")
        shutil.copy(os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                 "../../configs/hardware/epyc-zen5-2vcpu.yaml"), d + "/hardware.yaml")
        for name, case in cases(d).items():
            if o.cases and name not in o.cases.split(","):
                continue
            for kind in [o.kind] if o.kind else ["heap", "map", "thread"]:
                bench = Bench(o.program, o.library, d, name, case, kind, o.on)
                calls = len(bench.ks(every=True))
                ks = [k for k in bench.ks(o.every) if o.first <= k <= o.last][::o.step]
                count = collections.Counter()
                with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                    for outcome in pool.map(bench.judge, ks):
                        verdict = outcome.verdict
                        if verdict not in ("fine", "told") and excused(outcome.where):
                            verdict = "excused"
                        count[verdict] += 1
                        if verdict not in ("fine", "told", "excused"):
                            bad += 1
                            print(f"FAILED {name} {kind} {outcome.k}: {verdict}: {outcome.detail}\n"
                                  f"    {named(outcome.where, names)}", flush=True)
                shutil.rmtree(os.path.join(d, name))
                totals.update(count)
                print(f"{name}, {kind}: {calls} calls, {len(ks)} of them failed: " + ", ".join(f"{n} {v}" for v, n in count.items()),
                      flush=True)
    print("in all: " + ", ".join(f"{n} {v}" for v, n in totals.items()))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
