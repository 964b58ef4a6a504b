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
        first = self.suite("--only", "tokens", "--seconds", "500")
        self.assertEqual(first.returncode, 0, first.stdout + first.stderr)
        found = self.steps()
        self.assertEqual([s["right"] for s in found], [True] * 7)
        self.assertEqual(self.suite("--only", "tokens").returncode, 0)
        self.assertEqual(self.steps(), found)

    def test_without_time_steps_are_left(self):
        self.assertEqual(self.suite("--only", "tokens,rows", "--seconds", "1").returncode, 3)
        self.assertIn("rows/opt-30b/int4/h2o/512+1024", self.suite("--list").stdout)

    def test_a_step_that_fails_is_wrong(self):
        os.remove(os.path.join(self.dir.name, "aquifer_cuda.so"))
        p = self.suite("--only", "tokens", "--seconds", "100")
        self.assertEqual(p.returncode, 1)
        self.assertEqual(self.steps()[0]["found"]["status"], 2)


if __name__ == "__main__":
    unittest.main()
