#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What users of other programs type, what scripts read, and what goes wrong before anything runs:
the program as a shell starts it."""
import json
import os
import shlex
import unittest

from rig import MODEL, PROGRAM, Rig


class OtherPrograms(Rig):
    FLEXGEN = ["--model", "facebook/opt-125m", "--path", "_DUMMY_", "--gpu-batch-size", "2",
               "--num-gpu-batches", "2", "--percent", "20", "80", "0", "100", "0", "100",
               "--prompt-len", "32", "--gen-len", "4", "--hh-ratio", "0.25", "--hh-all", "--cpu"]

    def test_flex_opts_command_runs_as_the_native_one_that_it_prints(self):
        theirs = self.run_program([PROGRAM, "bench", "flexgen", *self.FLEXGEN, "--json"])
        line = next(line for line in theirs.stderr.decode().splitlines()
                    if "native command: " in line)
        native = shlex.split(line.split("native command: ")[1])
        self.assertEqual(native[:2], ["aquifer", "bench"])
        ours = self.run_program([PROGRAM, *native[1:]])
        theirs, ours = json.loads(theirs.stdout), json.loads(ours.stdout)
        self.assertEqual(theirs["output_xxh3"], ours["output_xxh3"])
        self.assertEqual(theirs["row"], ours["row"])
        self.assertEqual(theirs["plan"]["kv_policy"], "h2o:flexgen")
        self.assertEqual(theirs["requests"], 4)

    def test_percentages_place_a_plan(self):
        plan = self.plan("--shape", "facebook/opt-6.7b", "--hardware", "t4-208gb", "--prompt-len",
                         "64", "--gen-len", "8", "--percent", "20", "80", "0", "100", "0", "100")
        self.assertIn("weights=20/80/0 kv=0/100/0", plan["plan"]["placement"])
        self.assertNotIn("percent", plan["command"])

    def test_quiet_says_nothing_of_what_became_of_flags(self):
        done = self.run_program([PROGRAM, "generate", "--model", MODEL, "--prompt", "She said",
                                 "-c", "256", "--mlock", "--quiet"])
        self.assertEqual(done.stderr, b"")

    def test_a_missing_model_is_explained_in_todays_words(self):
        for name, word in (("facebook/opt-30b", "hf download facebook/opt-30b"),
                           ("opt-30b", "hf download OWNER/opt-30b; --shape")):
            done = self.run_program([PROGRAM, "generate", "--model", name, "--prompt", "x"], 2,
                                    env={**os.environ, "HF_HOME": self.dir})
            self.assertIn(word, done.stderr.decode())


if __name__ == "__main__":
    unittest.main()
