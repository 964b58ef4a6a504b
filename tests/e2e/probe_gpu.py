#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`aquifer probe` and --hardware local on a machine with a GPU: the emulated one, whose module lies beside the
program.  Only that everything is measured, written and read back; how fast the emulation is means nothing.

Environment: AQ_PROGRAM, AQ_CUDA_MODULE, AQ_TEST_DATA."""
import json, math, os, subprocess, unittest

from gpu_case import GpuCase

MODEL = os.path.join(os.environ["AQ_TEST_DATA"], "tiny-opt")
DEVICE = (["memory_gb_s", "product_memory_gb_s", "attention_tflop_s", "attention_memory_gb_s", "attention_scored_gb_s",
           "unpack_int8_gb_s", "unpack_int4_gb_s", "start_us", "launch_us", "product_f32_tflop_s"] +
          [f"attention_{heads}_memory_gb_s" for heads in ("d128", "g4", "g8", "d128_g4", "d128_g8")] +
          [f"product_{t}{rows}_tflop_s" for t in ("f16", "bf16") for rows in ("", "_rows16", "_rows64", "_rows256")])
LINKS = ["h2d_gb_s", "d2h_gb_s", "both_gb_s", "duplex", "start_us", "copy_core_s_per_gb", "h2d_in_attention_gb_s",
         "attention_in_h2d_gb_s"] + [f"{way}_{size}_gb_s" for way in ("h2d", "d2h") for size in ("64kib", "1mib", "16mib")]


class ProbeGpu(GpuCase):
    def run_program(self, *words, status=0):
        p = subprocess.run([self.program, *words], capture_output=True, text=True, timeout=300)
        self.assertEqual(p.returncode, status, p.stderr)
        return p

    def probe(self, *words, device="cuda"):
        return self.run_program("probe", "--quick", "--threads", "1", "--device", device, *words)

    def generated(self, device, *words):
        """The report of a small job with what --hardware local keeps in one directory."""
        with open(self.path("in.jsonl"), "w", encoding="utf-8") as f:
            f.write(json.dumps({"prompt": [2, 5, 6, 7], "max_tokens": 2}) + "\n")
        self.run_program("generate", "--device", device, "--model", MODEL, "--input", f.name, "--output",
                         self.path("out.jsonl"), "--overwrite", "--threads", "1", "--host-memory", "700MiB",
                         "--cache-dir", self.path("cache"), "--report", self.path("report.json"), *words)
        with open(self.path("report.json"), encoding="utf-8") as f:
            return json.load(f)["predicted"]

    def test_a_gpu_and_its_links_are_measured_and_read_back(self):
        document = json.loads(self.probe("--output", self.path("hw.yaml"), "--json").stdout)
        profile = document["profile"]
        self.assertEqual(profile["device"], "emulated GPU")
        self.assertGreater(profile["capacity"]["device"], 1 << 30)
        for section, names in ("device", DEVICE), ("links", LINKS):
            for name in names:
                rate = profile["rates"][section][name]
                self.assertEqual(rate["origin"], "given", name)
                self.assertTrue(math.isfinite(rate["value"]), name)
                self.assertTrue(rate["value"] >= 0 if name == "start_us" else rate["value"] > 0, name)
                self.assertIn("measured", rate["source"], name)
        plan = json.loads(self.run_program("plan", "--model", MODEL, "--hardware", self.path("hw.yaml"), "--prompt-len",
                                           "8", "--gen-len", "4", "--json").stdout)
        self.assertTrue(plan["feasible"])
        self.assertGreater(plan["memory"]["device"]["budget"], 1 << 29)

    def test_runs_on_the_gpu_and_on_the_cpu_keep_their_own_machine(self):
        self.probe("--keep", "--cache-dir", self.path("cache"))
        kept = self.path("cache/hardware-local-gpu.yaml")
        with open(kept, encoding="utf-8") as f:
            text = f.read()
        self.assertIn("emulated GPU", text[text.index("made_for"):].split("\n")[0])
        with open(kept, "w", encoding="utf-8") as f:
            f.write(text.replace('name: "this machine"', 'name: "kept"'))
        self.assertEqual(self.generated("cuda")["hardware"], "kept")  # --hardware local is where it would look
        self.assertEqual(self.generated("cuda", "--hardware", "local")["hardware"], "kept")
        self.assertEqual(self.generated("cpu", "--hardware", "local")["hardware"], "this machine")
        if not os.path.exists(self.path("cache/hardware-local.yaml")):  # a busy machine: nothing is kept by itself
            self.probe("--keep", "--cache-dir", self.path("cache"), device="cpu")
        self.assertEqual(sorted(os.listdir(self.path("cache")))[:2], ["hardware-local-gpu.yaml", "hardware-local.yaml"])
        plan = ["plan", "--model", MODEL, "--cache-dir", self.path("cache"), "--threads", "1", "--prompt-len", "8",
                "--gen-len", "4", "--json"]
        there = json.loads(self.run_program(*plan, "--device", "cuda").stdout)
        self.assertGreater(there["memory"]["device"]["budget"], 1 << 29)
        refused = self.run_program(*plan, "--device", "cuda", "--hardware", "h200-141gb", status=1)
        self.assertIn("expected --hardware local, found 'h200-141gb'", refused.stderr)


if __name__ == "__main__":
    unittest.main()
