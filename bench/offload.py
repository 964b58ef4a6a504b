#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What offloading reaches: overlap of lanes, models larger than memory, each beside what bounds it.

    python3 bench/offload.py [--build build] [--output bench/results/NAME] [--only overlap,larger,shapes]

overlap  opt-6.7b cut to 8 layers on an emulated device, --threads 1, a ring of 10 % or more of the streamed bytes; the
         compute lane alone, the link at 1:1, 3:1 and 1:3 of its time alone (--replay), both together; passes against
         the larger lane
larger   opt-6.7b with a --host-memory a quarter of its weights: within it, and near min(disk, compute)
shapes   opt-13b and opt-30b, 128+32, weights in bf16, on this machine's memory and disk

Every run is `aquifer bench` with random weights; packed stores go to --cache-dir (13, 26 and 60 GB, kept).  Writes
NAME.json and NAME.md.  Exit status 1 when a line misses what it must reach."""
import argparse, json, os, subprocess, sys, tempfile, time

def run(build, args):
    command = [f"{build}/engine/cli/aquifer", "bench", "--random-weights", "1", "--json"] + [str(a) for a in args]
    print("+", " ".join(command), file=sys.stderr, flush=True)
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    return json.loads(out)

class Lines:
    def __init__(self):
        self.rows = []
    def add(self, what, need, found, unit, note="", at_most=False):
        ok = None if need is None else found <= need if at_most else found >= need
        self.rows.append(dict(what=what, need=need, found=found, unit=unit, note=note, ok=ok, at_most=at_most))
        print(f"{'ok  ' if ok else 'MISS' if ok is False else '    '} {what}: {found:.3g} {unit} {note}",
              file=sys.stderr, flush=True)

def decode_pass_s(r):
    """Seconds of a decode pass: every repeat decodes gen - 1 times with all seats."""
    seats = r["plan"]["micro_batch"] * r["plan"]["micro_batches"]
    return seats / r["decode_tok_s"]

CONFIG = dict(model_type="opt", architectures=["OPTForCausalLM"], vocab_size=50272, hidden_size=4096, ffn_dim=16384,
              num_attention_heads=32, num_hidden_layers=8, max_position_embeddings=2048, word_embed_proj_dim=4096,
              do_layer_norm_before=True, activation_function="relu", torch_dtype="float16", bos_token_id=2,
              eos_token_id=2, pad_token_id=1)

def predicted_line(lines, what, r):
    """The simulator's decode pass beside the measured one; off by at most 5 % either way."""
    found, said = decode_pass_s(r), r["predicted"]["decode_pass_s"]
    lines.add(f"{what}: simulated and measured pass, the larger by the smaller", 1.05, max(found / said, said / found),
              "x", f"simulated {said:.3f} s, measured {found:.3f} s", at_most=True)

def overlap(build, lines, raw, seats, gen, repeats, ring):
    with tempfile.TemporaryDirectory() as d:
        shape = os.path.join(d, "opt-6.7b-8-layers.json")
        json.dump(CONFIG, open(shape, "w"))
        # 12 h^2 weights a layer in bf16, panels without padding at this width.
        streamed = 8 * 12 * 4096 * 4096 * 2
        base = ["--shape", shape, "--threads", 1, "--prompt-len", 1, "--gen-len", gen, "--micro-batch", seats,
                "--repeats", repeats, "--warmup", 0, "--emulate-device", "9GiB", "--host-products", 0]
        resident = "weights=100/0/0 kv=100/0/0 hidden=100/0/0 head=device"
        streams = "weights=0/100/0 kv=100/0/0 hidden=100/0/0 head=device"
        before = run(build, base + ["--placement", resident])
        predicted_line(lines, "overlap, compute alone", before)
        raw["overlap"] = [before]
        first = decode_pass_s(before)
        for name, ratio, need in (("equal", 1.0, 1.10), ("link three times as long", 3.0, 1.03),
                                  ("compute three times as long", 1 / 3, 1.03)):
            rate = streamed / (first * ratio) / 1e9
            linked = base + ["--placement", streams, "--prefetch", int(streamed * ring),
                             "--emulate-link", f"{rate:.4f}/{rate:.4f}"]
            link = run(build, linked + ["--replay"])
            r = run(build, linked)
            after = run(build, base + ["--placement", resident])
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
            predicted_line(lines, f"overlap, {name}", r)
            before = after

def larger_than_memory(build, lines, raw, cache):
    budget = 3400 << 20
    base = ["--shape", "opt-6.7b", "--prompt-len", 128, "--gen-len", 8, "--cache-dir", cache, "--repeats", 1,
            "--warmup", 0]
    r = run(build, base + ["--host-memory", budget, "--requests", 24])
    raw["larger"] = r
    host, stream = r["memory"]["host"], r["plan"]["weight_stream"]
    disk = r["lanes"]["disk_read_weights"]
    seats = r["plan"]["micro_batch"] * r["plan"]["micro_batches"]
    rate = disk["gb_s"] * 1e9
    pass_s = decode_pass_s(r)
    bound_s = stream["disk_bytes_per_pass"] / rate
    lines.add("opt-6.7b in a quarter of its bytes: peak / budget", 1.0, host["measured"] / host["budget"], "x",
              f"measured {host['measured'] / 2**20:.0f} MiB, weights {stream['disk_bytes_per_pass'] / 2**20:.0f} MiB",
              at_most=True)
    lines.add("opt-6.7b in a quarter of its bytes: decode / disk bound", 0.85, bound_s / pass_s, "x",
              f"{r['decode_tok_s']:.2f} tok/s, {seats} seats, pass {pass_s:.2f} s, disk {rate / 1e9:.2f} GB/s while busy")
    predicted_line(lines, "opt-6.7b in a quarter of its bytes", r)

def shapes(build, lines, raw, cache, names, repeats, host_memory):
    for name, need in names:
        # Requests for one block that fits 24 GB; every decode step is really run.
        r = run(build, ["--shape", name, "--prompt-len", 128, "--gen-len", 32,
                        "--requests", {"opt-30b": 86}.get(name, 96), "--cache-dir", cache, "--repeats", repeats,
                        "--warmup", 0] + (["--host-memory", host_memory] if host_memory else []))
        raw.setdefault("shapes", []).append(r)
        disk = r["lanes"].get("disk_read_weights", {})
        lines.add(f"{name}, 128+32, decode", need, r["decode_tok_s"], "tok/s",
                  f"{r['plan']['placement']}, {r['plan']['micro_batch']} x {r['plan']['micro_batches']} seats, disk "
                  f"{disk.get('gb_s') or 0:.2f} GB/s, prefill {r['prefill_tok_s']:.1f} tok/s, peak "
                  f"{r['memory']['host']['measured'] / 2**30:.2f} GiB")
        predicted_line(lines, name, r)

def markdown(lines, raw):
    text = [f"# Offloading: {raw['environment']['cpu']}, {raw['environment']['cores']} CPUs, commit {raw['commit']}", "",
            f"`python3 bench/offload.py`, {time.strftime('%Y-%m-%d')}.", "", "| line | must reach | found | |",
            "|---|---|---|---|"]
    for r in lines.rows:
        need = "" if r["need"] is None else ("<= " if r["at_most"] else ">= ") + f"{r['need']:g}"
        mark = "" if r["ok"] in (None, True) else "**missed** "
        text.append(f"| {r['what']} | {need} | {r['found']:.3g} {r['unit']} | {mark}{r['note']} |")
    return "\n".join(text) + "\n"

def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default="build")
    p.add_argument("--output")
    p.add_argument("--only", default="overlap,larger,shapes")
    p.add_argument("--cache-dir", default=os.path.expanduser("~/.cache/aquifer"))
    p.add_argument("--seats", type=int, default=256, help="of the overlap runs")
    p.add_argument("--ring", type=float, default=0.17, help="of the overlap runs, as a share of the streamed bytes")
    p.add_argument("--gen", type=int, default=9, help="tokens of the overlap runs")
    p.add_argument("--repeats", type=int, default=1, help="of the overlap runs")
    p.add_argument("--models", default="opt-13b,opt-30b")
    p.add_argument("--host-memory", help="of the shapes; default: what is available")
    a = p.parse_args()
    lines, raw = Lines(), {}
    only = a.only.split(",")
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
    text = markdown(lines, raw)
    print(text)
    if a.output:
        json.dump(raw, open(a.output + ".json", "w"), indent=1)
        open(a.output + ".md", "w").write(text)
    return 0 if all(r["ok"] is not False for r in lines.rows) else 1

if __name__ == "__main__":
    sys.exit(main())
