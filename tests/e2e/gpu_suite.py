#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/gpu_suite.py, with the emulated module beside the program: its steps run, once each, and are right.

Environment: AQ_PROGRAM, AQ_CUDA_MODULE."""
import json, os, subprocess, sys, unittest

from gpu_case import GpuCase

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SUITE = os.path.join(ROOT, "bench", "gpu_suite.py")
sys.path.insert(0, os.path.dirname(SUITE))
import gpu_lines


PROFILE = {"rates": {"links": {"h2d_gb_s": {"value": 50, "origin": "given"}},
                     "host": {"memory_gb_s": {"value": 300, "origin": "given"}},
                     "device": {"product_f16_tflop_s": {"value": 700, "origin": "given"},
                                "memory_gb_s": {"value": 4000, "origin": "given"}}}}


def report(attention="device", **more):
    """Of a row of OPT-6.7B's shape whose KV lives on the host."""
    plan = {"attention": attention, "micro_batch": 8, "micro_batches": 2, "micro_batch_tokens": 4096, "kv_format": "f16",
            "weight_format": "f16", "kv_policy": "full", "placement": "weights=100/0/0 kv=0/100/0 hidden=100/0/0 head=device"}
    model = {"layers": 32, "hidden": 4096, "parameters": 12 * 32 * 4096 ** 2 + 50272 * 4096}
    return {"plan": plan, "model": model, "row": {"prompt_len": 512, "gen_len": 512}, **more}


class Bound(unittest.TestCase):
    def decode(self, attention, **more):
        return gpu_lines.Bound(report(attention, **more), PROFILE).decode(512)

    def test_the_plan_says_who_attends(self):
        lanes = {"lanes": {"host_compute": {"busy_s": 1.0}}}  # as a projected row has them of its first pass
        kv = 16 * 512 * 4 * 4096 * 32
        for more in {}, lanes:
            binds, seconds = self.decode("device", **more)
            self.assertEqual(binds, "link")
            self.assertAlmostEqual(seconds, kv / 50e9)
            self.assertEqual(self.decode("host", **more)[0], "host memory")
            binds, seconds = self.decode("split:25%", **more)
            self.assertEqual(binds, "link")
            self.assertAlmostEqual(seconds, 0.75 * kv / 50e9)

    def test_only_the_last_row_of_a_prompt_meets_the_head(self):
        binds, seconds = gpu_lines.Bound(report(), PROFILE).prefill()
        layers, head, attention = 12 * 32 * 4096 ** 2, 50272 * 4096, 4 * 32 * 4096 * 16 * 512 * 513 / 2
        self.assertEqual(binds, "device flops")
        self.assertAlmostEqual(seconds, (2 * 16 * (512 * layers + head) + attention) / 700e12)


class Suite(GpuCase):
    def setUp(self):
        super().setUp()
        self.results = self.path("results")

    def suite(self, *words):
        return subprocess.run([sys.executable, "-B", SUITE, "--results", self.results, "--program", self.program,
                               *words], capture_output=True, text=True)

    def steps(self):
        with open(os.path.join(self.results, "steps.jsonl"), encoding="utf-8") as f:
            return [json.loads(line) for line in f]

    def test_steps_are_right_and_run_once(self):
        first = self.suite("--only", "tokens", "--seconds", "500", "--small")
        self.assertEqual(first.returncode, 0, first.stdout + first.stderr)
        found = self.steps()
        self.assertEqual([s["right"] for s in found], [True] * 8)
        agreement = found[-1]["found"]
        self.assertEqual((agreement["agreement"], agreement["margin"]), (1.0, 0.0))
        self.assertGreater(agreement["positions"], 200)
        self.assertEqual(self.suite("--only", "tokens", "--small").returncode, 0)
        self.assertEqual(self.steps(), found)

    def test_every_group_runs_and_every_line_has_a_row(self):
        some = "ceilings,streams,predict/opt-6.7b,predict/opt-30b/h2o,rows/opt-6.7b/full/512+32,rows/opt-30b/h2o/int4/512+32"
        p = self.suite("--only", some, "--small", "--seconds", "500")
        self.assertEqual(p.returncode, 0, p.stdout + p.stderr)
        order = [s["step"] for s in self.steps()]
        self.assertLess(order.index("predict/opt-30b/h2o/int4/512+32"), order.index("rows/opt-6.7b/full/512+32"))
        for s in self.steps():
            if s["step"].startswith("rows/"):  # what was predicted is that row, and was written before
                said = next(t for t in self.steps() if t["step"] == s["step"].replace("rows", "predict", 1))["found"]
                self.assertEqual(said["placement"], s["found"]["plan"]["placement"])
                self.assertGreater(said["predicted"]["gen_tok_s"], 0)
        with open(os.path.join(self.results, "summary.md"), encoding="utf-8") as f:
            rows = [line.split(" | ") for line in f if line.startswith("| ")]
        lines = {r[0][2:]: r for r in rows}
        self.assertIn("commit", self.steps()[0])
        for what in ("ceiling: links.h2d_gb_s", "prefill attention at s = 2048 / product ceiling",
                     "decode attention / device memory", "keeping scores: time / without",
                     "decode attention, 4 query heads for each of keys / device memory",
                     "decode attention, 8 query heads for each of keys / device memory",
                     "host decode attention / DRAM, alone", "host decode attention / DRAM, while the link runs",
                     "weights from pinned memory in decode / H2D", "weights while the host attends / H2D",
                     "weights from disk / disk", "products of a pass / cuBLAS at the probe's shape",
                     "products under --deterministic / cuBLAS", "all resident: time in which the device has nothing (512+32)",
                     "rows/opt-6.7b/full/512+32: measured / bound", "rows/opt-30b/h2o/int4/512+32: measured / bound"):
            self.assertRegex(lines[what][2], r"^\d", what)
            if what.startswith("all resident"):
                self.assertNotIn("reached", lines[what][3])
            elif not what.startswith("ceiling"):
                self.assertRegex(lines[what][3], "reached|missed", what)
        # What has not run is neither.
        agreement = lines["top-1 agreement with the CPU, f16, teacher-forced"]
        self.assertEqual(agreement[2], "-")
        self.assertNotRegex(agreement[3], "reached|missed")

    def test_what_cannot_run_here_is_skipped(self):
        p = self.suite("--only", "parity", *(w for o in ("--tests", "--kcheck") for w in (o, self.path("no-such-program"))))
        self.assertEqual(p.returncode, 0, p.stdout + p.stderr)
        self.assertEqual({s["right"] for s in self.steps()}, {None})
        self.assertIn("no-such-program", self.steps()[0]["found"]["skipped"])

    def test_without_time_steps_are_left(self):
        self.assertEqual(self.suite("--only", "tokens,rows", "--seconds", "1").returncode, 3)
        self.assertIn("rows/opt-30b/h2o/int4/512+1024", self.suite("--list").stdout)

    def test_rows_are_one_process_until_one_fails(self):
        p = self.suite("--only", "streams/weights,streams/disk,rows/opt-6.7b/full/512+32", "--small", "--seconds", "500")
        self.assertEqual(p.returncode, 0, p.stdout + p.stderr)
        streams, rows = self.steps()[:2], self.steps()[2:]
        self.assertEqual([s["step"] for s in streams], ["streams/weights", "streams/disk"])
        self.assertEqual(len(rows), 1)
        with open(os.path.join(self.results, "rows.table.yaml"), encoding="utf-8") as f:
            self.assertEqual({r["name"] for r in json.load(f)["rows"]}, {s["step"] for s in self.steps()})
        self.results = self.path("failing")
        p = self.suite("--only", "streams/weights,streams/disk", "--small", "--host-memory", "1MiB")
        self.assertEqual(p.returncode, 1, p.stdout + p.stderr)
        self.assertEqual([(s["step"], s["right"]) for s in self.steps()], [("streams/weights", False), ("streams/disk", False)])
        for step in self.steps():
            self.assertEqual(step["found"]["status"], 2)
            self.assertIn("MiB", step["found"]["said"])
        with open(os.path.join(self.results, "rows.table.yaml"), encoding="utf-8") as f:
            self.assertEqual([r["name"] for r in json.load(f)["rows"]], ["streams/disk"])  # the second process

    def test_a_step_that_fails_is_wrong(self):
        os.remove(self.module)
        p = self.suite("--only", "tokens", "--seconds", "100")
        self.assertEqual(p.returncode, 1)
        self.assertEqual(self.steps()[0]["found"]["status"], 2)


if __name__ == "__main__":
    unittest.main()
