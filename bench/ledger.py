#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Is every byte on the ledger?  Runs of many kinds, and for each tier what the ledger says beside the measured peak.

    python3 bench/ledger.py [--build build] [--output bench/results/NAME] [--cache-dir DIR] [--only TEXT]

host    peak resident set of the whole process; an emulated device's memory lies inside
device  most bytes taken from the emulated device's memory at a time
disk    scratch of KV cache and hidden states, as the file system counts it
store   data files that weights stream from, as the file system counts them

A ledger is never below its peak, and above it by at most 3 %, or 32 MiB where the peak is below 1 GiB.  Nothing is
timed, so that other work on the machine does not matter.  A row is kept in NAME.json as it finishes; NAME.md has the
table; started again it goes on (another build of aquifer: run again).  Exit status 1 when a line is missed or a run
failed."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import runs
from runs import model, spread

MIB, GIB = 1 << 20, 1 << 30
DEVICE = ["--emulate-device", "1200MiB", "--emulate-link", "8/8"]
ALL_HOST = spread("0/100/0", "0/100/0", "0/100/0", "host")


def policy(name, budget="20%"):
    return ["--kv-policy", name, "--kv-budget", budget]


def one_memory():
    """Host and disk."""
    yield "opt-125m, one seat", model("opt-125m", 32, 4, 1)
    yield "opt-125m, 64 seats", model("opt-125m", 64, 4, 64)
    yield "opt-125m, planned, little memory", ["--shape", "opt-125m", "--prompt-len", 96, "--gen-len", 6, "--requests",
                                               48, "--host-memory", "420MiB"]
    yield "opt-350m, f32", model("opt-350m", 64, 4, 8) + ["--compute", "f32"]
    yield "opt-350m, two micro-batches, int8", model("opt-350m", 64, 4, 8, 2) + ["--weight-format", "int8"]
    yield "opt-350m, int4, KV int4", model("opt-350m", 256, 4, 24) + ["--weight-format", "int4", "--kv-format", "int4"]
    yield "opt-1.3b", model("opt-1.3b", 32, 3, 8)
    yield "opt-350m, h2o", model("opt-350m", 256, 6, 24) + policy("h2o")
    yield "opt-350m, window, KV int8", model("opt-350m", 256, 6, 24) + policy("window") + ["--kv-format", "int8"]
    yield "opt-350m, heavy, one thread", model("opt-350m", 256, 6, 24) + policy("heavy") + ["--threads", 1]
    yield "disk, opt-125m, all weights", model("opt-125m", 64, 4, 8) + spread("0/0/100", "0/100/0", "0/100/0", "host")
    yield "disk, opt-1.3b, half the weights", model("opt-1.3b", 32, 3, 8) + spread("0/50/50", "0/100/0", "0/100/0", "host")
    yield "disk, opt-350m, int8, all but hidden", (model("opt-350m", 128, 4, 16) + ["--weight-format", "int8"] +
                                                  spread("0/0/100", "0/0/100", "0/100/0", "host"))
    yield "disk, KV, h2o", model("opt-125m", 256, 6, 32) + spread("0/100/0", "0/0/100", "0/100/0", "host") + policy("h2o")
    yield "disk, KV and hidden", model("opt-125m", 128, 4, 16, 2) + spread("0/100/0", "0/30/70", "0/0/100", "host")
    yield "disk, planned, opt-1.3b in 1 GiB", ["--shape", "opt-1.3b", "--prompt-len", 48, "--gen-len", 3, "--requests",
                                               16, "--host-memory", "1GiB"]
    yield "traced, opt-125m", model("opt-125m", 64, 4, 8) + ["--trace", "trace.json"]


def three_tiers():
    """On an emulated device."""
    yield "device, all there", model("opt-125m", 64, 4, 16) + DEVICE
    yield "device, weights stream", model("opt-350m", 64, 4, 16, 2) + DEVICE + spread("0/100/0")
    yield "device, host attends", model("opt-125m", 256, 4, 16, 2) + DEVICE + spread(kv="0/100/0") + ["--attention", "host"]
    yield "device, split attention, h2o", (model("opt-125m", 256, 6, 16, 2) + DEVICE + spread(kv="0/100/0") +
                                           ["--attention", "split:40%"] + policy("h2o"))
    yield "device, products on the host", (model("opt-350m", 64, 4, 16) + DEVICE + spread("20/80/0") +
                                           ["--host-products", "50%"])
    yield "device, all three tiers", (model("opt-350m", 128, 4, 16, 2) + DEVICE +
                                      spread("30/30/40", "40/30/30", "50/50/0", "host"))
    yield "device, int4, fused, alternating", (model("opt-350m", 64, 4, 16, 2) + DEVICE + ["--weight-format", "int4"] +
                                               spread("0/100/0", hidden="0/100/0") + ["--fuse-layer", "--alternate"])
    yield "device, planned", ["--shape", "opt-350m", "--prompt-len", 96, "--gen-len", 4, "--requests", 64,
                              "--emulate-device", "400MiB", "--host-memory", "1500MiB"]


def families():
    """Heads that share keys, gated MLPs, norms of heads, windows, layers of one step."""
    yield "families: llama-3.2-1b", model("llama-3.2-1b", 64, 4, 16)
    yield "families: pythia-1.4b, two micro-batches", model("pythia-1.4b", 64, 4, 8, 2)
    yield "families: small-llama, f32", model("small-llama", 128, 4, 24) + ["--compute", "f32"]
    yield "families: small-llama, int4, KV int4", model("small-llama", 256, 4, 24) + ["--weight-format", "int4",
                                                                                     "--kv-format", "int4"]
    yield "families: small-llama, h2o", model("small-llama", 256, 6, 32) + policy("h2o")
    yield "families: small-qwen3, adakv, KV int8", model("small-qwen3", 256, 6, 16) + policy("adakv") + ["--kv-format",
                                                                                                         "int8"]
    yield "families: small-mistral, window of 96", model("small-mistral", 384, 6, 16)
    yield "families: small-neox, h2o, one thread", model("small-neox", 256, 6, 16) + policy("h2o") + ["--threads", 1]
    yield "disk, families: small-llama, weights and KV", (model("small-llama", 128, 4, 16, 2) +
                                                          spread("0/30/70", "0/30/70", "0/50/50", "host"))
    yield "disk, families: small-neox, int8", (model("small-neox", 128, 4, 16) + ["--weight-format", "int8"] +
                                               spread("0/0/100", "0/50/50", "0/100/0", "host"))
    yield "disk, families: planned, llama-3.2-1b in 2 GiB", ["--shape", "llama-3.2-1b", "--prompt-len", 48, "--gen-len",
                                                             3, "--requests", 16, "--host-memory", "2GiB"]
    yield "device, families: small-llama, all three tiers", (model("small-llama", 128, 4, 16, 2) + DEVICE +
                                                             spread("30/30/40", "40/30/30", "50/50/0", "host"))
    yield "device, families: small-qwen3, split attention", (model("small-qwen3", 256, 6, 8, 2) + DEVICE +
                                                             spread(kv="0/100/0") + ["--attention", "split:40%"])
    yield "device, families: small-llama, products on the host", (model("small-llama", 64, 4, 16) + DEVICE +
                                                                  spread("20/80/0") + ["--host-products", "50%"])
    yield "device, families: small-neox, weights stream", (model("small-neox", 64, 4, 16, 2) + DEVICE +
                                                           spread("0/100/0") + ["--host-products", "50%"])
    yield "device, families: planned, small-neox", ["--shape", "small-neox", "--prompt-len", 96, "--gen-len", 4,
                                                    "--requests", 48, "--emulate-device", "300MiB", "--host-memory",
                                                    "1200MiB"]


def jobs():
    """Of aquifer generate, with prompts of many lengths and seats that are filled again: shape, options, records."""
    yield "job, opt-125m", "opt-125m", ["--micro-batch", 16], 64, (8, 120), (2, 12)
    yield "job, opt-125m, 4000 records", "opt-125m", ["--micro-batch", 64], 4000, (4, 12), (1, 2)
    yield "job, planned, opt-350m in 700 MiB", "opt-350m", ["--host-memory", "700MiB"], 40, (8, 120), (2, 8)
    yield "job, device, h2o", "opt-125m", (["--micro-batch", 16, "--micro-batches", 2] + DEVICE + spread("0/100/0") +
                                          policy("h2o", "30%")), 96, (8, 120), (2, 12)
    yield "job, disk", "opt-125m", (["--micro-batch", 16] + spread("0/40/60", "0/50/50", "0/100/0", "host")), 48, (
        8, 120), (2, 8)
    yield "job, families: small-llama, device, h2o", "small-llama", (["--micro-batch", 16, "--micro-batches", 2] + DEVICE +
                                                                     spread("0/100/0") + policy("h2o", "30%")), 96, (
        8, 120), (2, 12)
    yield "job, families: small-neox, disk", "small-neox", (["--micro-batch", 16] +
                                                            spread("0/40/60", "0/50/50", "0/100/0", "host")), 48, (
        8, 120), (2, 8)


class Ledger:
    def __init__(self, args, folder):
        self.args, self.dir = args, folder
        self.kept = runs.Kept(args.output)
        self.version = runs.version(args.build)
        self.common = ["--device", "cpu", "--cache-dir", args.cache_dir, "--quiet"]

    def bench(self, words):
        words = [runs.shape(str(w), self.dir) for w in words]
        return runs.bench(os.path.abspath(self.args.build), [*words, "--repeats", 1, "--warmup", 0, *self.common],
                          cwd=self.dir)

    def generate(self, shape, words, count, prompts, news):
        words = ["--shape", runs.shape(shape, self.dir), "--random-weights", 1, *words, *self.common]
        return runs.generate(os.path.abspath(self.args.build), words, self.dir, count, prompts, news)

    def all(self):
        """(key, what makes its report, what that depends on)."""
        for key, words in [*one_memory(), *three_tiers(), *families()]:
            yield key, lambda w=words: self.bench(w), words
        for key, *job in jobs():
            yield key, lambda j=job: self.generate(*j), job

    def row(self, key, make, depends):
        """A run that fails is a row too, and is tried again when started again."""
        depends = json.dumps([self.version, depends])
        if self.kept.document.get(key, {}).get("depends", depends) != depends:
            del self.kept.document[key]
        try:
            return self.kept.get(key, lambda: dict(depends=depends, **summary(make())))
        except (subprocess.CalledProcessError, KeyError, TypeError) as e:
            runs.note(f"FAILED {key}: {e}")
            return dict(error=f"{type(e).__name__}: {e}"[:200])


def summary(report):
    memory = report["memory"]
    tiers = {name: [tier["ledger"], tier["measured"]] for name, tier in memory.items()}
    disk = memory.get("disk", {})
    if "store" in disk:
        tiers["store"] = [disk["store"], disk["store_measured"]]
    if not any(tiers.get("disk", [1])):
        del tiers["disk"]
    return dict(tiers=tiers, placement=report["plan"]["placement"], seats=runs.seats(report),
                process=next(i["bytes"] for i in report["plan"]["ledger"] if i["purpose"] == "process"),
                environment=report["environment"], error=None)


def allowed(measured):
    return 32 * MIB if measured < GIB else 0.03 * measured


def is_right(ledger, measured):
    return measured <= ledger <= measured + allowed(measured)


def cell(tiers, name):
    if name not in tiers:
        return "", "", ""
    ledger, measured = tiers[name]
    mark = "" if is_right(ledger, measured) else "**under** " if measured > ledger else "**over** "
    return f"{ledger / MIB:.1f}", f"{measured / MIB:.1f}", f"{mark}{(ledger - measured) / MIB:.1f}"


def table(rows):
    names = ("host", "device", "disk", "store")
    yield "| run | " + " | ".join(f"{n}: ledger | peak | over" for n in names) + " |"
    yield "|---" * (1 + 3 * len(names)) + "|"
    for key, r in rows:
        if r.get("error"):
            yield f"| {key} | failed: {r['error']} |" + " |" * (3 * len(names) - 1)
        else:
            yield f"| {key} | " + " | ".join(" | ".join(cell(r["tiers"], n)) for n in names) + " |"


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--output")
    p.add_argument("--cache-dir", default=os.path.expanduser("~/.cache/aquifer"), help="of stores and scratch")
    p.add_argument("--only", default="", help="runs whose name has this in it")
    p.add_argument("--list", action="store_true", help="name the runs and stop")
    return p.parse_args()


def main():
    a = arguments()
    a.cache_dir = os.path.abspath(a.cache_dir)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(a, folder)
        chosen = [j for j in ledger.all() if a.only in j[0]]
        if a.list:
            print("\n".join(j[0] for j in chosen))
            return 0
        rows = [(key, ledger.row(key, make, depends)) for key, make, depends in chosen]
    figures = [t for _, r in rows if not r["error"] for t in r["tiers"].values()]
    missed = sum(not is_right(*t) for t in figures)
    failed = sum(bool(r["error"]) for _, r in rows)
    text = [f"# Ledger and measured peaks, {ledger.version}", "", f"`python3 bench/ledger.py`, {runs.today()}; MiB.", "",
            *table(rows), "",
            f"{len(rows)} runs, {len(figures)} figures: {missed} outside what is allowed (never under; at most 3 % over, "
            f"32 MiB below 1 GiB)" + (f"; {failed} runs failed." if failed else ".")]
    print("\n".join(text))
    if a.output:
        runs.write(a.output + ".md", "\n".join(text) + "\n")
    return 1 if missed or failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
