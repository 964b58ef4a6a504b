# SPDX-License-Identifier: Apache-2.0
"""What bench/gpu_suite.py must reach: its steps' findings as lines, each beside the ceiling of the same run.

A line whose steps have not run, or were skipped, has no figure: it is neither reached nor missed."""
import runs

# Generated tokens a second that an H200 with 120 GB of host memory should come to at 512+512, OPT-30B in 16 GiB.
AIMS = {"full/f16": 50, "h2o/f16": 245, "h2o/int4": 490, "h2o/int4/kv-int4": 1000}


def rate(hw, key):
    """A rate of the probed profile in its unit; None where it was not measured."""
    section, name = key.split(".")
    found = ((hw or {}).get("rates", {}).get(section) or {}).get(name)
    return found["value"] if found and found["origin"] == "given" else None


def ratio(a, b):
    return a / b if a and b else None


def share(text, what, place):
    """The share that a placement gives a place: of 'weights=20/80/0 kv=...', what 'weights', place 0 to 2."""
    return float(dict(w.split("=") for w in text.split())[what].split("/")[place]) / 100


def fetched(attention):
    """The share of the KV away from the device that comes to it: all but what the host attends, as the plan says
    ('device', 'host', 'split:20%').  Lanes would not tell: those of a projected row are of its first pass."""
    side, _, percent = attention.partition(":")
    return {"device": 1.0, "host": 0.0}[side] if side != "split" else 1 - float(percent.rstrip("%")) / 100


def lane(report, name, what):
    return ((report or {}).get("lanes", {}).get(name) or {}).get(what)


class Bound:
    """Seconds that a row takes at least: the slowest of link, host memory, arithmetic and device memory, for each kind of
    pass, from the ceilings of the run.  Arithmetic of the block that was run; nothing is fitted."""

    def __init__(self, report, hw):
        plan, model, row = report["plan"], report["model"], report["row"]
        self.hw, self.plan = hw, plan
        self.fetched = fetched(plan["attention"])
        self.seats = plan["micro_batch"] * plan["micro_batches"]
        self.prompt, self.gen = row["prompt_len"], row["gen_len"]
        self.layers, self.hidden = model["layers"], model["hidden"]
        # Numbers that multiply every row, and those that only rows with a next token meet: the head.  (Its table of
        # embeddings is looked up and not multiplied; OPT's head is that table, and its positions are few beside it.)
        self.inner = 12 * self.layers * self.hidden ** 2
        self.head = model["parameters"] - self.inner
        bits = {"f32": 32, "f16": 16, "bf16": 16, "int8": 8.5, "int4": 4.5}
        self.kv_bytes = 4 * self.hidden * self.layers * bits[plan["kv_format"]] / 16  # of a token: K and V
        self.weight_bytes = model["parameters"] * bits[plan["weight_format"]] / 8
        stream = plan.get("weight_stream") or {}
        self.streamed = stream.get("host_bytes_per_pass", 0) + stream.get("disk_bytes_per_pass", 0)

    def kept(self, keys):
        """Slots that a sequence of so many tokens holds: h2o's rows keep 20 %."""
        return min(keys, 0.2 * (self.prompt + self.gen)) if self.plan["kv_policy"] == "h2o" else keys

    def slowest(self, link, host, flops, device):
        h2d, dram = rate(self.hw, "links.h2d_gb_s"), rate(self.hw, "host.memory_gb_s")
        product, memory = rate(self.hw, "device.product_f16_tflop_s"), rate(self.hw, "device.memory_gb_s")
        return max(("link", link / h2d / 1e9), ("host memory", host / dram / 1e9), ("device flops", flops / product / 1e12),
                   ("device memory", device / memory / 1e9), key=lambda part: part[1])

    def decode(self, keys):
        """(what binds, seconds) of a pass whose sequences have so many tokens."""
        kv = self.seats * self.kept(keys) * self.kv_bytes
        there = kv * share(self.plan["placement"], "kv", 0)
        away = kv - there
        comes = away * self.fetched
        return self.slowest(self.streamed + comes, self.streamed + away, self.seats * 2 * (self.inner + self.head),
                            self.weight_bytes + there + comes)

    def prefill(self):
        """All prompts once: the weights come at least once, more where they do not fit a pass."""
        rows = self.seats * self.prompt
        passes = max(1, -(-self.prompt * self.plan["micro_batch"] // self.plan["micro_batch_tokens"]))
        attention = 4 * self.layers * self.hidden * self.seats * self.prompt * (self.prompt + 1) / 2
        flops = 2 * (rows * self.inner + self.seats * self.head) + attention
        return self.slowest(self.streamed * passes, self.streamed * passes, flops, self.weight_bytes * passes)

    def tok_s(self):
        """(generated tokens a second at most, what binds decoding): a straight line between first and last length."""
        first, last = self.decode(self.prompt + 1), self.decode(self.prompt + self.gen)
        total = self.prefill()[1] + (self.gen - 1) * (first[1] + last[1]) / 2
        return self.seats * self.gen / total, last[0]


def ceilings(lines, hw):
    product, memory, dram = (rate(hw, k) for k in ("device.product_f16_tflop_s", "device.memory_gb_s", "host.memory_gb_s"))
    for key, unit in (("links.h2d_gb_s", "GB/s"), ("links.d2h_gb_s", "GB/s"), ("links.both_gb_s", "GB/s"),
                      ("links.h2d_in_attention_gb_s", "GB/s"), ("host.memory_gb_s", "GB/s"), ("device.memory_gb_s", "GB/s"),
                      ("device.product_f16_tflop_s", "TFLOP/s"), ("device.product_bf16_tflop_s", "TFLOP/s"),
                      ("disk.read_gb_s", "GB/s"), ("device.start_us", "us"), ("device.launch_us", "us")):
        lines.add("ceiling: " + key, None, rate(hw, key), unit)
    lines.add("prefill attention at s = 2048 / product ceiling", 0.30, ratio(rate(hw, "device.attention_tflop_s"), product), "x")
    lines.add("decode attention / device memory", 0.85, ratio(rate(hw, "device.attention_d128_memory_gb_s"), memory), "x",
              "heads of 128, as below")
    for group in 4, 8:
        lines.add(f"decode attention, {group} query heads for each of keys / device memory", 0.75,
                  ratio(rate(hw, f"device.attention_d128_g{group}_memory_gb_s"), memory), "x")
    lines.add("keeping scores: time / without", 1.05,
              ratio(rate(hw, "device.attention_memory_gb_s"), rate(hw, "device.attention_scored_gb_s")), "x",
              "heads of 64", at_most=True)
    lines.add("host decode attention / DRAM, alone", 0.80, ratio(rate(hw, "host.attention_memory_gb_s"), dram), "x")
    lines.add("host decode attention / DRAM, while the link runs", 0.70,
              ratio(rate(hw, "links.attention_in_h2d_gb_s"), dram), "x")
    lines.add("H2D while host attention runs / H2D", 0.90,
              ratio(rate(hw, "links.h2d_in_attention_gb_s"), rate(hw, "links.h2d_gb_s")), "x", "copies alone, in probe")


def streams(lines, hw, found):
    h2d, disk = rate(hw, "links.h2d_gb_s"), rate(hw, "disk.read_gb_s")
    product = rate(hw, "device.product_f16_tflop_s")
    r = found.get("streams/weights")
    streamed = r and r["plan"]["weight_stream"]["host_bytes_per_pass"]
    lines.add("weights from pinned memory in decode / H2D", 0.95, ratio(streamed / runs.decode_pass_s(r) / 1e9, h2d) if r else None,
              "x", "bytes of a pass by its seconds")
    lines.add("weights while the host attends / H2D", 0.90,
              ratio(lane(found.get("streams/host-attention"), "h2d_weights", "gb_s"), h2d), "x", "while the link is busy")
    lines.add("weights from disk / disk", 0.90, ratio(lane(found.get("streams/disk"), "disk_read_weights", "gb_s"), disk), "x")
    plain, same = found.get("streams/resident") or {}, found.get("streams/deterministic") or {}
    lines.add("products of a pass / cuBLAS at the probe's shape", 0.95, ratio(plain.get("mlp_tflop_s"), product), "x",
              "MLP ops of full tiles, their bias, activation and residual included")
    lines.add("products under --deterministic / cuBLAS", 0.80, ratio(same.get("mlp_tflop_s"), product), "x")
    for gen in ("32", "512"):
        r = found.get("rows/opt-6.7b/full/512+" + gen)
        idle = 1 - lane(r, "compute", "busy_s") / r["total_s"] if r else None
        # An op counts from the start of its launches, also while the device waits for them: what is found is the least
        # that it can have been, and can miss the limit but not reach it.
        need = 0.05 if idle and idle > 0.05 else None
        lines.add(f"all resident: time in which the device has nothing (512+{gen})", need, idle, "x",
                  "at least: 1 - busy share of the compute lane, waits for launches count as busy; at most 0.05 is wanted",
                  at_most=True)


def rows(lines, hw, found, predicted):
    for name, r in sorted(found.items()):
        if not name.startswith("rows/"):
            continue
        bound, binds = Bound(r, hw).tok_s()
        said = (predicted.get(name.replace("rows/", "predict/", 1)) or {}).get("predicted") or {}
        spread = f", sd {r['gen_tok_s_sd']:.3g}" if r.get("gen_tok_s_sd") else ""
        lines.add(f"{name}: measured / bound", 0.75, r["gen_tok_s"] / bound, "x",
                  f"{r['gen_tok_s']:.4g} of {bound:.4g} tok/s ({binds}){spread}, predicted {said.get('gen_tok_s') or 0:.4g}, "
                  f"{runs.seats(r)} seats, {r['plan']['placement']}{', projected' if r.get('projected') else ''}")
    for kind, aim in AIMS.items():
        r = found.get(f"rows/opt-30b/{kind}/512+512")
        lines.add(f"opt-30b, {kind}, 512+512", aim, r and r["gen_tok_s"], "tok/s", "figure to aim at on an H200")


def lines_of(steps):
    """Of the steps that are over: {name: what was found}."""
    lines, hw = runs.Lines(quiet=True), (steps.get("ceilings/probe") or {}).get("profile")
    t = steps.get("tokens/agreement") or {}
    lines.add("top-1 agreement with the CPU, f16, teacher-forced", 0.999, t.get("agreement"), "x",
              f"{t.get('positions', 0)} positions, widest margin of a disagreement {t.get('margin', 0):.3g}" if t else "")
    ceilings(lines, hw)
    streams(lines, hw, steps)
    if hw:
        rows(lines, hw, steps, steps)
    return lines
