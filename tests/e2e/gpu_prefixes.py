#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prompts that begin alike on a GPU, the emulated one, whose module lies beside the program: rows that share splits of
keys are attended together, on tensor cores or without them, and results are those of prompts that share nothing.

Environment: AQ_PROGRAM, AQ_CUDA_MODULE."""
import json, os, random, subprocess, unittest

from gpu_case import GpuCase

HIDDEN, HEADS, VOCAB = 256, 4, 512  # heads of 64, which tensor cores take
OPT = {"model_type": "opt", "vocab_size": VOCAB, "hidden_size": HIDDEN, "ffn_dim": 64, "num_hidden_layers": 1,
       "num_attention_heads": HEADS, "max_position_embeddings": 640, "word_embed_proj_dim": HIDDEN}
LLAMA = {"model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 64,
         "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
         "max_position_embeddings": 640, "tie_word_embeddings": True}
DEVICE = "weights=100/0/0 kv=100/0/0 hidden=100/0/0 head=device"
STREAMED = "weights=100/0/0 kv=0/100/0 hidden=100/0/0 head=device"
H2O = ["--kv-policy", "h2o", "--kv-budget", "20%"]


class Prefixes(GpuCase):
    def run_job(self, shape, share, *words):
        """Results in the order of their ids, and the report."""
        with open(self.path("config.json"), "w", encoding="utf-8") as f:
            json.dump(shape, f)
        out = self.path("out.jsonl")
        p = subprocess.run([self.program, "generate", "--device", "cuda", "--deterministic", "--attention", "device",
                            "--shape", f.name, "--random-weights", "1", "--input", self.path("in.jsonl"), "--output", out,
                            "--overwrite", "--threads", "1", "--cache-dir", self.path("cache"),
                            "--share-prefixes", share, "--report", self.path("report.json"), *words],
                           capture_output=True, text=True, timeout=900, check=False)
        self.assertEqual(p.returncode, 0, p.stderr)
        with open(out, encoding="utf-8") as f:
            lines = [json.loads(line) for line in f]
        with open(self.path("report.json"), encoding="utf-8") as f:
            report = json.load(f)
        return sorted(({k: v for k, v in r.items() if k != "created"} for r in lines), key=lambda r: r["id"]), report

    def test_results_are_those_of_prompts_that_share_nothing(self):
        draw = random.Random(1)
        ids = [[draw.randrange(10, VOCAB) for _ in range(560)] for _ in range(2)]
        with open(self.path("in.jsonl"), "w", encoding="utf-8") as f:
            # One split and two that are shared, by four, by two, and by none.
            for i, (of, begin) in enumerate(((0, 540), (0, 540), (1, 530), (0, 300), (0, 300), (1, 530), (1, 40))):
                prompt = ids[of][:begin] + [draw.randrange(10, VOCAB) for _ in range(5 + i)]
                f.write(json.dumps({"id": i, "prompt": prompt, "max_tokens": 3 + i % 4 * 2, "ignore_eos": True, "logprobs": 3}) + "\n")
        five, four = ["--micro-batch", "5"], ["--micro-batch", "2", "--micro-batches", "2"]
        cases = ((OPT, DEVICE, [*five, "--compute", "f32", "--kv-format", "f16"], 1500),
                 (LLAMA, DEVICE, [*five, "--compute", "f16", "--kv-format", "int8"], 1500),
                 # Micro-batches share what is home.
                 (LLAMA, STREAMED, [*four, "--compute", "bf16", "--kv-format", "bf16"], 1300),
                 # What their queries have in common is summed once for the prompts of a pass.
                 (OPT, DEVICE, [*five, "--compute", "f32", "--kv-format", "f16", *H2O], 1000),
                 (LLAMA, DEVICE, [*five, "--compute", "bf16", "--kv-format", "bf16", *H2O, "--kv-decay", "0.9"], 1000))
        if "ASAN_OPTIONS" in os.environ:  # of each model one
            cases = cases[1::2]
        for shape, placement, words, least in cases:
            with self.subTest(shape=shape["model_type"], words=words):
                words = ["--placement", placement, *words]
                apart, _ = self.run_job(shape, "off", *words)
                together, report = self.run_job(shape, "on", *words)
                self.assertGreater(report["shared_tokens"], least)
                self.assertEqual(together, apart)


if __name__ == "__main__":
    unittest.main()
