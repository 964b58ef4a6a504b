#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a smaller KV cache buys: policies against the full cache with the same memory, each at its own best block.

    python3 bench/h2o.py [--build build] [--output bench/results/NAME] [--only constant,memory,link,same,rows]

constant  decode passes with a fixed number of slots, short and long generations: neither their time nor the KV's bytes
          grow once the budget is full (the full cache beside it)
memory    opt-1.3b, 512+512 and 512+1024, everything in --host-memory 4 GiB: what the block holds, generated tok/s
link      opt-125m's weights in host memory over a link so slow that they bind, KV on the emulated device; the same two
same      decode passes over as many slots on average (opt-350m, 448): of rows that keep no scores, and of those that drop
          many at a time, in turns with the full cache; ratios are medians of --rounds, of the full cache's time
rows      llama-3.2-1b, 2048+128, everything in --rows-memory (6 GiB): five rows, and what each is bound by; hours, so that
          each is kept in NAME.rows.json when it is done, and a command started again with the same version goes on

Every run is `aquifer bench` with random weights and every decode step really run; a plan chosen for many requests
fixes the block, and the run has one block full of them.  Writes NAME.json and NAME.md."""
import argparse, statistics, sys

import runs
from runs import bench, decode_pass_s

PARTS = ("constant", "memory", "link", "same", "rows")
POLICIES = (("full", ["--kv-policy", "full"]), ("h2o 20 %", ["--kv-policy", "h2o", "--kv-budget", "20%"]))

# Each holds 448 slots on average while 256 tokens are generated: prompt tokens, policy.
SAME = (("full", 320, ["--kv-policy", "full"]),
        ("window 448", 640, ["--kv-policy", "window", "--kv-budget", "448"]),
        ("snapkv 320", 640, ["--kv-policy", "snapkv", "--kv-budget", "320"]),
        ("knorm 320", 640, ["--kv-policy", "knorm", "--kv-budget", "320"]),
        ("snapkv 512, bulk", 384, ["--kv-policy", "snapkv", "--kv-budget", "512", "--kv-decode", "bulk"]),
        ("scissorhands 512, drop 25 %", 384, ["--kv-policy", "scissorhands", "--kv-budget", "512", "--kv-drop", "25%",
                                              "--kv-history", "32"]))
ROWS = (("full", ["--kv-policy", "full"]),
        ("h2o 20 %", ["--kv-policy", "h2o", "--kv-budget", "20%"]),
        ("snapkv 512", ["--kv-policy", "snapkv", "--kv-budget", "512"]),
        ("ada-snapkv 512", ["--kv-policy", "ada-snapkv", "--kv-budget", "512"]),
        ("snapkv 512, kivi2", ["--kv-policy", "snapkv", "--kv-budget", "512", "--kv-format", "kivi2"]))

def kv_bytes(r):
    return sum(i["bytes"] for i in r["plan"]["ledger"] if i["purpose"].startswith("kv"))

def row(what, lengths, name, r, ratio, bound=""):
    return (what, lengths, name, runs.seats(r), decode_pass_s(r), r["decode_tok_s"], r["gen_tok_s"], ratio, kv_bytes(r),
            bound)

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
            rows.append(row(what, f"{prompt}+{gen}", name, r, r["gen_tok_s"] / found["full"]))
            runs.note(rows[-1])

def same(build, rows, raw, rounds):
    found = [[] for _ in SAME]
    for _ in range(rounds):
        for i, (_, prompt, policy) in enumerate(SAME):
            found[i].append(bench(build, runs.model("opt-350m", prompt, 256, 16) + ["--repeats", 1, "--warmup", 0] + policy))
    for (name, prompt, _), of in zip(SAME, found):
        raw.extend(of)
        ratio = statistics.median(decode_pass_s(r) / decode_pass_s(full) for r, full in zip(of, found[0]))
        middle = sorted(of, key=decode_pass_s)[len(of) // 2]
        rows.append(row("same", f"{prompt}+256", name, middle, ratio))
        runs.note(rows[-1])

def five(build, rows, raw, memory, output):
    kept, version, first = runs.Kept(output and output + ".rows"), runs.version(build), None
    for name, policy in ROWS:
        words = ["--shape", "llama-3.2-1b", "--prompt-len", 2048, "--gen-len", 128, "--host-memory", memory, *policy]
        r = kept.get(f"{version}, {memory}, {name}", lambda w=words: own_best_block(build, w))
        raw.append(r)
        first = first or r["gen_tok_s"]
        rows.append(row(f"llama-3.2-1b in {memory}", "2048+128", name, r, r["gen_tok_s"] / first, r["predicted"]["bound_by"]))
        runs.note(rows[-1])

def constant(build, rows, raw):
    for name, policy in (("full", ["--kv-policy", "full"]), ("h2o 200", ["--kv-policy", "h2o", "--kv-budget", "200"])):
        first = None
        for gen in (32, 256, 1024):
            r = bench(build, ["--shape", "opt-350m", "--prompt-len", 256, "--gen-len", gen, "--micro-batch", 16,
                                "--requests", 16, "--repeats", 1, "--warmup", 1 if gen == 32 else 0] + policy)
            raw.append(r)
            first = first or decode_pass_s(r)
            rows.append(row("constant", f"256+{gen}", name, r, decode_pass_s(r) / first))
            runs.note(rows[-1])

def markdown(raw, rows, commit, environment, command):
    text = [f"# A smaller KV cache: {environment['cpu']}, {environment['cores']} CPUs, commit {commit}", "",
            f"`{command}`, {runs.today()}. Random weights, every decode step run. Ratio: "
            "generated tok/s to the full cache's; of `constant`, a pass to that of the shortest run; of `same`, a pass to the full "
            "cache's.", "",
            "| what | lengths | policy | seats | decode pass s | decode tok/s | generated tok/s | ratio | KV MiB | bound by |",
            "|---|---|---|---|---|---|---|---|---|---|"]
    for what, lengths, name, seats, pass_s, decode, gen, ratio, kv, bound in rows:
        text.append(f"| {what} | {lengths} | {name} | {seats} | {pass_s:.3f} | {decode:.1f} | {gen:.1f} | {ratio:.2f} "
                    f"| {kv / 2**20:.0f} | {bound} |")
    return text

def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default="build")
    p.add_argument("--output")
    p.add_argument("--only", default=",".join(PARTS[:-1]), help="rows takes hours")
    p.add_argument("--gen", default="512,1024", help="generated tokens of memory and link, behind prompts of 512")
    p.add_argument("--rounds", type=int, default=3, help="of same")
    p.add_argument("--rows-memory", default="6GiB", help="of rows; least: 3GiB, whose blocks are run in half an hour")
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
    if "same" in only:
        same(a.build, rows, raw, a.rounds)
    if "rows" in only:
        five(a.build, rows, raw, a.rows_memory, a.output)
    text = markdown(raw, rows, raw[0]["aquifer"]["commit"], raw[0]["environment"],
                    " ".join(["python3 bench/h2o.py"] + [f"--{k.replace('_', '-')} {v}" for k, v in vars(a).items()
                                                         if k not in ("build", "output") and v != p.get_default(k)]))
    runs.save(a.output, raw, text)

if __name__ == "__main__":
    main()
