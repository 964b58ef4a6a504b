#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the CPU path reaches, each line beside the ceiling measured in the same run.

    python3 bench/spine.py [--build build] [--output bench/results/NAME] [--shape SHAPE]

Runs the kernel benchmarks (kcheck --bench: every sample alternates with register-only loops or streaming
reads), end-to-end rows on a shape with random weights, and compares memory with the ledger.  Writes
NAME.json (raw) and NAME.md (the table).  Exit status 1 when a line misses what it must reach."""
import argparse, json, os, re, statistics, subprocess, sys, tempfile, time

import runs
from runs import Lines

def kcheck(build, filter_, extra):
    with tempfile.NamedTemporaryFile(suffix=".json") as f:
        runs.text_of([f"{build}/tests/kcheck/kcheck", "--bench", "--filter", filter_, "--json", f.name] + extra)
        return json.load(open(f.name))

def best_table(rows):
    """Of each name, the row of the highest table that has it (tables come in rising order)."""
    last = {}
    for r in rows:
        last[r["name"]] = r
    return last.values()

def median_of(rows, key):
    values = [r[key] for r in rows if r.get(key) is not None]
    return statistics.median(values) if values else None

def kernels(build, extra, shape, lines, raw):
    doc = kcheck(build, "product_bf16_w_bf16" + shape, extra)
    raw["product_bf16"] = doc
    highest = doc["rows"][-1]["table"]  # tables rise
    for table in sorted({r["table"] for r in doc["rows"]}):
        rows = [r for r in doc["rows"] if r["table"] == table]
        for m, need in ((1, 0.85), (32, 0.70), (128, 0.88), (512, 0.88)):
            at = [r for r in rows if r["name"].endswith(f"_m{m}")]
            if at:
                bound = at[0]["bound"]
                hot = table == highest
                lines.add(f"bf16 products, {table}, M={m}: share of {bound}", need if hot else None,
                          median_of(at, "share_of_bound"), "of 1", f"{median_of(at, 'rate') / 1e9:.1f} G/s")
    peer = ["--peer", "onednn"] if os.path.exists(f"{build}/tests/kcheck/kcheck_onednn.so") else []
    doc = kcheck(build, "product_f32_w_f32" + shape, extra + peer)
    raw["product_f32"] = doc
    rows = [r for r in best_table(doc["rows"]) if r.get("share_of_peer")]
    lines.add("f32 products against packed oneDNN (median over shapes)", 0.85, median_of(rows, "share_of_peer"), "of 1")
    doc = kcheck(build, "attn_decode", extra)
    raw["attn_decode"] = doc
    for r in best_table(doc["rows"]):
        wanted = re.search(r"decode_f16_b32_h32x1_d(64|128)_s(512|2048)", r["name"])
        lines.add(f"{r['name']}: share of {r['bound']}", 0.80 if wanted else None, r.get("share_of_bound"), "of 1",
                  f"{r['rate'] / 1e9:.1f} G/s")
    doc = kcheck(build, "attn_prefill", extra)
    raw["attn_prefill"] = doc
    for r in best_table(doc["rows"]):
        lines.add(f"{r['name']}: share of {r['bound']}", None, r.get("share_of_bound"), "of 1",
                  f"{r['rate'] / 1e9:.1f} G/s")

def peaks(docs):
    """Ceilings as the kernel benchmarks measured them in this run: medians over the rows of the best table."""
    by = {}
    for doc in docs:
        for r in best_table(doc["rows"]):
            if r.get("bound_rate"):
                by.setdefault(r["bound"], []).append(r["bound_rate"])
    return {k: statistics.median(v) for k, v in by.items()}

def opt(layers, hidden, vocab=50272):
    """Elements of the matrices of all layers, and of the head, which is used only where logits are needed."""
    return 12 * layers * hidden ** 2, hidden * vocab

def llama(layers, hidden, inner, q, kv, vocab):
    """The same; q, kv: numbers of a row of queries, and of keys."""
    return layers * hidden * (2 * q + 2 * kv + 3 * inner), hidden * vocab

# And what prefill and decode must reach, in tokens a second.
SHAPES = {
    "opt-1.3b": (*opt(24, 2048), dict(prefill=300, decode={1: 15, 32: 200, 128: 250})),
    "opt-125m": (*opt(12, 768), dict(prefill=300, decode={1: 15, 32: 200, 128: 250})),
    "llama-3.2-1b": (*llama(16, 2048, 8192, 2048, 512, 128256), None),
}

def end_to_end(build, shape, batches, repeats, lines, raw, ceilings):
    layers, head, targets = SHAPES[shape]
    layer_flops, head_flops = 2 * layers, 2 * head
    weight_bytes = 2 * (layers + head)  # bf16
    product = max(v for k, v in ceilings.items() if "bf16" in k or "amx" in k.lower()) if ceilings else None
    read = next((v for k, v in ceilings.items() if "read" in k), None)
    for b in batches:
        r = runs.bench(build, ["--shape", shape, "--prompt-len", 128, "--gen-len", 32, "--micro-batch", b,
                               "--repeats", repeats])
        raw.setdefault("end_to_end", []).append(r)
        prefill, decode = r["prefill_tok_s"], r["decode_tok_s"]
        what, note = f"{shape} 128+32, batch {b}", f"{r['device']['isa']}, {r['plan']['compute']}"
        lines.add(f"{what}: prefill tok/s", targets["prefill"] if targets and b >= 32 else None, prefill, "tok/s", note)
        if product:
            # Weights are read once for the rows of a pass, of which there are enough to compute for longer.
            ceiling = product / layer_flops
            lines.add(f"{what}: prefill / linear layers' ceiling", None, prefill / ceiling, "of 1",
                      f"{ceiling:.1f} tok/s at {product / 1e9:.0f} Gflop/s")
        lines.add(f"{what}: decode tok/s", targets["decode"].get(b) if targets else None, decode, "tok/s", note)
        if read and product:
            reading, computing = weight_bytes / read, b * (layer_flops + head_flops) / product
            lines.add(f"{what}: decode / linear layers' ceiling", None, decode * max(reading, computing) / b, "of 1",
                      f"{b / max(reading, computing):.1f} tok/s, by {'reading' if reading > computing else 'arithmetic'}"
                      f"; weights at {read / 1e9:.1f} GB/s")
        memory(r, f"{shape}, batch {b}", lines)

def memory(r, what, lines):
    m = r["memory"]["host"]
    ledger, measured = m["ledger"], m["measured"]
    slack = max(0.05 * measured, 32 << 20)
    lines.add(f"{what}: ledger covers the measured peak", 1, 1 if measured <= ledger else 0, "yes=1",
              f"measured {measured / 2**20:.0f} MiB, ledger {ledger / 2**20:.0f} MiB")
    lines.add(f"{what}: ledger within 5 % or 32 MiB of it", 1, 1 if ledger - measured <= slack else 0, "yes=1",
              f"{(ledger - measured) / 2**20:.0f} MiB above")

def preflight(build, model, count, lines, raw):
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "many.jsonl")
        with open(path, "w") as f:
            for i in range(count):
                f.write(json.dumps({"id": f"r{i}", "prompt": f"Chapter {i}. It was a dark and stormy night, and "
                                    "the old house stood at the end of the lane.", "max_tokens": 16}) + "\n")
        start = time.monotonic()
        p = subprocess.Popen([runs.program(build), "generate", "--model", model, "--input", path, "--output",
                              os.path.join(d, "out.jsonl"), "--dry-run"], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(p.pid, 0)
        seconds = time.monotonic() - start
        raw["preflight"] = dict(records=count, seconds=seconds, peak_kib=usage.ru_maxrss, status=status)
        lines.add(f"preflight of {count} records: records per second", count / 10, count / seconds if status == 0 else 0,
                  "1/s", f"{seconds:.1f} s, peak {usage.ru_maxrss // 1024} MiB")

def markdown(lines, raw):
    e = raw["environment"]
    return [f"# {e['cpu']}, {e['cores']} CPUs, commit {raw['commit']}", "",
            f"`python3 bench/spine.py`, {runs.today()}. Shares are medians of samples that alternate with their "
            "ceiling.", "", *lines.table()]

def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default="build")
    p.add_argument("--output")
    p.add_argument("--model", default=os.path.join(os.path.dirname(__file__), "..", "tests", "data", "tiny-opt"))
    p.add_argument("--shape", default="opt-1.3b", choices=sorted(SHAPES))
    p.add_argument("--batches", type=lambda s: [int(b) for b in s.split(",")], default=[1, 32, 128])
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--duration", default="0.5", help="seconds per kernel line")
    p.add_argument("--product", default="", help="only products of this shape, for instance _n8192_k2048")
    p.add_argument("--records", type=int, default=100000)
    p.add_argument("--skip", default="", help="comma list of kernels, end_to_end, preflight")
    a = p.parse_args()
    skip, lines, raw = a.skip.split(","), Lines(), {}
    info = runs.json_of([runs.program(a.build), "info", "--json"])
    raw["commit"] = info.get("commit", "unknown")
    raw["info"] = info
    raw["environment"] = dict(cpu=open("/proc/cpuinfo").read().split("model name\t: ")[1].split("\n")[0],
                              cores=os.cpu_count())
    if "kernels" not in skip:
        kernels(a.build, ["--duration", a.duration], a.product, lines, raw)
    ceilings = peaks([v for v in raw.values() if isinstance(v, dict) and "rows" in v])
    raw["ceilings"] = ceilings
    if "end_to_end" not in skip:
        end_to_end(a.build, a.shape, a.batches, a.repeats, lines, raw, ceilings)
    if "preflight" not in skip:
        preflight(a.build, a.model, a.records, lines, raw)
    runs.save(a.output, dict(raw, lines=lines.rows), markdown(lines, raw))
    return lines.status()

sys.exit(main())
