#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What offloading reaches: overlap of lanes, models larger than memory, each beside what bounds it.

    python3 bench/offload.py [--build build] [--output bench/results/NAME] [--only overlap,larger,shapes]

overlap  opt-6.7b cut to 8 layers on an emulated device, --threads 1, a ring of 10 % or more of the streamed bytes; the
         compute lane alone, the link at 1:1, 3:1 and 1:3 of its time alone (--replay), both together; passes against
         the larger lane
larger   opt-6.7b with a --host-memory a quarter of its weights: within it, and near min(disk, compute)
shapes   opt-13b and opt-30b, 128+32, weights in bf16, on this machine's memory and disk

Every run is `aquifer bench` with random weights; packed stores go to --cache-dir (13, 26 and 60 GB, kept; opt-30b has
another 12 GB of KV there).  Writes
NAME.json and NAME.md.  Exit status 1 when a line misses what it must reach."""
import argparse, json, os, sys, tempfile

import runs
from runs import Lines, decode_pass_s

def overlap(build, lines, raw, seats, gen, repeats, ring):
    with tempfile.TemporaryDirectory() as d:
        shape = os.path.join(d, "opt-6.7b-8-layers.json")
        json.dump(runs.opt_shape(8), open(shape, "w"))
        # 12 h^2 weights a layer in bf16, panels without padding at this width.
        streamed = 8 * 12 * 4096 * 4096 * 2
        base = ["--shape", shape, "--threads", 1, "--prompt-len", 1, "--gen-len", gen, "--micro-batch", seats,
                "--repeats", repeats, "--warmup", 0, "--emulate-device", "9GiB", "--host-products", 0]
        resident = "weights=100/0/0 kv=100/0/0 hidden=100/0/0 head=device"
        streams = "weights=0/100/0 kv=100/0/0 hidden=100/0/0 head=device"
        profile = os.path.join(d, "hw.yaml")

        def now(words):
            """Predicted from what the machine does now."""
            runs.probe(build, profile, ["--threads", 1])
            return runs.bench(build, words + ["--hardware", profile])

        before = now(base + ["--placement", resident])
        lines.predicted("overlap, compute alone", before)
        raw["overlap"] = [before]
        first = decode_pass_s(before)
        for name, ratio, need in (("equal", 1.0, 1.10), ("link three times as long", 3.0, 1.03),
                                  ("compute three times as long", 1 / 3, 1.03)):
            rate = streamed / (first * ratio) / 1e9
            linked = base + ["--placement", streams, "--prefetch", int(streamed * ring),
                             "--emulate-link", f"{rate:.4f}/{rate:.4f}"]
            link = runs.bench(build, linked + ["--replay"])
            r = now(linked)
            after = runs.bench(build, base + ["--placement", resident])
            raw["overlap"] += [link, r, after]
            # The compute lane alone just before and just after: the machine drifts.
            compute = (decode_pass_s(before) + decode_pass_s(after)) / 2
            link_s, pass_s = decode_pass_s(link), decode_pass_s(r)
            held = r["plan"]["weight_stream"]
            share = held["ring"] * held["chunk_bytes"] / held["host_bytes_per_pass"]
            lines.add(f"overlap, {name}: pass / larger lane", need, pass_s / max(compute, link_s), "x",
                      f"compute alone {compute:.3f} s ({decode_pass_s(before):.3f}, {decode_pass_s(after):.3f}), link "
                      f"alone {link_s:.3f} s at {rate:.2f} GB/s, pass {pass_s:.3f} s, ring {100 * share:.1f} %",
                      at_most=True)
            lines.predicted(f"overlap, {name}", r)
            before = after

def larger_than_memory(build, lines, raw, cache):
    budget = 3400 << 20
    base = ["--shape", "opt-6.7b", "--prompt-len", 128, "--gen-len", 8, "--cache-dir", cache, "--repeats", 1,
            "--warmup", 0]
    r = runs.bench(build, base + ["--host-memory", budget, "--requests", 24])
    raw["larger"] = r
    host, stream = r["memory"]["host"], r["plan"]["weight_stream"]
    disk = r["lanes"]["disk_read_weights"]
    rate = disk["gb_s"] * 1e9
    pass_s = decode_pass_s(r)
    bound_s = stream["disk_bytes_per_pass"] / rate
    lines.add("opt-6.7b in a quarter of its bytes: peak / budget", 1.0, host["measured"] / host["budget"], "x",
              f"measured {host['measured'] / 2**20:.0f} MiB, weights {stream['disk_bytes_per_pass'] / 2**20:.0f} MiB",
              at_most=True)
    lines.add("opt-6.7b in a quarter of its bytes: decode / disk bound", 0.85, bound_s / pass_s, "x",
              f"{r['decode_tok_s']:.2f} tok/s, {runs.seats(r)} seats, pass {pass_s:.2f} s, disk {rate / 1e9:.2f} GB/s while busy")
    lines.predicted("opt-6.7b in a quarter of its bytes", r)

# Requests for one block in 24 GB.  More seats than memory holds the KV of, two of five on disk: 86 in memory need
# 3.0 GB/s of the disk for 4.5 tok/s, these 2.25.
BLOCKS = {"opt-13b": ["--requests", 96],
          "opt-30b": ["--requests", 138, "--micro-batch", 69, "--micro-batches", 2, *runs.spread("0/0/100", "0/60/40", "0/100/0", "host")]}

def shapes(build, lines, raw, cache, names, repeats, host_memory):
    for name, need in names:
        # Every decode step is really run.
        r = runs.bench(build, ["--shape", name, "--prompt-len", 128, "--gen-len", 32, *BLOCKS.get(name, BLOCKS["opt-13b"]),
                               "--cache-dir", cache, "--repeats", repeats, "--warmup", 0,
                               *(["--host-memory", host_memory] if host_memory else [])])
        raw.setdefault("shapes", []).append(r)
        disk = r["lanes"].get("disk_read_weights", {})
        lines.add(f"{name}, 128+32, decode", need, r["decode_tok_s"], "tok/s",
                  f"{r['plan']['placement']}, {r['plan']['micro_batch']} x {r['plan']['micro_batches']} seats, disk "
                  f"{disk.get('gb_s') or 0:.2f} GB/s, prefill {r['prefill_tok_s']:.1f} tok/s, peak "
                  f"{r['memory']['host']['measured'] / 2**30:.2f} GiB")
        lines.predicted(name, r)

def markdown(lines, raw):
    e = raw["environment"]
    return [f"# Offloading: {e['cpu']}, {e['cores']} CPUs, commit {raw['commit']}", "",
            f"`python3 bench/offload.py`, {runs.today()}.", "", *lines.table()]

PARTS = ("overlap", "larger", "shapes")

def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default="build")
    p.add_argument("--output")
    p.add_argument("--only", default=",".join(PARTS))
    p.add_argument("--cache-dir", default=os.path.expanduser("~/.cache/aquifer"))
    p.add_argument("--seats", type=int, default=256, help="of the overlap runs")
    p.add_argument("--ring", type=float, default=0.17, help="of the overlap runs, as a share of the streamed bytes")
    p.add_argument("--gen", type=int, default=9, help="tokens of the overlap runs")
    p.add_argument("--repeats", type=int, default=1, help="of the overlap runs")
    p.add_argument("--models", default="opt-13b,opt-30b")
    p.add_argument("--host-memory", help="of the shapes; default: what is available")
    a = p.parse_args()
    lines, raw = Lines(), {}
    only = runs.parts(p, "--only", a.only, PARTS)
    if "overlap" in only:
        overlap(a.build, lines, raw, a.seats, a.gen, a.repeats, a.ring)
    if "larger" in only:
        larger_than_memory(a.build, lines, raw, a.cache_dir)
    if "shapes" in only:
        need = {"opt-13b": 15, "opt-30b": 4.5}
        shapes(a.build, lines, raw, a.cache_dir, [(m, need.get(m)) for m in a.models.split(",")], 1,
               a.host_memory)
    any_run = next(v for v in raw.values())
    any_run = any_run[0] if isinstance(any_run, list) else any_run
    raw["environment"], raw["commit"] = any_run["environment"], any_run["aquifer"]["commit"]
    raw["lines"] = lines.rows
    runs.save(a.output, raw, markdown(lines, raw))
    return lines.status()

if __name__ == "__main__":
    sys.exit(main())
