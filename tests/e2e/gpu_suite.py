#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/gpu_suite.py, with the emulated module beside the program: its steps run, once each, and are right.

Environment: AQ_PROGRAM, AQ_CUDA_MODULE."""
import json, os, shutil, subprocess, sys, tempfile, unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SUITE = os.path.join(ROOT, "bench", "gpu_suite.py")


class Suite(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.program = shutil.copy(os.environ["AQ_PROGRAM"], self.dir.name)
        shutil.copy(os.environ["AQ_CUDA_MODULE"], os.path.join(self.dir.name, "aquifer_cuda.so"))
        self.results = os.path.join(self.dir.name, "results")

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
                     "host decode attention / DRAM, alone", "host decode attention / DRAM, while the link runs",
                     "weights from pinned memory in decode / H2D", "weights while the host attends / H2D",
                     "weights from disk / disk", "products of a pass / cuBLAS at that shape",
                     "products under --deterministic / cuBLAS", "all resident: time in which the device has nothing (512+32)",
                     "rows/opt-6.7b/full/512+32: measured / bound", "rows/opt-30b/h2o/int4/512+32: measured / bound"):
            self.assertRegex(lines[what][2], r"^\d", what)
            if not what.startswith("ceiling"):
                self.assertRegex(lines[what][3], "reached|missed", what)
        # What has not run is neither.
        agreement = lines["top-1 agreement with the CPU, f16, teacher-forced"]
        self.assertEqual(agreement[2], "-")
        self.assertNotRegex(agreement[3], "reached|missed")

    def test_what_cannot_run_here_is_skipped(self):
        p = self.suite("--only", "parity", "--tests", os.path.join(self.dir.name, "no-such-program"))
        self.assertEqual(p.returncode, 0, p.stdout + p.stderr)
        self.assertEqual({s["right"] for s in self.steps()}, {None})
        self.assertIn("no-such-program", self.steps()[0]["found"]["skipped"])

    def test_without_time_steps_are_left(self):
        self.assertEqual(self.suite("--only", "tokens,rows", "--seconds", "1").returncode, 3)
        self.assertIn("rows/opt-30b/h2o/int4/512+1024", self.suite("--list").stdout)

    def test_a_step_that_fails_is_wrong(self):
        os.remove(os.path.join(self.dir.name, "aquifer_cuda.so"))
        p = self.suite("--only", "tokens", "--seconds", "100")
        self.assertEqual(p.returncode, 1)
        self.assertEqual(self.steps()[0]["found"]["status"], 2)


if __name__ == "__main__":
    unittest.main()
