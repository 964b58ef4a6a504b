#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`aquifer probe`, and what runs make of a hardware profile.  Nothing here depends on how fast the
machine is: only on what is said of it, in which form."""
import json
import math
import os
import unittest

from rig import PROGRAM, Rig

PROFILE = """machine: {name: Box, cores: 2}
host:
  memory: 8GiB
  memory_gb_s: 50
  product_f32_tflop_s: 0.123
  product_bf16_tflop_s: 0.123
"""
MEASURED = {
    "host": ["memory_gb_s", "product_f32_tflop_s", "product_bf16_tflop_s", "product_memory_gb_s",
             "attention_tflop_s", "attention_memory_gb_s", "attention_d128_tflop_s",
             "attention_d128_memory_gb_s", "attention_g4_memory_gb_s", "attention_g8_tflop_s",
             "attention_d128_g4_tflop_s", "attention_d128_g8_memory_gb_s", "unpack_int8_gb_s",
             "unpack_int4_gb_s"],
    "links": ["h2d_gb_s", "d2h_gb_s", "both_gb_s", "copy_core_s_per_gb", "h2d_64kib_gb_s",
              "h2d_1mib_gb_s", "h2d_16mib_gb_s", "d2h_64kib_gb_s", "d2h_1mib_gb_s",
              "d2h_16mib_gb_s", "h2d_in_attention_gb_s", "attention_in_h2d_gb_s"],
    "disk": ["read_gb_s", "write_gb_s", "duplex", "core_s_per_gb"],
}


def refuse_constant(name):
    raise ValueError(f"{name} is not JSON")


class Probe(Rig):
    def probe(self, *words, status=0):
        return self.run_program([PROGRAM, "probe", "--quick", "--threads", "1", *words], status)

    def test_a_machine_is_measured(self):
        done = self.probe("--disk-dir", self.dir, "--output", self.path("hw.yaml"), "--json")
        self.assertEqual(os.listdir(self.dir), ["hw.yaml"])  # nothing of the disk's is left
        document = json.loads(done.stdout, parse_constant=refuse_constant)
        self.assertEqual(document["schema"], 1)
        profile = document["profile"]
        has_disk = b"lies in memory" not in done.stderr
        self.assertIsNone(profile["capacity"]["device"])
        self.assertGreater(profile["capacity"]["host"], 1 << 28)
        self.assertEqual(profile["capacity"]["disk"] is not None, has_disk)
        for section, names in MEASURED.items():
            if section == "disk" and not has_disk:
                self.assertNotIn("disk", profile["rates"])
                continue
            for name in names:
                rate = profile["rates"][section][name]
                self.assertEqual(rate["origin"], "given", name)
                self.assertTrue(rate["value"] > 0 and math.isfinite(rate["value"]), name)
                self.assertTrue(rate["spread"] is None or rate["spread"] >= 0, name)
                self.assertIn("measured", rate["source"], name)
        for assumption in document["assumptions"]:
            section, name = assumption["key"].split(".")
            self.assertEqual(profile["rates"][section][name]["origin"], "assumed")
            self.assertTrue(assumption["source"])
        self.assertNotIn("device", profile["rates"])

    def test_the_profile_on_standard_output_is_one_that_runs_take(self):
        done = self.probe()
        with open(self.path("hw.yaml"), "wb") as f:
            f.write(done.stdout)
        self.assertNotIn(b"\ndisk:", done.stdout)  # no directory, no disk
        self.write(self.many(2))
        report = self.reported("--hardware", self.path("hw.yaml"))
        self.assertEqual(report["predicted"]["hardware"], "this machine")

    def test_what_is_kept_is_what_runs_take(self):
        cache = self.path("cache")
        done = self.probe("--keep", "--cache-dir", cache)
        self.assertEqual(os.listdir(cache), ["hardware-local.yaml"])
        with open(os.path.join(cache, "hardware-local.yaml"), "rb") as f:
            self.assertEqual(f.read(), done.stdout)
        self.write(self.many(2))
        predicted = self.reported("--threads", "1", "--cache-dir", cache)["predicted"]
        self.assertEqual(predicted["hardware"], "this machine")

    def test_what_cannot_be_measured_is_refused(self):
        self.assertIn(b"--keep", self.probe("--keep", "--isa", "avx2", status=1).stderr)
        self.assertIn(b"expected one directory", self.probe("--disk-dir", "a,b", status=1).stderr)
        self.assertIn(b"nowhere", self.probe("--disk-dir", self.path("nowhere"), status=2).stderr)
        self.probe("--threads", "0", status=1)
        self.probe("--output", self.path("no/folder.yaml"), status=2)


class Hardware(Rig):
    def use(self, text):
        with open(self.path("hw.yaml"), "w", encoding="utf-8") as f:
            f.write(text)
        return "--hardware", self.path("hw.yaml")

    def test_a_run_takes_its_rates_from_a_profile(self):
        self.write(self.many(2))
        predicted = self.reported(*self.use(PROFILE))["predicted"]
        self.assertEqual(predicted["hardware"], "Box")
        self.assertAlmostEqual(predicted["rates"]["product_gflop_s"], 123)
        self.assertAlmostEqual(predicted["rates"]["memory_gb_s"], 50)
        self.assertEqual(predicted["rates"]["measured"], ["product_gflop_s", "memory_gb_s"])

    def test_a_profile_without_a_disk_does_for_runs_that_need_one(self):
        self.write(self.many(2))
        predicted = self.reported(*self.use(PROFILE), "--cache-dir", self.path("cache"), "--placement",
                                  "weights=0/0/100 kv=0/50/50 hidden=0/100/0")["predicted"]
        self.assertGreater(predicted["rates"]["disk_read_gb_s"], 0)
        self.assertGreater(predicted["lanes"]["disk_read_weights"]["bytes_per_pass"], 0)

    def test_an_emulated_link_is_as_fast_as_it_was_asked_to_be(self):
        self.write(self.many(2))
        rates = self.reported(*self.use(PROFILE + "links: {h2d_gb_s: 20, d2h_gb_s: 19}\n"),
                              "--emulate-device", "64MiB",
                              "--emulate-link", "3/2")["predicted"]["rates"]
        self.assertAlmostEqual(rates["h2d_gb_s"], 3)
        self.assertAlmostEqual(rates["d2h_gb_s"], 2)

    def test_this_machine_is_measured_once(self):
        self.write(self.many(2))
        cache = self.path("cache")
        kept = os.path.join(cache, "hardware-local.yaml")
        words = ["--cache-dir", cache, "--host-memory", "700MiB"]
        before = self.reported(*words)["predicted"]
        self.assertIsNone(before["hardware"])  # measured at start
        self.assertFalse(os.path.exists(kept))
        first = self.generate("--overwrite", *words, "--hardware", "local").stderr
        if not os.path.exists(kept):  # a busy machine, of which nothing is kept by itself
            self.assertRegex(first, rb"not kept, as \S+ varied by \d+ %")
            self.run_program([PROGRAM, "probe", "--keep", "--quick", "--cache-dir", cache,
                              "--device", "cpu"])
        with open(kept, encoding="utf-8") as f:
            text = f.read()
        self.assertIn("made_for: \"aquifer ", text)
        with open(kept, "w", encoding="utf-8") as f:
            f.write(text.replace('name: "this machine"', 'name: "kept"'))
        for more in [], ["--hardware", "local"]:
            self.assertEqual(self.reported(*words, *more)["predicted"]["hardware"], "kept")
        # With another number of threads it is another machine.
        other = self.reported(*words, "--threads", "7")["predicted"]
        self.assertIsNone(other["hardware"])

    def test_what_is_no_machine_for_this_run_is_refused(self):
        self.write(self.many(1))
        cases = [
            (["t4-208gb"], 1, b"without a device, found 'T4 + 208 GB'"),
            (["t4-208g"], 1, b"the nearest one is 't4-208gb'"),
            ([self.path("none.yaml")], 1, b"none.yaml"),
            ([self.use(PROFILE + "links: {h2d_gb_s: 1e9}\n")[1]], 1,
             b"hw.yaml:7: links.h2d_gb_s: expected a number of GB/s from 0.001 to 2000"),
        ]
        for words, status, message in cases:
            done = self.generate("--hardware", *words, status=status)
            self.assertIn(message, done.stderr)
            self.assertFalse(os.path.exists(self.output))


if __name__ == "__main__":
    unittest.main(verbosity=2)
