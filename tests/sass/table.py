#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads on their way, occupancy and what may be expected of the memory's speed, of two builds side by side.

    table.py --before X.o Y.o ... --after aquifer_cuda.so

Counted out of the machine code (sass.py); nothing here was measured on a device.  On its way in an SM are the bytes of a
thread in the row's loop, times the threads that fit.  Of decode attention the share of the memory's bandwidth that may
be expected is the least of: what is on its way against what a full memory has (bandwidth times latency: Little's law),
clocks of bytes against clocks of instructions at the issue rate below, and what DRAM gives at best.  Where K is brought
by one loop and V by another, which was so before, it is the harmonic mean of both; of f16 alone, as codes were bound by
instructions of several loops.  Of prefill attention: clocks that an SM's tensor cores and its shared memory take for 32
keys of 64 queries."""
import argparse, math, re, sys

import sass

# bytes a second, SMs, clock, latency of memory in s, shared memory of an SM and of each block besides its own, threads of an SM
GPUS = {
    75: ("T4", 320e9, 40, 1.59e9, 0.5e-6, 64 << 10, 0, 1024),
    80: ("A100 40 GB", 1555e9, 108, 1.41e9, 0.6e-6, 164 << 10, 1024, 2048),
    89: ("RTX 4090", 1008e9, 128, 2.52e9, 0.6e-6, 100 << 10, 1024, 1536),
    90: ("H100 SXM", 3350e9, 132, 1.755e9, 0.7e-6, 228 << 10, 1024, 2048),
}
REGISTERS, SCHEDULERS = 65536, 4
ISSUE, DRAM = 0.7, 0.92  # instructions a clock of a scheduler with two to four warps; of a memory's bandwidth

# What a block of threads has: name, kernel before and after, threads, shared bytes before and after (third: after, below
# sm_80), and of decode attention with heads of 128 (bits of an element, slots that a turn of the loop takes).
ROWS = [
    ("decode attention, f16", "decode_fused<1, 1, 4>", "decode_tile<1, 128>", 128, 37952, 25712, None, (16, 16)),
    ("decode attention, int8", "decode_fused<10, 1, 4>", "decode_tile<11, 128>", 128, 21568, 25712, None, (8, 16)),
    ("decode attention, int4", "decode_fused<11, 1, 4>", "decode_tile<12, 128>", 128, 13376, 25712, None, (4, 32)),
    ("decode attention, f16, 4 query heads", "decode_fused<1, 4, 4>", "decode_tile<1, 128>", 128, 47168, 25712, None, (16, 16)),
    ("decode attention, int4, 4 query heads", "decode_fused<11, 4, 4>", "decode_tile<12, 128>", 128, 22592, 25712, None, (4, 32)),
    ("prefill attention, f16", "prefill_tile<1, 128>", "prefill_tile<1, 128, 1>", 128, 49152, 49152, 32768, None),
    ("prefill attention, int8", "prefill_tile<1, 128>", "prefill_tile<11, 128, 1>", 128, 49152, 32768, 32768, None),
    ("prefill attention, int4", "prefill_tile<1, 128>", "prefill_tile<12, 128, 1>", 128, 49152, 32768, 32768, None),
    ("column sums, f16", "stats_tile<1, 128>", "stats_tile<1, 128>", 128, 33536, 33536, None, None),
    ("norm", "norm_row", "norm_row", 256, 128, 128, None, None),
    ("statistics of logits", "stat_row", "stat_row", 512, 256, 256, None, None),
    ("sampling", "sample_row", "sample_row", 512, 2320, 2320, None, None),
    ("finish", "finish_row", "finish_row", 256, 0, 0, None, None),
    ("unpack int4", "unpack_tile", "unpack_codes<12, 1>", 256, 16896, 9216, None, None),
    ("int4 product, 8 rows", "multiply_codes<1, 11, 1>", "multiply_codes<1, 12, 1>", 256, 8192, 8192, None, None),
    ("rows of KV moved", "move_rows", "move_rows", 128, 17344, 17344, None, None),
    ("slots selected", "select_slots", "select_slots", 256, 9360, 9360, None, None),
]


def blocks(sm, kernel, threads, shared):
    """Blocks of threads that fit an SM: by registers (taken by warps, 256 at a time), shared memory and threads."""
    _, _, _, _, _, room, each, most = GPUS[sm]
    by_registers = REGISTERS // (threads // 32 * math.ceil(kernel["registers"] * 32 / 256) * 256)
    return min(by_registers, room // (max(shared, kernel["shared"] if sm < 80 else 0) + each or 1), most // threads)


STRAIGHT = {"finish", "unpack int4", "sampling", "slots selected"}  # of these all is asked for before any loop, in what is there now


def best(kernel, straight, kind=None):
    """(length, bytes) of the loop with most on its way; "values": of those that store nothing in shared memory."""
    if straight:
        return len(kernel["code"]), kernel["straight"][0]
    ways = [(b - a, sass.in_flight(kernel["code"][a:b + 1])[1]) for a, b in sass.spans(kernel["code"])
            if kind != "values" or not any("LDGSTS" in l or "STS" in l for l in kernel["code"][a:b + 1])]
    return max(ways, key=lambda w: w[1])


def described(sm, found, row, after):
    """(cells of the table, share of the memory's bandwidth or None)"""
    name, before_name, after_name, threads, before_shared, after_shared, old_shared, attention = row
    kernel = found.get(sm, {}).get(after_name if after else before_name)
    if not kernel:
        return None
    shared = after_shared if after else before_shared
    if after and old_shared and sm < 80:
        shared = old_shared
    _, bandwidth, sms, clock, latency, _, _, _ = GPUS[sm]
    length, size = best(kernel, after and name in STRAIGHT, "values" if attention else None)
    fit = blocks(sm, kernel, threads, shared)

    def filled(of):
        return min(DRAM, fit * threads * of / (bandwidth / sms * latency))
    share = filled(size) if attention else None
    if attention and after:
        bits, slots = attention
        memory = (2 * 32 * 128 * bits // 8 + (256 if bits < 16 else 0)) / (bandwidth / sms / clock)
        share = min(share, memory / (length * 32 / slots / SCHEDULERS / ISSUE))
    elif attention and attention[0] < 16:
        share = None
    elif attention:
        share = 2 / (1 / share + 1 / filled(best(kernel, False)[1]))
    cells = (f"{kernel['registers']}", f"{fit} x {threads // 32} warps", f"{size}", f"{fit * threads * size / 1024:.0f}")
    return cells, share


# Clocks of a product of a warp (HMMA), which has 2048 multiplications, below sm_80 1024: dense rates of NVIDIA's white
# papers with sums in f32; shared memory brings 128 bytes a clock.
PRODUCT = {75: 8, 80: 8, 89: 16, 90: 4}
BANKS = 128


def prefill(sm, found):
    """Rows (kernel, queries of a warp, clocks of tensor cores and of shared memory for 64 queries and 32 keys)."""
    for dim in 64, 128:
        for tiles in 1, 2:
            code = found[sm][f"prefill_tile<1, {dim}, {tiles}>"]["code"]
            count = [sum(bool(re.match(r"(@!?U?P\w+ +)?" + op, line)) for line in code) for op in ("HMMA", "LDSM|LDS.128")]
            if tiles > 1 and sm not in (80, 90):
                continue
            read, brought = 4 * 512 * count[1] / BANKS, 2 * 32 * dim * 2 / BANKS
            yield f"heads of {dim}", 16 * tiles, count[0] * PRODUCT[sm] / tiles, (read + brought) / tiles


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--before", nargs="+", required=True)
    p.add_argument("--after", nargs="+", required=True)
    a = p.parse_args()
    nvdisasm = sass.disassembler()
    if not nvdisasm:
        sys.exit("nvdisasm is missing: pip install nvidia-cuda-nvdisasm")
    before, after = sass.look(nvdisasm, a.before), sass.look(nvdisasm, a.after)
    for sm, gpu in GPUS.items():
        if sm not in after:
            continue
        need = gpu[1] / gpu[2] * gpu[4] / 1024
        print(f"\n## sm_{sm}: {gpu[0]}, a full memory has {need:.0f} KB of each SM on its way\n")
        print("| kernel | registers | blocks an SM | bytes a thread | KB an SM | share of memory |")
        print("|---|---|---|---|---|---|")
        for row in ROWS:
            was, now = described(sm, before, row, False), described(sm, after, row, True)
            if not now:
                sys.exit(f"sm_{sm}: no kernel {row[2]}")
            cells = [f"{w} → {n}" if was and w != n else n for w, n in zip(was[0] if was else now[0], now[0])]
            shares = " → ".join(f"{100 * side[1]:.0f} %" for side in (was, now) if side and side[1])
            print(f"| {row[0]} | {' | '.join(cells)} | {shares} |")
        print("\n| prefill attention, f16 | queries of a warp | clocks of tensor cores | of shared memory |\n|---|---|---|---|")
        for name, queries, products, shared in prefill(sm, after):
            print(f"| {name} | {queries} | {products:.0f} | {shared:.0f} |")


if __name__ == "__main__":
    main()
