#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a machine with a GPU is to prove and to measure, in steps that are run once and never again.

    python3 bench/gpu_suite.py --results DIR [--program build/engine/cli/aquifer] [--seconds 480] [--only GROUP,...]

(--only also takes steps and what their names begin with: rows/opt-6.7b.)  In a bundle (bench/gpu_bundle.sh) the
programs are those beside it.  Steps come in the order of what they tell for their time: right tokens, what the machine
reaches, the rows of OPT-6.7B, the tests, the rows of OPT-30B, and the tools that make everything slow last.

tokens    golden tokens of the tiny model on the GPU, in every placement and on both sides of attention; the token that
          is most likely at each place of fed text, in f16 beside the CPU's in f32
parity    the engine's tests against the CPU on this device (--tests: that program) and the kernels against their
          reference (--kcheck), plain and under each tool of compute-sanitizer where it is installed
ceilings  what links, memories, products and attention of this machine reach (aquifer probe)
streams   OPT-6.7B with weights from pinned memory, while the host attends, from disk; all resident, by its ops
predict   what the planner says of each row, from those ceilings, before any row is run
rows      OPT-6.7B on the GPU alone, every step really run; OPT-30B within 16 GiB of it, full and h2o, f16 and int4

Rows that come one after the other are one process (bench --table), up to one that fails.
DIR/steps.jsonl has a line for each step that is over: call again until nothing is left.  A step begins only while
there is time; what ends later is still written.  DIR/info.json and machine.txt describe the machine, hw.yaml is its
profile, summary.md has a line for everything that must be reached, beside its ceiling of the same run.  Exit status
0: all steps are over and right, 3: some are left, 1: one was wrong.  --list prints the steps; --small runs small
shapes and short measurements, to try the suite itself."""
import argparse, ctypes, itertools, json, os, shutil, signal, subprocess, sys, tempfile, time

import gpu_lines
import runs

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = os.path.join(ROOT, "tests", "data", "tiny-opt")
PROMPTS, TOKENS = 3, 8
GROUPS = ("tokens", "parity", "ceilings", "streams", "predict", "rows")
PLACES = {
    "device": ("100/0/0", "100/0/0", "100/0/0", "device", "device"),
    "host": ("0/100/0", "0/100/0", "0/100/0", "host", "device"),
    "disk": ("0/0/100", "0/0/100", "0/0/100", "host", "device"),
    "mixed": ("40/30/30", "40/30/30", "100/0/0", "device", "device"),
    "host-attended": ("0/100/0", "0/100/0", "100/0/0", "device", "host"),
    "disk-attended": ("50/0/50", "0/0/100", "0/0/100", "host", "host"),
    "shared": ("0/100/0", "0/100/0", "100/0/0", "device", "split"),
}
TOOLS = ("memcheck", "racecheck", "synccheck")  # initcheck sees nothing: memory is set when taken
RESIDENT = ["--placement", "weights=100/0/0 kv=100/0/0 hidden=100/0/0 head=device"]


def built(*path):
    """A program of the bundle that this script lies in, or of the build folder."""
    bundled = os.path.join(ROOT, path[-1])
    return bundled if os.path.exists(bundled) else os.path.join(ROOT, "build", *path)


def golden(count=PROMPTS):
    with open(os.path.join(MODEL, "golden", "greedy.jsonl"), encoding="utf-8") as f:
        return [json.loads(line) for _, line in zip(range(count), f)]


class Suite:
    """The steps, and what they need to run."""

    def __init__(self, args):
        self.a = args
        self.hw = os.path.join(args.results, "hw.yaml")
        self.shapes = {"opt-6.7b": "opt-6.7b", "opt-30b": "opt-30b", "opt-1.3b": "opt-1.3b"}
        self.scale = 1
        if args.small:
            path = os.path.join(args.results, "small.json")
            runs.write(path, json.dumps(runs.opt_shape(2, 128, 2, 512)))
            self.shapes, self.scale = dict.fromkeys(self.shapes, path), 16

    # ---- what is run ----

    def row_words(self, shape, prompt, gen, *words):
        return ["--shape", self.shapes[shape], "--prompt-len", str(prompt // self.scale), "--gen-len",
                str(max(4, gen // self.scale)), *words]

    def rows(self):
        """(name, arguments of bench)"""
        h2o = ["--kv-policy", "h2o", "--kv-budget", "20%"]
        for kind, policy in (("full", []), ("h2o", h2o)):
            for gen in (32, 512):
                yield f"opt-6.7b/{kind}/512+{gen}", self.row_words("opt-6.7b", 512, gen, *RESIDENT, *policy)
        memory = ["--device-memory", "16GiB" if self.scale == 1 else "1GiB"]
        for kind, words in (("full/f16", []), ("h2o/f16", h2o), ("full/int4", ["--weight-format", "int4"]),
                            ("h2o/int4", ["--weight-format", "int4", *h2o]),
                            ("h2o/int4/kv-int4", ["--weight-format", "int4", "--kv-format", "int4", *h2o])):
            for gen in (512, 32, 1024):
                yield f"opt-30b/{kind}/512+{gen}", self.row_words("opt-30b", 512, gen, *memory, *words,
                                                                  *(["--decode-passes", "8"] if gen > 32 else []))

    def streams(self):
        block = ["--micro-batch", str(64 // self.scale), "--micro-batches", "2"]
        there = "weights={} kv={} hidden=100/0/0 head=device"
        yield "weights", self.row_words("opt-6.7b", 128, 32, *block, "--placement", there.format("0/100/0", "100/0/0"))
        yield "host-attention", self.row_words("opt-6.7b", 512, 32, *block, "--placement",
                                               there.format("0/100/0", "0/100/0"), "--attention", "host")
        yield "disk", self.row_words("opt-1.3b", 128, 32, *block, "--placement", there.format("0/0/100", "100/0/0"))
        whole = ["--micro-batch", str(128 // self.scale), "--micro-batches", "1", *RESIDENT]
        yield "resident", self.row_words("opt-6.7b", 512, 16, *whole)
        yield "deterministic", self.row_words("opt-6.7b", 512, 16, *whole, "--deterministic")

    def steps(self):
        """(name, what runs it, its arguments)"""
        for name, (weights, kv, hidden, head, attention) in PLACES.items():
            yield f"tokens/{name}", self.run_tokens, [
                "--placement", f"weights={weights} kv={kv} hidden={hidden} head={head}", "--attention", attention]
        yield "tokens/agreement", self.run_agreement, []
        yield "ceilings/probe", self.run_probe, []
        for name, words in self.streams():
            yield f"streams/{name}", self.run_traced if name in ("resident", "deterministic") else self.run_row, words
        for name, words in self.rows():
            yield f"predict/{name}", self.run_prediction, words
        yield from self.row_steps("opt-6.7b", "3")
        yield from self.parity_steps("plain", ["--sample", "1"])
        yield from self.row_steps("opt-30b", "2")
        for tool in TOOLS:
            yield from self.parity_steps(tool, ["--sample", "20", "--in-process"])

    def row_steps(self, model, repeats):
        for name, words in self.rows():
            if name.startswith(model):
                yield f"rows/{name}", self.run_row, [*words, "--repeats", repeats]

    def parity_steps(self, tool, some):
        yield f"parity/{tool}", self.run_parity, [tool, self.a.tests]
        yield f"parity/kernels-{tool}", self.run_parity, [tool, self.a.kcheck, "--threads", "4", *some]

    # ---- runs: (right or not, what was found) ----

    def call(self, command, seconds, **how):
        """(exit status or None when it took too long, standard output, last lines of the other one)"""
        try:
            p = subprocess.run(command, capture_output=True, text=True, timeout=seconds, **how)
        except subprocess.TimeoutExpired:
            return None, "", f"longer than {seconds:.0f} s"
        return p.returncode, p.stdout, "\n".join(p.stderr.split("\n")[-8:])

    def document(self, command, seconds):
        status, out, said = self.call([self.a.program, *command], seconds)
        return status == 0, json.loads(out) if status == 0 else {"status": status, "said": said}

    def generate(self, directory, records, seconds, *words):
        """(found by id, or None; status; said)"""
        out = os.path.join(directory, "out.jsonl")
        with open(os.path.join(directory, "in.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps(r) + "\n" for r in records)
        status, _, said = self.call([self.a.program, "generate", "--model", MODEL, "--input", f.name, "--output", out,
                                     "--overwrite", "--disk-dir-any", "--cache-dir", directory, *words], seconds)
        if status != 0:
            return None, {"status": status, "said": said}
        with open(out, encoding="utf-8") as f:
            return {r["id"]: r for r in map(json.loads, f)}, {}

    def run_tokens(self, words, seconds):
        with tempfile.TemporaryDirectory() as d:
            found, why = self.generate(
                d, [{"id": i, "prompt": g["prompt_ids"]} for i, g in enumerate(golden())], seconds, "--device", "cuda",
                "--compute", "f32", "--kv-format", "f32", "--max-tokens", str(TOKENS), "--ignore-eos",
                "--micro-batches", "2", "--micro-batch", "2", *words)
        if found is None:
            return False, why
        wrong = [i for i, g in enumerate(golden()) if found[i]["tokens"] != g["tokens"][:TOKENS]]
        return not wrong, {"prompts": PROMPTS, "tokens": TOKENS, "wrong": wrong}

    def run_agreement(self, _, seconds):
        """The most likely token at each place of golden texts that are fed."""
        texts = golden(3 if self.a.small else 1000)
        records = [{"id": i, "prompt": g["prompt_ids"] + g["tokens"], "max_tokens": 0, "echo": True, "logprobs": 5}
                   for i, g in enumerate(texts)]
        tops = []
        for words in (["--device", "cpu", "--compute", "f32", "--kv-format", "f32"], ["--device", "cuda", "--compute", "f16"]):
            with tempfile.TemporaryDirectory() as d:
                found, why = self.generate(d, records, seconds, *words)
            if found is None:
                return False, why
            tops.append([t for i in range(len(texts)) for t in found[i]["logprobs"]["top_logprobs"][1:]])
        same, margin = 0, 0.0
        for cpu, gpu in zip(*tops):
            first, other = max(cpu, key=cpu.get), max(gpu, key=gpu.get)
            same += first == other
            if first != other:
                margin = max(margin, cpu[first] - cpu.get(other, -100.0))
        agreement = same / len(tops[0])
        return agreement >= 0.999, {"agreement": agreement, "positions": len(tops[0]), "margin": margin}

    def run_parity(self, words, seconds):
        tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
        name, *command = words
        if not os.path.exists(command[0]):
            return None, {"skipped": f"there is no '{command[0]}'"}
        if name != "plain":
            if not tool:
                return None, {"skipped": "compute-sanitizer is not installed"}
            command = [tool, "--tool", name, "--error-exitcode", "9", *command]
            seconds = min(seconds, self.a.tool_seconds)
        module = os.path.join(os.path.dirname(self.a.program), "aquifer_cuda.so")
        if not os.path.exists(module):
            module = os.path.join(ROOT, "build", "kernels", "aquifer_cuda.so")
        env = dict(os.environ, AQ_CUDA_MODULE=module, AQ_TEST_DATA=os.path.join(ROOT, "tests", "data"))
        status, out, said = self.call(command, seconds, env=env)
        if status is None and name != "plain" and seconds >= min(self.a.tool_seconds, self.a.seconds - 5):
            return None, {"skipped": f"{said}, all that it may take (--tool-seconds)"}
        return status == 0, {"status": status, "said": said if status else out[-400:]}

    def run_probe(self, _, seconds):
        os.makedirs(self.a.disk_dir, exist_ok=True)
        return self.document(["probe", "--device", "cuda", "--disk-dir", self.a.disk_dir, "--output", self.hw, "--json",
                              *(["--quick", "--threads", "1"] if self.a.small else [])], seconds)

    def bench(self, words):
        return ["bench", "--device", "cuda", "--random-weights", "1", "--json", "--quiet", "--cache-dir", self.a.disk_dir,
                "--disk-dir-any", *(["--hardware", self.hw] if os.path.exists(self.hw) else []),
                *(["--host-memory", self.a.host_memory] if self.a.host_memory else []),
                *(["--threads", "1"] if self.a.small else []), *words]

    def run_prediction(self, words, seconds):
        return self.document(self.bench([*words, "--dry-run"]), seconds)

    def run_row(self, words, seconds):
        return self.document(self.bench(words), seconds)

    def run_rows(self, steps, seconds):
        """Rows in one process, told as each is over: (name, right, found).  What a failure leaves behind in a GPU is its
        process's, so that rows after one that failed are another process's."""
        out, table, errors = (os.path.join(self.a.results, "rows." + end) for end in ("json", "table.yaml", "errors.txt"))
        for path in out, out + ".rows.json":
            if os.path.exists(path):
                os.remove(path)
        rows = [{"name": name, **{k[2:]: v for k, v in zip(words[::2], words[1::2])}} for name, _, words in steps]
        runs.write(table, json.dumps({"table": "gpu-suite", "rows": rows}, indent=1) + "\n")
        told, end = 0, time.monotonic() + seconds
        with open(errors, "w+", encoding="utf-8") as said, subprocess.Popen(
                [self.a.program, *self.bench(["--table", table, "--output", out])], stdout=subprocess.DEVNULL,
                stderr=said, preexec_fn=end_with_parent) as p:
            over = failed = False
            try:
                while not over and not failed and time.monotonic() < end:
                    time.sleep(0.2)
                    over = p.poll() is not None
                    for row in finished_rows(out)[told:]:
                        told += 1
                        failed = "error" in row
                        yield row["name"], not failed, row if not failed else \
                            {"status": row["error"]["exit_status"], "said": row["error"]["message"]}
                        if failed:
                            break
            finally:
                p.kill()
            if not over or failed or told == len(steps):
                return
            said.seek(0)
            why = "\n".join(said.read().split("\n")[-8:])
        if told == 0 and len(steps) > 1:  # perhaps another row's options
            yield from self.run_rows(steps[:1], end - time.monotonic())
        else:
            yield steps[told][0], False, {"status": p.returncode, "said": why}

    def run_traced(self, words, seconds):
        """Rates of the MLP's products by the spans of their ops, whole tiles of rows."""
        with tempfile.TemporaryDirectory() as d:
            trace = os.path.join(d, "trace.json")
            right, found = self.run_row([*words, "--repeats", "1", "--warmup", "1", "--trace", trace], seconds)
            if not right:
                return right, found
            with open(trace, encoding="utf-8") as f:
                events = json.load(f)["traceEvents"]
        ops = [e for e in events if e.get("cat", "").startswith("MLP") and e["pid"] == 2 and
               e["args"]["rows"] >= (512 if self.scale == 1 else 1)]
        seconds = sum(e["dur"] for e in ops) * 1e-6
        each = 2 * 2 * 4 * found["model"]["hidden"] ** 2  # two products of h x 4h, two flops a number
        flops = sum(e["args"]["rows"] * (each if e["cat"] == "MLP" else each / 2) for e in ops)
        found["mlp_tflop_s"] = flops / seconds / 1e12 if seconds else None
        return bool(ops), found

    # ---- results ----

    def describe(self):
        """The machine, and what is run."""
        try:
            right, info = self.document(["info", "--json"], 60)
        except OSError as e:
            right, info = False, {"said": e}
        if not right:
            sys.exit(f"gpu_suite: '{self.a.program} info --json' does not run here (--program): {info['said']}")
        runs.write(os.path.join(self.a.results, "info.json"), json.dumps(info, indent=1) + "\n")
        text = ""
        for command in (["nvidia-smi"], ["nvidia-smi", "topo", "-m"], ["lscpu"], ["free", "-b"], ["uname", "-a"]):
            if shutil.which(command[0]):
                text += f"$ {' '.join(command)}\n{self.call(command, 30)[1]}\n"
        runs.write(os.path.join(self.a.results, "machine.txt"), text)
        return info

    def summary(self, info, kept, todo):
        lines = gpu_lines.lines_of({k: v["found"] for k, v in kept.items() if v["right"]})
        head = [f"# The GPU suite, commit {info['commit']}", "",
                f"`python3 bench/gpu_suite.py --results {os.path.basename(self.a.results)}`, {runs.today()}; machine.txt, "
                "info.json and hw.yaml say on what, steps.jsonl has the raw figures.", ""]
        if self.a.small:
            head += ["**Small shapes: the suite was tried, nothing was measured.**", ""]
        state = {True: "right", False: "**wrong**", None: "skipped"}
        body = ["", "| step | | s | |", "|---|---|---|---|"]
        for name, _, _ in todo:
            k = kept.get(name)
            more = k and (k["found"].get("skipped") or k["found"].get("said") if not k["right"] else "") or ""
            body.append(f"| {name} | {state[k['right']] if k else 'not yet'} | {k['s'] if k else ''} | "
                        f"{' '.join(str(more).split())[:200]} |")
        runs.write(os.path.join(self.a.results, "summary.md"), "\n".join([*head, *lines.table(), *body]) + "\n")
        return lines


def end_with_parent():
    """What is measured ends with this process, however that ends (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def finished_rows(path):
    """Of bench --table --json, which replaces its file after each row; one row stands there alone."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        rows = json.load(f)
    return rows if isinstance(rows, list) else [rows]


def read(log):
    if not os.path.exists(log):
        return {}
    with open(log, encoding="utf-8") as f:
        return {s["step"]: s for s in map(json.loads, f)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--results", required=True)
    p.add_argument("--program", default=built("engine", "cli", "aquifer"))
    p.add_argument("--tests", default=built("tests", "cuda_emu", "test_e2e_gpu"))
    p.add_argument("--kcheck", default=built("tests", "kcheck", "kcheck_gpu"))
    p.add_argument("--host-memory", help="of every row, where the machine's own count starts low (virtual machines)")
    p.add_argument("--tool-seconds", type=float, default=240, help="most time of one tool of compute-sanitizer")
    p.add_argument("--disk-dir", help="whose disk is measured and holds packed weights; default: RESULTS.cache")
    p.add_argument("--seconds", type=float, default=480)
    p.add_argument("--only", default=",".join(GROUPS))
    p.add_argument("--small", action="store_true")
    p.add_argument("--list", action="store_true")
    a = p.parse_args()
    if a.small:
        a.host_memory = a.host_memory or "700MiB"
    a.disk_dir = a.disk_dir or a.results.rstrip("/") + ".cache"
    os.makedirs(a.results, exist_ok=True)
    suite = Suite(a)
    todo = [s for s in suite.steps() if any((s[0] + "/").startswith(w + "/") for w in a.only.split(","))]
    if a.list:
        print("\n".join(name for name, _, _ in todo))
        return 0
    log = os.path.join(a.results, "steps.jsonl")
    kept, info = read(log), suite.describe()
    begin = time.monotonic()

    def keep(name, right, found, start):
        kept[name] = {"step": name, "right": right, "s": round(time.monotonic() - start, 3), "commit": info["commit"],
                      "found": found}
        with open(log, "a", encoding="utf-8") as f:
            f.write(json.dumps(kept[name]) + "\n")
        print(f"{name}: {'skipped' if right is None else 'right' if right else 'WRONG'}", flush=True)

    left = [s for s in todo if s[0] not in kept]
    while left and (seconds := a.seconds - (time.monotonic() - begin)) >= 5:
        rows = list(itertools.takewhile(lambda s: s[1] == suite.run_row, left))
        start, before = time.monotonic(), len(kept)
        for name, right, found in suite.run_rows(rows, seconds) if rows else [(left[0][0], *left[0][1](left[0][2], seconds))]:
            if found.get("status", 0) is not None:
                keep(name, right, found, start)
            start = time.monotonic()
        if len(kept) == before and seconds >= a.seconds - 5:  # what had the whole time and was too long
            keep(left[0][0], False, {"status": None, "said": f"longer than {seconds:.0f} s"}, start)
        # What was too long for the rest of the time may have the whole, next time.
        left = [s for s in left[0 if len(kept) > before else max(1, len(rows)):] if s[0] not in kept]
    lines = suite.summary(info, kept, list(suite.steps()))
    wrong = [n for n, _, _ in todo if n in kept and kept[n]["right"] is False]
    left = [n for n, _, _ in todo if n not in kept]
    missed = sum(r["ok"] is False for r in lines.rows)
    print(f"{len(todo) - len(left)} of {len(todo)} steps are over, {len(wrong)} of them wrong; {missed} lines are missed")
    return 1 if wrong else 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
