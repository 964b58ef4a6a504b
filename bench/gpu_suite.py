#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a machine with a GPU is to prove and to measure, in steps that are run once and never again.

    python3 bench/gpu_suite.py --results DIR [--program build/engine/cli/aquifer] [--seconds 480] [--only tokens,rows]

tokens  golden tokens of the tiny model on the GPU, in every placement and on both sides of attention
rows    OPT-6.7B on the GPU alone; OPT-30B within 16 GiB of it, full and h2o, f16 and int4 weights

DIR/steps.jsonl has a line for each step that is over: call again until nothing is left.  A step begins only
while there is time; what ends later is still written.  Exit status 0: all steps are over and right, 3: some
are left, 1: one was wrong.  --list prints the steps."""
import argparse, json, os, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = os.path.join(ROOT, "tests", "data", "tiny-opt")
PROMPTS, TOKENS = 3, 8
PLACES = {
    "device": ("100/0/0", "100/0/0", "100/0/0", "device", "device"),
    "host": ("0/100/0", "0/100/0", "0/100/0", "host", "device"),
    "disk": ("0/0/100", "0/0/100", "0/0/100", "host", "device"),
    "mixed": ("40/30/30", "40/30/30", "100/0/0", "device", "device"),
    "host-attended": ("0/100/0", "0/100/0", "100/0/0", "device", "host"),
    "disk-attended": ("50/0/50", "0/0/100", "0/0/100", "host", "host"),
    "shared": ("0/100/0", "0/100/0", "100/0/0", "device", "split"),
}


def steps():
    """(name, group, arguments): tokens run `generate`, rows run `bench`."""
    for name, (weights, kv, hidden, head, attention) in PLACES.items():
        yield f"tokens/{name}", "tokens", ["--placement", f"weights={weights} kv={kv} hidden={hidden} head={head}",
                                           "--attention", attention]
    for gen in ("32", "512"):
        yield f"rows/opt-6.7b/512+{gen}", "rows", ["--shape", "opt-6.7b", "--prompt-len", "512", "--gen-len", gen]
    for weights in ("f16", "int4"):
        for policy in (("full",), ("h2o", "--kv-budget", "20%")):
            for gen in ("32", "512", "1024"):
                yield f"rows/opt-30b/{weights}/{policy[0]}/512+{gen}", "rows", [
                    "--shape", "opt-30b", "--device-memory", "16GiB", "--weight-format", weights, "--kv-policy", *policy,
                    "--prompt-len", "512", "--gen-len", gen, "--decode-passes", "24"]


def golden():
    with open(os.path.join(MODEL, "golden", "greedy.jsonl"), encoding="utf-8") as f:
        return [json.loads(line) for _, line in zip(range(PROMPTS), f)]


def run(command, seconds):
    """(exit status or None when it took too long, standard output, last lines of the other one)"""
    try:
        p = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return None, "", f"longer than {seconds:.0f} s"
    return p.returncode, p.stdout, "\n".join(p.stderr.split("\n")[-8:])


def run_tokens(program, words, seconds):
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "in.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps({"id": i, "prompt": g["prompt_ids"]}) + "\n" for i, g in enumerate(golden()))
        out = os.path.join(d, "out.jsonl")
        status, _, said = run([program, "generate", "--device", "cuda", "--model", MODEL, "--input", f.name,
                               "--output", out, "--compute", "f32", "--kv-format", "f32", "--max-tokens", str(TOKENS),
                               "--ignore-eos", "--micro-batches", "2", "--micro-batch", "2", "--disk-dir-any",
                               "--cache-dir", d, *words], seconds)
        if status != 0:
            return False, {"status": status, "said": said}
        with open(out, encoding="utf-8") as f:
            found = {r["id"]: r["tokens"] for r in map(json.loads, f)}
    wrong = [i for i, g in enumerate(golden()) if found.get(i) != g["tokens"][:TOKENS]]
    return not wrong, {"prompts": PROMPTS, "tokens": TOKENS, "wrong": wrong}


def run_row(program, words, seconds):
    status, out, said = run([program, "bench", "--device", "cuda", "--random-weights", "1", "--json", *words], seconds)
    return status == 0, json.loads(out) if status == 0 else {"status": status, "said": said}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--results", required=True)
    p.add_argument("--program", default=os.path.join(ROOT, "build", "engine", "cli", "aquifer"))
    p.add_argument("--seconds", type=float, default=480)
    p.add_argument("--only", default="tokens,rows")
    p.add_argument("--list", action="store_true")
    a = p.parse_args()
    todo = [s for s in steps() if s[1] in a.only.split(",")]
    if a.list:
        print("\n".join(name for name, _, _ in todo))
        return 0
    os.makedirs(a.results, exist_ok=True)
    log, over, begin = os.path.join(a.results, "steps.jsonl"), {}, time.monotonic()
    if os.path.exists(log):
        with open(log, encoding="utf-8") as f:
            over = {s["step"]: s["right"] for s in map(json.loads, f)}
    info = json.loads(subprocess.run([a.program, "info", "--json"], check=True, capture_output=True).stdout)
    with open(os.path.join(a.results, "info.json"), "w", encoding="utf-8") as f:
        json.dump(info, f, indent=1)
    for name, group, words in todo:
        left = a.seconds - (time.monotonic() - begin)
        if name in over or left < 5:
            continue
        start = time.monotonic()
        right, found = (run_tokens if group == "tokens" else run_row)(a.program, words, left)
        if found.get("status", 0) is None and left < a.seconds - 5:
            continue  # it may have the whole time, next time
        over[name] = right
        with open(log, "a", encoding="utf-8") as f:
            f.write(json.dumps({"step": name, "right": right, "s": round(time.monotonic() - start, 3),
                                "commit": info["commit"], "found": found}) + "\n")
        print(f"{name}: {'right' if right else 'WRONG'}", flush=True)
    wrong = [n for n, _, _ in todo if over.get(n) is False]
    left = [n for n, _, _ in todo if n not in over]
    print(f"{len(todo) - len(left)} of {len(todo)} steps are over, {len(wrong)} of them wrong")
    return 1 if wrong else 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
