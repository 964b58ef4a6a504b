#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans of the machine that they are made on: the profile that is kept or measured, and the disk as
it is now.  No claim depends on how fast anything is."""
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import unittest

from rig import MODEL, PROGRAM, Rig


class PlanLocal(Rig):
    @classmethod
    def setUpClass(cls):
        """One measurement for all tests; its disk's space as it was when there was hardly any."""
        cls.cache = tempfile.mkdtemp(prefix="aq-local-")
        cls.addClassCleanup(shutil.rmtree, cls.cache)
        subprocess.run([PROGRAM, "probe", "--keep", "--quick", "--cache-dir", cls.cache, "--device",
                        "cpu"], check=True, stdout=subprocess.DEVNULL)
        cls.kept = os.path.join(cls.cache, "hardware-local.yaml")
        with open(cls.kept, encoding="utf-8") as f:
            cls.profile = f.read()
        with open(cls.kept, "w", encoding="utf-8") as f:
            f.write(re.sub(r"(space: \{value: )[0-9A-Za-z.]+", r"\g<1>1GB", cls.profile))
        os.utime(cls.kept, (time.time() - 3 * 86400 - 60,) * 2)

    def need_disk(self):
        if "disk:" not in self.profile:
            self.skipTest("no disk can be measured here")

    def larger_model(self, size):
        """--shape of a model with `size` bytes of bf16 weights, in layers that are small beside
        it, so that a disk of a few GB does as well as one of some TB."""
        hidden = next((h for h in (1024, 4096) if size < 400 * 12 * h ** 2 * 2), 12288)
        return self.shape(hidden_size=hidden, ffn_dim=4 * hidden, word_embed_proj_dim=hidden,
                          num_attention_heads=hidden // 128, vocab_size=512,
                          num_hidden_layers=min(1 + int(size / (12 * hidden ** 2 * 2)), 4000))

    def test_a_kept_profile_is_named_with_its_age_and_free_space_is_looked_up(self):
        self.need_disk()
        here = ["--cache-dir", self.cache, "--device", "cpu"]
        told = f"kept profile '{self.kept}', measured 3 days ago"
        small = ["--model", MODEL, *here, "--hardware", "local"]
        doc = self.plan("--model", MODEL, *here, "--prompt-len", "20", "--gen-len", "12")
        self.assertIn(told, doc["assumptions"][0])
        text = self.run_program([PROGRAM, "plan", "--model", MODEL, *here, "--prompt-len", "20",
                                 "--gen-len", "12"]).stdout.decode()
        self.assertIn(told, text)
        self.write([{"id": "a", "prompt": "the old man", "max_tokens": 2}])
        done = self.generate("--hardware", "local", "--cache-dir", self.cache)
        self.assertIn(told, done.stderr.decode())
        dry = self.generate("--dry-run", "--json", "--overwrite", "--cache-dir", self.cache)
        self.assertIn(told, json.loads(dry.stdout)["predicted"]["hardware_profile"])
        self.assertIn(told, dry.stderr.decode())
        done = self.run_program([PROGRAM, "bench", *small, "--prompt-len", "8", "--gen-len", "4",
                                 "--dry-run"])
        self.assertIn(told, json.loads(done.stdout)["predicted"]["hardware_profile"])
        self.assertIn(told, done.stderr.decode())
        with open(self.path("text"), "w", encoding="utf-8") as f:
            f.write("the old man said that she was a little house in sea and rain " * 20)
        done = self.run_program([PROGRAM, "eval", *small, "--text", self.path("text"),
                                 "--prompt-tokens", "8", "--score-tokens", "8"])
        self.assertIn(told, done.stderr.decode())
        # Of the disk what is free now counts, and not the 1 GB of the profile.
        free = shutil.disk_usage(self.cache).free
        shape = [*self.larger_model(2e9 + free / 4), *here]
        doc = self.plan(*shape, "--host-memory", "1GiB")
        packed = re.search(r"packed weights \(([0-9.]+) GiB\)", "\n".join(doc["assumptions"]))
        self.assertGreater(float(packed[1]), 1)
        self.assertGreater(doc["predicted"]["gen_tok_s"], 0)
        done = self.run_program([PROGRAM, "plan", *shape, "--disk-memory", f"{free * 2}"], 1)
        size = r"[0-9.]+ [GT]iB"
        self.assertRegex(done.stderr.decode(),
                         f"--disk-memory: {size} are more than the {size} free on '{self.cache}'")

    def test_weights_that_are_packed_already_take_no_more_of_the_disk(self):
        self.need_disk()
        words = ["--cache-dir", self.cache, "--compute", "f32", "--weight-format", "f16", "--placement",
                 "weights=0/0/100 kv=0/100/0 hidden=0/100/0"]
        plan = ["--model", MODEL, *words, "--device", "cpu", "--prompt-len", "20", "--gen-len",
                "12"]
        told = [a for a in self.plan(*plan)["assumptions"] if "packed weights" in a]
        self.assertRegex(told[0], r"\) lie on the disk beside the scratch$")
        self.write([{"id": "a", "prompt": "the old man", "max_tokens": 2}])
        self.generate(*words)
        told = [a for a in self.plan(*plan)["assumptions"] if "packed weights" in a]
        self.assertRegex(told[0], r"\) are on the disk already$")

    @unittest.skipIf("ASAN_OPTIONS" in os.environ, "shadow memory would be counted")
    def test_a_small_budget_is_planned_as_it_runs(self):
        """The process counts as what it takes here, and not as what one elsewhere is given."""
        config, here = self.path("c.yaml"), ["--cache-dir", self.cache, "--device", "cpu"]
        work = ["--prompt-len", "20", "--gen-len", "12", "--requests", "8"]
        words = ["--model", MODEL, *here, "--host-memory", "52MiB", *work]
        doc = self.plan(*words, "--write-config", config)
        process = doc["memory"]["host"]["items"]["process"]
        done = self.run_program([PROGRAM, "bench", "--config", config, *here, *work, "--repeats",
                                 "1", "--warmup", "0", "--json"])
        row = json.loads(done.stdout)
        self.assertEqual(row["plan"]["placement"], doc["plan"]["placement"])
        run = {line["purpose"]: line["bytes"] for line in row["plan"]["ledger"]}
        self.assertLess(abs(run["process"] - process), 8 * 2 ** 20)
        self.assertLessEqual(row["memory"]["host"]["measured"], 52 * 2 ** 20)
        elsewhere = self.plan(*words[:2], "--host-memory", "52MiB", *work, "--hardware", self.kept,
                              status=2)
        self.assertIn("host", elsewhere["shortfall"])

    def test_what_is_to_be_freed_on_this_machine_is_told(self):
        self.need_disk()
        free = shutil.disk_usage(self.cache).free
        doc = self.plan(*self.larger_model(2 * 2 ** 30 + free * 1.2), "--cache-dir", self.cache,
                        "--device", "cpu", "--host-memory", "2GiB", status=2)
        short = doc["shortfall"]["disk"]
        # Other tests write beside this one.
        self.assertAlmostEqual(short["budget"], free * 0.95, delta=free * 0.05 + 2 ** 29)
        fix = [f for f in doc["fixes"] if f["change"].startswith("free ")][0]
        told = re.fullmatch(rf"free ([0-9.]+) GiB on '{self.cache}'", fix["change"])
        self.assertGreaterEqual(float(told[1]) * 2 ** 30 * 0.95, short["missing"])
        self.assertIs(fix["feasible"], True)
        self.assertGreater(fix["gen_tok_s"], 0)

    @unittest.skipIf("ASAN_OPTIONS" in os.environ, "measures as all tests here do, only longer")
    def test_who_has_no_home_is_planned_for(self):
        env = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME")}
        done = self.run_program(
            [PROGRAM, "plan", "--model", MODEL, "--prompt-len", "20", "--gen-len", "12",
             "--device", "cpu", "--json"], env=env)
        doc = json.loads(done.stdout)
        self.assertIs(doc["feasible"], True)
        told = [line for line in done.stderr.decode().splitlines() if "not kept" in line]
        self.assertEqual(len(told), 1, told)
        self.assertIn("--cache-dir", told[0])
        self.assertIn("not kept", doc["assumptions"][0])
        self.assertIn("measured now without a disk", doc["assumptions"][0])


if __name__ == "__main__":
    unittest.main()
