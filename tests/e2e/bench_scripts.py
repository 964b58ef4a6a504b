# SPDX-License-Identifier: Apache-2.0
"""The Python beside the benchmarks: configurations that the program takes, rows that stay, lines that are missed,
pictures that are drawn.  Nothing here judges how fast the machine is."""
import itertools
import json
import math
import os
import struct
import subprocess
import sys
import unittest
import xml.etree.ElementTree

from rig import MODEL, PROGRAM, Rig

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "bench"))
import best  # noqa: E402
import ledger  # noqa: E402
import peers  # noqa: E402
import predict  # noqa: E402
import runs  # noqa: E402
import table_plots  # noqa: E402


class Arguments:
    hardware = os.path.join(ROOT, "configs", "hardware", "epyc-zen5-2vcpu.yaml")
    build = os.path.join(os.path.dirname(PROGRAM), "..", "..")
    only = ""

    def __init__(self, folder):
        self.cache_dir = os.path.join(folder, "cache")
        self.output = os.path.join(folder, "predicted")


class Predict(Rig):
    def setUp(self):
        super().setUp()
        self.bench = self.again()

    def again(self, rates=(1, 1)):
        """Whose probes find these rates, in turns."""
        bench, found = predict.Bench(Arguments(self.dir), self.dir), itertools.cycle(rates)
        bench.probe = lambda disk: dict(product_memory_gb_s=next(found))
        return bench

    def test_there_are_30_different_runs_and_the_program_takes_them(self):
        jobs = [*predict.resident(), *predict.device(), *predict.disk()]
        self.assertGreaterEqual(len({key for key, _ in jobs}), 30)
        self.assertEqual(len({str(words) for _, words in jobs}), len(jobs))
        for key, words in jobs:
            words = [runs.shape(str(w), self.dir) for w in words]
            done = self.run_program([PROGRAM, "bench", "--random-weights", "1", "--dry-run", "--json", "--device", "cpu",
                                     "--cache-dir", self.path("cache"), "--hardware", Arguments.hardware, *words])
            said = json.loads(done.stdout)["predicted"]
            self.assertGreater(said["decode_pass_s"], 0, key)

    def test_rows_stay_and_failures_are_tried_again(self):
        made = []

        def report():
            made.append(1)
            return dict(gen_tok_s=90.0, decode_tok_s=80.0, prefill_s=1.0,
                        predicted=dict(gen_tok_s=100.0, prefill_s=1.1, decode_pass_s=0.2, bound_by="h2d link"),
                        plan=dict(placement="p", micro_batch=8, micro_batches=2))

        def fails():
            raise KeyError("plan")

        self.assertIn("KeyError", self.bench.row("one", fails, ["words"])["error"])
        row = self.bench.row("one", report, ["words"])
        self.assertAlmostEqual(row["off"], 0.1)
        self.assertAlmostEqual(row["pass_s"], 0.2)
        self.assertEqual(self.again().row("one", report, ["words"]), row)
        self.assertEqual(len(made), 1)
        self.again().row("one", report, ["other words"])
        self.assertEqual(len(made), 2)
        self.assertEqual(row["runs"], 1)
        text = "\n".join(predict.table([("one", row), ("two", dict(error="no"))]))
        self.assertIn("| one | 90.0 | 100.0 | 10.0 % |", text)
        self.assertIn("| two | failed: no |", text)
        self.assertIn("| a link |", text)

    def test_the_band_of_a_plan_is_that_of_the_measured_runs(self):
        where = {"computing": ["--host-memory", "8GiB"],
                 "a link": ["--emulate-device", "2GiB", "--emulate-link", "0.1/0.1", "--placement",
                            "weights=0/100/0 kv=100/0/0 hidden=100/0/0 head=device"],
                 "a disk": ["--placement", "weights=0/0/100 kv=0/100/0 hidden=0/100/0 head=host"]}
        checked = 0
        for bound, words in where.items():
            done = self.run_program([PROGRAM, "plan", "--shape", "opt-350m", "--hardware", Arguments.hardware, "--json",
                                     "--prompt-len", "64", "--gen-len", "16", "--micro-batch", "8", *words])
            doc = json.loads(done.stdout)
            with open(os.path.join(ROOT, doc["range"]["source"]), encoding="utf-8") as f:
                rows = [[c.strip() for c in line.split("|")[1:-1]] for line in f if line.startswith("|")][2:]
            measured = {name: rest for name, *rest in
                        predict.bands([(r[-1], float(r[1]) / float(r[2])) for r in rows])}
            count, inside, low, high = measured[bound]
            self.assertEqual(doc["range"]["from"], f"{inside} of {count} measured runs bound by {bound}")
            for found, ratio in zip(doc["range"]["gen_tok_s"], (low, high)):
                self.assertAlmostEqual(found / doc["predicted"]["gen_tok_s"], ratio, 3)
            self.assertTrue(any(doc["range"]["source"] in line for line in doc["assumptions"]))
            checked += count
        self.assertEqual(checked, len(rows))

    def test_a_run_is_repeated_while_the_machine_changes(self):
        found = iter((50.0, 90.0, 80.0, 70.0))

        def report():
            return dict(gen_tok_s=next(found), decode_tok_s=80.0, prefill_s=1.0,
                        predicted=dict(gen_tok_s=100.0, prefill_s=1.1, decode_pass_s=0.2, bound_by="h2d link"),
                        plan=dict(placement="p", micro_batch=8, micro_batches=2))

        row = self.again(rates=(1, 2, 1, 1.1)).row("one", report, ["a"])  # the first was disturbed
        self.assertEqual((row["runs"], row["disturbed"]), (2, False))
        self.assertAlmostEqual(row["off"], 0.1)
        found = iter((50.0, 90.0, 80.0, 70.0))
        row = self.again(rates=(1, 2)).row("two", report, ["a"])  # all were: the median
        self.assertEqual((row["runs"], row["disturbed"]), (predict.TRIES, True))
        self.assertAlmostEqual(row["off"], 0.2)
        self.assertIn("3, disturbed |", "\n".join(predict.table([("two", row)])))


class Best(Rig):
    def fits(self, c, point):
        words = [str(runs.shape(w, self.dir)) for w in [*c["args"], *point]]
        done = subprocess.run([PROGRAM, "bench", "--random-weights", "1", "--dry-run", "--device", "cpu", "--cache-dir",
                               self.path("cache"), "--hardware", Arguments.hardware, *words], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, check=False)
        self.assertIn(done.returncode, (0, 2), (c["name"], done.stderr))
        return done.returncode == 0

    def test_every_configuration_is_planned_and_a_point_of_its_grid_fits(self):
        for c in best.CONFIGS:
            self.assertTrue(self.fits(c, []), c["name"])
            self.assertTrue(any(self.fits(c, point) for point in reversed(c["grid"])), c["name"])


class Peers(Rig):
    CONFIG = dict(runs.llama_shape(2, 64, 96, 4, 2, 50), tie_word_embeddings=True)

    def read(self, path):
        """Keys with their values, tensors with their places, and where their data begins."""
        with open(path, "rb") as f:
            def take(form):
                return struct.unpack("<" + form, f.read(struct.calcsize("<" + form)))

            def word():
                return f.read(take("Q")[0]).decode()

            self.assertEqual(f.read(4), b"GGUF")
            version, tensor_count, key_count = take("IQQ")
            self.assertEqual(version, 3)
            keys, tensors = {}, {}
            for _ in range(key_count):
                key, kind = word(), take("I")[0]
                keys[key] = word() if kind == 8 else take({4: "I", 6: "f"}[kind])[0]
            for _ in range(tensor_count):
                name, dims = word(), take("I")[0]
                *shape, kind, at = take(f"{dims}QIQ")
                tensors[name] = (tuple(shape), kind, at)
            return keys, tensors, -(-f.tell() // 32) * 32

    def test_the_model_of_the_peer_is_whole(self):
        path = peers.write_gguf(self.path("model.gguf"), self.CONFIG)
        keys, tensors, data = self.read(path)
        self.assertEqual(keys["general.architecture"], "llama")
        self.assertEqual(keys["llama.attention.head_count_kv"], 2)
        self.assertAlmostEqual(keys["llama.rope.freq_base"], 500000)
        self.assertNotIn("output.weight", tensors)  # tied
        self.assertEqual(tensors["blk.1.attn_k.weight"][:2], ((64, 32), peers.BF16))
        self.assertEqual(tensors["blk.0.ffn_down.weight"][0], (96, 64))
        end = 0
        for shape, kind, at in tensors.values():
            self.assertEqual(at, -(-end // 32) * 32)
            end = at + math.prod(shape) * (2 if kind == peers.BF16 else 4)
        self.assertEqual(os.path.getsize(path), data + end)
        with open(path, "rb") as f:
            f.seek(data + tensors["output_norm.weight"][2])
            self.assertEqual(struct.unpack("<64f", f.read(256)), (1.0,) * 64)

    def test_matrices_of_both_sides_are_as_large(self):
        for name, c in peers.SHAPES.items():
            words = runs.model(runs.shape(name, self.dir), 8, 2, 1) + ["--weight-format", "bf16"]
            done = self.run_program([PROGRAM, "bench", "--random-weights", "1", "--dry-run", "--json", "--device", "cpu",
                                     "--hardware", Arguments.hardware, *map(str, words)])
            ledger_bytes = sum(i["bytes"] for i in json.loads(done.stdout)["ledger"] if i["purpose"] == "weights")
            found = sum(2 * rows * cols for _, rows, cols in peers.tensors(c))
            self.assertAlmostEqual(ledger_bytes, found, delta=4 << 20, msg=name)  # buffers are in whole huge pages


class Ledger(Rig):
    def test_there_are_20_different_runs_and_the_program_takes_them(self):
        jobs = [*ledger.one_memory(), *ledger.three_tiers(), *ledger.families()]
        self.assertGreaterEqual(len({key for key, _ in jobs}), 20)
        self.assertEqual(len({str(words) for _, words in jobs}), len(jobs))
        for key, words in jobs:
            done = self.run_program([PROGRAM, "bench", "--random-weights", "1", "--dry-run", "--json", "--device", "cpu",
                                     "--cache-dir", self.path("cache"), "--hardware", Arguments.hardware,
                                     *[runs.shape(str(w), self.dir) for w in words]])
            self.assertGreater(json.loads(done.stdout)["memory"]["host"]["ledger"], 0, key)

    def test_a_run_is_kept(self):
        found = ledger.summary(runs.bench(
            Arguments.build, runs.model("opt-125m", 8, 2, 1) + ["--device", "cpu", "--cache-dir", self.path("cache")] +
            runs.spread("0/60/40", "0/0/100", "0/100/0", "host")))
        self.assertEqual(set(found["tiers"]), {"host", "disk", "store"})
        for tier, figures in found["tiers"].items():
            if tier != "host" or "ASAN_OPTIONS" not in os.environ:  # shadow memory would be counted
                self.assertTrue(ledger.is_right(*figures), (tier, figures))

    def test_what_is_outside_is_marked(self):
        mib = 1 << 20
        for said, measured, right in ((100, 100, True), (99, 100, False), (132, 100, True), (133, 100, False),
                                      (2060, 2000, True), (2061, 2000, False)):
            self.assertIs(ledger.is_right(said * mib, measured * mib), right)
        rows = [("a", dict(tiers={"host": [99 * mib, 100 * mib], "disk": [9 * mib, 9 * mib]}, error=None)),
                ("b", dict(error="no"))]
        text = "\n".join(ledger.table(rows))
        self.assertIn("| a | 99.0 | 100.0 | **under** -1.0 |", text)
        self.assertIn("| b | failed: no |", text)


class Lines(unittest.TestCase):
    def test_a_missed_line_is_the_exit_status(self):
        lines = runs.Lines()
        lines.add("free", None, 3, "x")
        lines.add("at least", 2, 3, "x")
        self.assertEqual(lines.status(), 0)
        lines.add("at most", 2, 3, "x", at_most=True)
        self.assertEqual(lines.status(), 1)
        self.assertEqual([row.split("|")[2].strip() for row in lines.table()][2:], ["", ">= 2", "<= 2"])
        self.assertIn("**missed**", list(lines.table())[-1])


class Pictures(Rig):
    def test_a_table_becomes_pictures(self):
        table, rows = self.path("t.yaml"), self.path("rows.json")
        with open(table, "w", encoding="utf-8") as f:
            f.write("table: t\ndefaults: {prompt-len: 8, gen-len: 4, repeats: 2, warmup: 0}\nrows:\n"
                    "- {name: a, requests: 1, host-memory: 256MiB, published: {tok-s: 9, source: s}}\n"
                    "- {name: b, requests: 4, micro-batch: 4, host-memory: 512MiB}\n")
        self.run_program([PROGRAM, "bench", "--table", table, "--model", MODEL, "--device", "cpu", "--json", "--output",
                          rows])
        self.run_program([sys.executable, "-B", os.path.join(ROOT, "bench", "table_plots.py"), rows])
        for name in "batch", "budget", "roofline":
            with open(self.path(f"rows.{name}.svg"), encoding="utf-8") as f:
                drawn = f.read()
            self.assertTrue(xml.etree.ElementTree.fromstring(drawn).tag.endswith("svg"))
            self.assertGreaterEqual(drawn.count("<circle"), 2, name)
        with open(self.path("rows.batch.svg"), encoding="utf-8") as f:
            self.assertIn("published: a", f.read())

    def test_lines_hold_what_belongs_together(self):
        def row(seats, policy):
            return dict(model=dict(name="m"), row=dict(prompt_len=1, gen_len=2),
                        plan=dict(micro_batch=seats, micro_batches=1, kv_policy=policy, weight_format="int8",
                                  kv_format="f16"))
        lines = table_plots.lines_by([row(4, "full"), row(1, "full"), row(2, "h2o")], runs.seats)
        self.assertEqual({k: [x for x, _ in v] for k, v in lines.items()},
                         {"m 1+2, int8": [1, 4], "m 1+2, h2o, int8": [2]})


if __name__ == "__main__":
    unittest.main()
