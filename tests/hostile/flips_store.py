#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Flips single bits of a packed store, one before each run that streams it from disk: every run ends in an error
that says what is damaged, or, where nobody reads the bit, in exactly the right results.

    flips_store.py AQUIFER MODEL [FLIPS] [SEED]"""
import bisect, collections, json, os, random, subprocess, sys, tempfile, time

aquifer, model = sys.argv[1], sys.argv[2]
flips = int(sys.argv[3]) if len(sys.argv) > 3 else 1000
seed = int(sys.argv[4]) if len(sys.argv) > 4 else int(time.time())
print(f"seed {seed}", flush=True)
draw = random.Random(seed)
UNIT = 4 << 20  # of a store in several directories


def records():
    for i, prompt in enumerate(["the cat sat on", "in the beginning", "it was his"]):
        yield {"id": f"r{i}", "prompt": prompt, "max_tokens": 8, "logprobs": 1}


def run(where, store):
    """(exit status, results, what was said)"""
    output = os.path.join(where, "out.jsonl")
    done = subprocess.run([aquifer, "generate", "--device", "cpu", "--model", store, "--input", os.path.join(where, "in.jsonl"),
                           "--output", output, "--overwrite", "--quiet", "--threads", "1", "--placement", "weights=0/0/100"],
                          capture_output=True, text=True, errors="replace", timeout=600)
    results = open(output, "rb").read() if os.path.exists(output) else b""
    for name in os.listdir(where):
        if name.startswith("out.jsonl"):
            os.unlink(os.path.join(where, name))
    return done.returncode, results, done.stderr


def flip(path, bit):
    with open(path, "r+b") as f:
        f.seek(bit // 8)
        byte = f.read(1)[0]
        f.seek(bit // 8)
        f.write(bytes([byte ^ 1 << bit % 8]))


class Data:
    """Where items lie: of n directories, unit u of the address space is unit u / n of directory u % n."""

    def __init__(self, store, count):
        with open(os.path.join(store, "manifest.json"), encoding="utf-8") as f:
            items = [i for s in json.load(f)["steps"] for i in s["items"]]
        self.begin, self.count = [i["offset"] for i in items], count
        self.end = [i["offset"] + i["bytes"] for i in items]

    def is_read(self, directory, at):
        unit = at // UNIT * self.count + directory
        place = unit * UNIT + at % UNIT
        i = bisect.bisect(self.begin, place) - 1
        return i >= 0 and place < self.end[i]


def targets(stores):
    """(share of the flips, files)"""
    every = [os.path.join(s, name) for s in stores for name in os.listdir(s)]
    data = [p for p in every if os.path.basename(p).startswith("data.")]
    manifest = [p for p in every if os.path.basename(p) in ("manifest.json", "stripe.json")]
    return [(7, data), (2, manifest), (1, [p for p in every if p not in data + manifest])]


def verdict(status, results, said, right, must_find):
    if status < 0:
        return "crashed"
    if status == 0:
        return "silent" if results != right else "unnoticed" if must_find else "harmless"
    return "found" if status == 2 and "error: " in said else f"status {status}"


with tempfile.TemporaryDirectory() as where:
    with open(os.path.join(where, "in.jsonl"), "w", encoding="utf-8") as f:
        for r in records():
            f.write(json.dumps(r) + "\n")
    stores = [os.path.join(where, "store0"), os.path.join(where, "store1")]
    subprocess.run([aquifer, "pack", "--model", model, "--output", ",".join(stores), "--quiet"], check=True)
    status, right, said = run(where, stores[0])
    if status != 0 or right.count(b"\n") != 3:
        sys.exit(f"FAILED: the undisturbed run: status {status}: {said}")
    layout, files = Data(stores[0], len(stores)), targets(stores)
    total, bad = collections.Counter(), 0
    for i in range(flips):
        path = draw.choice(draw.choices([t[1] for t in files], [t[0] for t in files])[0])
        bit = draw.randrange(8 * os.path.getsize(path))
        name = os.path.basename(path)
        flip(path, bit)
        status, results, said = run(where, stores[0])
        flip(path, bit)
        must_find = name.startswith("data.") and layout.is_read(int(name[5:]), bit // 8)
        what = verdict(status, results, said, right, must_find)
        total[what] += 1
        if what not in ("found", "harmless"):
            bad += 1
            print(f"FAILED: bit {bit % 8} of byte {bit // 8} of {name}: {what}: {said.strip()}")
    if run(where, stores[0])[:2] != (0, right):
        sys.exit("FAILED: with every bit back in its place the results are others")
    print(f"{flips} flips (seed {seed}): {total['found']} found, {total['harmless']} harmless, "
          f"{total['silent'] + total['unnoticed']} silent, {total['crashed']} crashed, "
          f"{bad - total['silent'] - total['unnoticed'] - total['crashed']} other")
    sys.exit(1 if bad or not total["found"] else 0)
