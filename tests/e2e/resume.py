#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`aquifer generate` on models of three families, with weights drawn at random: a job that is killed again and
again, and goes on each time with another placement, executor, number of threads and block, ends with the results
of one that nobody disturbed and that had everything in memory, one sequence at a time."""
import json
import random
import signal
import subprocess
import time
import unittest

from rig import PROGRAM, Rig, size_of

RECORDS, KILLS, VOCAB = 60, 4, 512
SHAPE = {"vocab_size": VOCAB, "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 3,
         "max_position_embeddings": 256, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
         "bos_token_id": 1, "eos_token_id": 2}
LLAMA = dict(SHAPE, model_type="llama", hidden_act="silu", num_attention_heads=6, num_key_value_heads=2,
             rms_norm_eps=1e-5, rope_theta=500.0)
QWEN3 = dict(SHAPE, model_type="qwen3", hidden_act="silu", num_attention_heads=14, num_key_value_heads=2, head_dim=24,
             rms_norm_eps=1e-6, rope_theta=1e4)
NEOX = dict(SHAPE, model_type="gpt_neox", hidden_act="gelu", num_attention_heads=6, rotary_pct=0.25, rotary_emb_base=100,
            layer_norm_eps=1e-5, use_parallel_residual=True)
PLACES = ("weights=0/100/0 kv=0/100/0 hidden=0/100/0", "weights=30/20/50 kv=20/20/60 hidden=0/50/50",
          "weights=0/0/100 kv=0/100/0 hidden=0/100/0", "weights=50/50/0 kv=0/100/0 hidden=100/0/0",
          "weights=0/60/40 kv=100/0/0 hidden=0/100/0")

CLOSE = ("--kv-policy", "window", "--kv-budget", "40", "--kv-positions", "cache")


class Families(Rig):
    def words(self, *words, **how):
        known = super().words(*words, **how)
        at = known.index("--model")
        return [*known[:at], "--shape", self.path("config.json"), "--random-weights", "7", *known[at + 2:]]

    def drawn(self, draw, places):
        """Options that must not change a token; a device that is emulated where any place will do, or attention beside
        products."""
        device = ["--emulate-device", "48MiB", "--emulate-link", "1/1", "--attention",
                  draw.choice(["device", "host", "split:40%"])]
        batches = draw.randint(1, 3)
        if not (places is PLACES and draw.randrange(3)):
            device = ["--side-by-side", "on"] if batches > 1 and draw.randrange(3) else []
        return ["--placement", draw.choice(places), "--disk-dir", self.dir, "--disk-dir-any", "--cache-dir",
                self.path("cache"), "--threads", str(draw.randint(1, 3)), "--micro-batch", str(draw.randint(3, 9)),
                "--micro-batches", str(batches), "--executor", draw.choice(["serial", "overlapped"]), *device]

    def write_job(self, config):
        draw = random.Random(23)
        with open(self.path("config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        self.write([{"id": i, "prompt": [draw.randrange(3, VOCAB) for _ in range(draw.randint(1, 90))],
                     "max_tokens": draw.randint(4, 40), "temperature": draw.choice([0, 0.9]), "ignore_eos": True,
                     "logprobs": draw.choice([None, 1])} for i in range(RECORDS)])

    def killed(self, words, goal):
        """Was it killed before its end, once the results were as long?"""
        child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        until = time.monotonic() + 60
        while child.poll() is None and size_of(self.output) < goal and time.monotonic() < until:
            time.sleep(0.001)
        child.kill()
        said = child.communicate()[1].decode()
        if child.returncode != -signal.SIGKILL:
            self.assertEqual(child.returncode, 0, said)
        return child.returncode != 0

    def goes_on(self, config, *policy, places=PLACES):
        self.write_job(config)
        want = self.path("want.jsonl")
        self.generate(*policy, "--threads", "1", "--micro-batch", "1", "--executor", "serial", "--placement",
                      PLACES[0], target=want)
        draw, kills, size = random.Random(5), 0, size_of(want)
        for part in range(KILLS):
            words = self.words(*policy, *self.drawn(draw, places))
            kills += self.killed(words, (part + draw.random()) * size / (KILLS + 1))
        self.assertGreaterEqual(kills, KILLS - 1)
        self.generate(*policy, *self.drawn(draw, places))
        with open(want, encoding="utf-8") as f:
            self.assertEqual(self.sorted_lines(), sorted(f))

    def test_llama_with_three_query_heads_a_key(self):
        self.goes_on(LLAMA)

    def test_qwen3_with_heads_wider_than_the_stream(self):
        self.goes_on(QWEN3)

    def test_gpt_neox_whose_layers_are_one_step(self):
        self.goes_on(NEOX)

    def test_kvcompress_whose_prompts_are_cut_over_all_layers(self):
        """It has KV in memory alone, and no device with memory of its own."""
        self.goes_on(LLAMA, "--kv-policy", "kvcompress", "--kv-budget", "40", "--kv-recent", "20",
                     places=tuple(p for p in PLACES if "kv=0/100/0" in p))

    def test_heads_that_each_have_a_rule(self):
        """On disk, too, and on no device with memory of its own."""
        self.goes_on(LLAMA, "--kv-policy", "fastgen", "--kv-mass", "0.7",
                     places=(*PLACES[:2], "weights=0/100/0 kv=0/0/100 hidden=0/0/100"))

    def test_rows_that_read_a_part_of_what_is_kept(self):
        self.goes_on(LLAMA, "--kv-read", "96", "--kv-read-dense", "0",
                     places=tuple(p for p in PLACES if "kv=0/" in p))

    def test_positions_in_the_cache_go_on_behind_the_context(self):
        self.goes_on(dict(LLAMA, max_position_embeddings=96), *CLOSE, "--context", "600")

    def test_positions_are_part_of_what_results_are(self):
        self.write_job(LLAMA)
        self.write([{"id": 1, "prompt": [5, 6, 7], "max_tokens": 3}])
        self.generate(*CLOSE)
        self.assertIn("kv_positions", self.generate(*CLOSE[:4], status=1).stderr.decode())
        self.generate(*CLOSE)

    def test_a_prompt_is_no_longer_than_what_the_model_knows(self):
        self.write_job(dict(LLAMA, max_position_embeddings=96))
        self.write([{"id": n, "prompt": [5] * n, "max_tokens": 60, "ignore_eos": True} for n in (96, 97)])
        said = self.generate(*CLOSE[:4], "--context", "600", status=1).stderr.decode()
        self.assertIn("the model knows 96 positions; only --kv-policy window with", said)
        self.generate(*CLOSE, "--context", "600", status=3)
        whole, cut = sorted(self.results().values(), key=lambda row: row["id"])
        self.assertEqual(len(whole["tokens"]), 60)
        self.assertIn("exceeds the positions that the model knows", json.dumps(cut))

    def test_what_came_behind_the_context_is_scored_as_it_was_generated(self):
        self.write_job(dict(LLAMA, max_position_embeddings=96))
        words = (*CLOSE, "--context", "600", "--compute", "f32", "--weight-format", "f32", "--kv-format", "f32")
        prompts = [list(range(5, 5 + n)) for n in (3, 60)]
        self.write([{"id": n, "prompt": prompt, "max_tokens": 300, "logprobs": 1, "ignore_eos": True}
                    for n, prompt in enumerate(prompts)])
        self.generate(*words)
        rows = self.results()
        self.write([{"id": n, "prompt": prompt, "continuation": rows[n]["tokens"]}
                    for n, prompt in enumerate(prompts)])
        self.generate(*words, "--overwrite")
        for key, row in self.results().items():
            self.assertTrue(row["is_greedy"])
            self.assertAlmostEqual(row["loglikelihood"], sum(rows[key]["logprobs"]["token_logprobs"]), 3)

    def test_a_benchmark_fills_no_cache_behind_what_the_model_knows(self):
        self.write_job(dict(LLAMA, max_position_embeddings=96))
        words = [PROGRAM, "bench", "--shape", self.path("config.json"), "--random-weights", "7", "--device", "cpu",
                 "--requests", "2", "--prompt-len", "20", "--dry-run", "--host-memory", "512MiB", *CLOSE, "--context",
                 "600", "--decode-passes", "2", "--gen-len"]
        self.run_program([*words, "77"])
        said = self.run_program([*words, "78"], 1).stderr.decode()
        self.assertIn("--decode-passes 2: the cache is filled by prompts of up to 97 tokens, and", said)

    def test_what_is_read_is_part_of_what_results_are(self):
        self.write_job(LLAMA)
        self.write([{"id": 1, "prompt": [5, 6, 7], "max_tokens": 3}])
        self.generate("--kv-read", "96", "--kv-read-dense", "0")
        for other in ((), ("--kv-read", "128", "--kv-read-dense", "0"), ("--kv-read", "96", "--kv-read-dense", "1")):
            said = self.generate(*other, status=1).stderr.decode()
            self.assertIn("kv_read", said)
        self.generate("--kv-read", "96", "--kv-read-dense", "0")

    def test_a_job_goes_on_with_the_instruction_set_that_it_began_with(self):
        self.write_job(LLAMA)
        self.write([{"id": 1, "prompt": [5, 6, 7], "max_tokens": 3}])
        begun, on = ["--isa", "ref", "--compute", "f32"], ["--compute", "f32"]
        self.generate(*begun)
        said = self.generate(*on).stderr.decode()
        self.assertIn("cpu, ref,", said)
        self.assertNotIn("isa was", said)
        other = self.generate(*on, "--overwrite").stderr.decode()  # begun anew: nothing is kept
        self.assertNotIn("cpu, ref,", other)


if __name__ == "__main__":
    unittest.main()
