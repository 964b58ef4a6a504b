#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a smaller KV cache buys: h2o at 20 % against the full cache with the same memory, each at its own best block.

    python3 bench/h2o.py [--build build] [--output bench/results/NAME] [--only constant,memory,link]

constant  decode passes with a fixed number of slots, short and long generations: neither their time nor the KV's bytes
          grow once the budget is full (the full cache beside it)
memory    opt-1.3b, 512+512 and 512+1024, everything in --host-memory 4 GiB: what the block holds, generated tok/s
link      opt-125m's weights in host memory over a link so slow that they bind, KV on the emulated device; the same two

Every run is `aquifer bench` with random weights and every decode step really run; a plan chosen for many requests
fixes the block, and the run has one block full of them.  Writes NAME.json and NAME.md."""
import argparse, sys

import runs
from runs import bench, decode_pass_s

PARTS = ("constant", "memory", "link")
POLICIES = (("full", ["--kv-policy", "full"]), ("h2o 20 %", ["--kv-policy", "h2o", "--kv-budget", "20%"]))

def kv_bytes(r):
    return sum(i["bytes"] for i in r["plan"]["ledger"] if i["purpose"] == "kv")

def own_best_block(build, args):
    """The block that the plan picks when requests are many, run full once."""
    plan = bench(build, args + ["--requests", 4096, "--dry-run"])
    shape = ["--micro-batch", plan["micro_batch"], "--micro-batches", plan["micro_batches"]]
    return bench(build, args + shape + ["--requests", plan["micro_batch"] * plan["micro_batches"],
                                          "--repeats", 1, "--warmup", 0])

def pairs(build, rows, raw, what, base, gens):
    for prompt, gen in ((512, int(g)) for g in gens.split(",")):
        found = {}
        for name, policy in POLICIES:
            r = own_best_block(build, base + policy + ["--prompt-len", prompt, "--gen-len", gen])
            raw.append(r)
            found[name] = r["gen_tok_s"]
            rows.append((what, f"{prompt}+{gen}", name, runs.seats(r), decode_pass_s(r), r["decode_tok_s"], r["gen_tok_s"],
                         r["gen_tok_s"] / found["full"], kv_bytes(r)))
            print(rows[-1], file=sys.stderr, flush=True)

def constant(build, rows, raw):
    for name, policy in (("full", ["--kv-policy", "full"]), ("h2o 200", ["--kv-policy", "h2o", "--kv-budget", "200"])):
        first = None
        for gen in (32, 256, 1024):
            r = bench(build, ["--shape", "opt-350m", "--prompt-len", 256, "--gen-len", gen, "--micro-batch", 16,
                                "--requests", 16, "--repeats", 1, "--warmup", 1 if gen == 32 else 0] + policy)
            raw.append(r)
            first = first or decode_pass_s(r)
            rows.append(("constant", f"256+{gen}", name, 16, decode_pass_s(r), r["decode_tok_s"], r["gen_tok_s"],
                         decode_pass_s(r) / first, kv_bytes(r)))
            print(rows[-1], file=sys.stderr, flush=True)

def markdown(raw, rows, commit, environment, command):
    text = [f"# A smaller KV cache: {environment['cpu']}, {environment['cores']} CPUs, commit {commit}", "",
            f"`{command}`, {runs.today()}. Random weights, every decode step run. Ratio: "
            "generated tok/s to the full cache's; of `constant`, a pass to that of the shortest run.", "",
            "| what | lengths | policy | seats | decode pass s | decode tok/s | generated tok/s | ratio | KV MiB |",
            "|---|---|---|---|---|---|---|---|---|"]
    for what, lengths, name, seats, pass_s, decode, gen, ratio, kv in rows:
        text.append(f"| {what} | {lengths} | {name} | {seats} | {pass_s:.3f} | {decode:.1f} | {gen:.1f} | {ratio:.2f} "
                    f"| {kv / 2**20:.0f} |")
    return text

def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default="build")
    p.add_argument("--output")
    p.add_argument("--only", default=",".join(PARTS))
    p.add_argument("--gen", default="512,1024", help="generated tokens of memory and link, behind prompts of 512")
    a = p.parse_args()
    raw, rows, only = [], [], runs.parts(p, "--only", a.only, PARTS)
    if "constant" in only:
        constant(a.build, rows, raw)
    if "memory" in only:
        pairs(a.build, rows, raw, "opt-1.3b in 4 GiB", ["--shape", "opt-1.3b", "--host-memory", "4GiB", "--placement",
                                                  "weights=0/100/0 kv=0/100/0 hidden=0/100/0 head=host"], a.gen)
    if "link" in only:
        pairs(a.build, rows, raw, "opt-125m over 1 GB/s",
              ["--shape", "opt-125m", "--emulate-device", "900MiB", "--emulate-link", "1/1", "--host-products", "0",
               "--placement", "weights=0/100/0 kv=100/0/0 hidden=100/0/0 head=device"], a.gen)
    text = markdown(raw, rows, raw[0]["aquifer"]["commit"], raw[0]["environment"],
                    " ".join(["python3 bench/h2o.py"] + [f"--{k} {v}" for k, v in vars(a).items()
                                                         if k in ("only", "gen") and v != p.get_default(k)]))
    runs.save(a.output, raw, text)

if __name__ == "__main__":
    main()
