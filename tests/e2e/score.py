# SPDX-License-Identifier: Apache-2.0
"""Scores through `aquifer generate`: what they are, under which policy, and that they do not depend
on how they were computed."""
import json
import os
import unittest

import rig
from rig import MODEL, PROGRAM, lines_of

PAIRS = [("She said", [" nothing", " that she was a little house", " in the rain"]),
         ("It was a dark and stormy night, and ", ["the old man said"]),
         ("", ["The old house stood in the rain"]),
         ("The sea\n", ["was there", " the old"])]


class Score(rig.Rig):
    def text_ids(self, count):
        """The first ids of a real text."""
        with open(os.path.join(MODEL, "golden", "eval.txt"), encoding="utf-8") as f:
            return self.ids_of(f.read(8 * count))[:count]

    def ids_of(self, text):
        with open(self.path("text.jsonl"), "w", encoding="utf-8") as f:
            f.write(json.dumps({"text": text}) + "\n")
        done = self.run_program([PROGRAM, "tokenize", "--model", MODEL, "--no-bos", "--input",
                                 self.path("text.jsonl")])
        return json.loads(done.stdout)["ids"]

    def scores(self, records, *words, status=0):
        self.write(records)
        self.generate("--compute", "f32", "--overwrite", *words, status=status)
        return self.results()

    def by_echo(self, ids, first):
        """The sum over ids[first:], of the log-probabilities that the whole prompt gets."""
        r = self.scores([{"id": "e", "prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 1}])
        logprobs = r["e"]["logprobs"]
        greedy = all(max(top, key=top.get) == token for token, top in
                     zip(logprobs["tokens"][first:], logprobs["top_logprobs"][first:]))
        return sum(logprobs["token_logprobs"][first:]), greedy

    def evaluated(self, ids, prompt, *words):
        """The same of `aquifer eval`."""
        name = self.path("ids.json")
        with open(name, "w", encoding="utf-8") as f:
            json.dump(ids, f)
        done = self.run_program([PROGRAM, "eval", "--model", MODEL, "--device", "cpu", "--ids",
                                 name, "--prompt-tokens", str(prompt), "--score-tokens",
                                 str(len(ids) - prompt), "--compute", "f32", *words])
        return json.loads(done.stdout)

    def test_a_score_is_the_sum_of_what_echo_shows(self):
        ids = [2] + self.text_ids(90)
        for first in (1, 40, 90):
            r = self.scores([{"id": "s", "prompt": ids[:first], "continuation": ids[first:]}])["s"]
            total, greedy = self.by_echo(ids, first)
            self.assertAlmostEqual(r["loglikelihood"], total, delta=1e-4)
            self.assertEqual((r["is_greedy"], r["tokens"]), (greedy, len(ids) - first))
            self.assertEqual(r["usage"], {"prompt_tokens": len(ids), "completion_tokens": 0,
                                          "total_tokens": len(ids)})

    def test_what_is_generated_greedily_is_greedy(self):
        self.write([{"id": "g", "prompt": "She said", "max_tokens": 9, "logprobs": 0,
                     "ignore_eos": True}])
        self.generate("--compute", "f32")
        made = self.results()["g"]
        prompt = [2] + self.ids_of("She said")
        r = self.scores([{"id": "s", "prompt": prompt,
                          "continuation": [made["tokens"], made["tokens"][:-1] + [5]]}])["s"]
        self.assertEqual([c["is_greedy"] for c in r["choices"]], [True, False])
        self.assertAlmostEqual(r["loglikelihood"], sum(made["logprobs"]["token_logprobs"]),
                               delta=1e-3)

    def test_every_form_has_the_same_scores(self):
        choices = [" nothing", " in the rain"]
        self.write([
            {"id": "plain", "prompt": "She said", "choices": choices},
            {"custom_id": "batch", "method": "POST", "url": "/v1/completions",
             "body": {"prompt": "She said", "continuation": choices}},
            {"request_type": "loglikelihood", "prompt": "She said", "continuation": choices}])
        self.generate("--compute", "f32", "--bos", "always", "--ordered")
        plain, batch, harness = lines_of(self.output)

        def scores(found):
            return [(c["loglikelihood"], c["is_greedy"], c["tokens"]) for c in found]

        want = scores(plain["choices"])
        self.assertEqual(scores([plain]), want[:1])
        body = batch["response"]["body"]
        self.assertEqual(scores(body["choices"]), want)
        self.assertEqual([c["text"] for c in body["choices"]], choices)
        self.assertEqual(scores(harness["result"]["choices"]), want)
        self.assertEqual(scores([harness["result"]]), want[:1])

    # ---- under a cache that loses something

    def test_a_policy_that_drops_is_fed_as_eval_feeds_it(self):
        ids = self.text_ids(160)
        for words in (["--kv-policy", "h2o", "--kv-budget", "20%"],
                      ["--kv-policy", "window", "--kv-budget", "40"],
                      ["--kv-policy", "snapkv", "--kv-budget", "30%"],
                      ["--kv-format", "int4"]):
            r = self.scores([{"id": "s", "prompt": ids[:100], "continuation": ids[100:]}], *words)
            e = self.evaluated(ids, 100, *words)
            self.assertAlmostEqual(r["s"]["loglikelihood"], -60 * e["nll"], delta=1e-6)
            full = self.scores([{"id": "s", "prompt": ids[:100], "continuation": ids[100:]}])
            self.assertNotAlmostEqual(r["s"]["loglikelihood"], full["s"]["loglikelihood"],
                                      delta=1e-3)

    def test_scores_are_the_golden_losses(self):
        """Of another program (tests/data/tiny-opt/README.md), whose f32 sums have another order:
        means of 256 tokens and more differ by some 1e-6, and by more for a key dropped anywhere."""
        golden = os.path.join(MODEL, "golden")
        with open(os.path.join(golden, "eval.json"), encoding="utf-8") as f:
            runs = [r for r in json.load(f)["runs"] if r["P"] == 128]
        self.assertEqual([r["policy"] for r in runs], ["full", "h2o", "h2o"])
        with open(os.path.join(golden, "eval.txt"), encoding="utf-8") as f:
            ids = self.ids_of(f.read())
        for run in runs:
            prompt, width = run["P"], run["P"] + run["G"]
            windows = [ids[i * width:(i + 1) * width] for i in range(run["windows"])]
            policy = [] if run["policy"] == "full" else [
                "--kv-policy", run["policy"], "--kv-budget", str(run["H"] + run["R"]),
                "--kv-heavy", str(run["H"])]
            r = self.scores([{"id": i, "prompt": w[:prompt], "continuation": w[prompt:]}
                             for i, w in enumerate(windows)], "--kv-format", "f32", *policy)
            loss = -sum(s["loglikelihood"] for s in r.values()) / run["tokens"]
            self.assertAlmostEqual(loss, run["nll"], delta=2e-5)

    def test_a_policy_that_drops_nothing_has_the_full_caches_bits(self):
        records = self.pairs()
        full = self.scores(records)
        self.assertEqual(self.scores(records, "--kv-policy", "h2o", "--kv-budget", "100%"), full)
        self.assertEqual(self.scores(records, "--kv-policy", "h2o", "--kv-budget", "500"), full)

    def test_the_preflight_says_how_scores_are_made(self):
        self.write([{"id": 1, "prompt": "She said", "choices": [" nothing at all", " so"]},
                    {"id": 2, "prompt": "She said", "max_tokens": 0, "echo": True, "logprobs": 0}])
        lines = self.generate().stderr.decode()
        self.assertIn("scores: 1 records, 2 continuations or windows, each read at once", lines)
        lines = self.generate("--kv-policy", "h2o", "--kv-budget", "2", "--overwrite")
        self.assertRegex(lines.stderr.decode(), "2 continuations or windows; 1 of them token by "
                         "token, under KV f16 and kv policy h2o")
        self.assertIn("log-probabilities of prompts (echo with logprobs, 1 records) are the full "
                      "cache's", lines.stderr.decode())

    # ---- texts

    def test_what_only_scores_generates_nothing(self):
        scored = {"id": "s", "prompt": "She said", "continuation": [" that", " he"]}
        for records, said in (([scored], r"done: 1 records \(0 errors\), scored in "),
                              ([scored, {"id": "g", "prompt": "She", "max_tokens": 3, "ignore_eos": True}],
                               r"done: 2 records \(0 errors\), \d+ tokens generated in ")):
            self.write(records)
            self.assertRegex(self.generate("--overwrite").stderr.decode(), said)

    def test_a_rolling_score_is_what_eval_says_of_the_windows(self):
        ids = self.text_ids(2500)
        r = self.scores_of_lines([{"request_type": "loglikelihood_rolling", "arguments": [ids]}])
        self.assertEqual(r[0]["result"]["tokens"], 2500)
        total = 0
        for begin in range(0, 2500, 1024):  # the model's context
            end = min(begin + 1024, 2500)
            window = [2] + ids[:end] if begin == 0 else ids[end - 1025:end]
            total += self.scores([{"id": "w", "prompt": window[:-(end - begin)],
                                   "continuation": window[-(end - begin):]}])["w"]["loglikelihood"]
        self.assertAlmostEqual(r[0]["result"]["loglikelihood"], total, delta=1e-6)
        one = self.scores_of_lines([{"request_type": "loglikelihood_rolling",
                                     "arguments": [ids[:200]]}])
        e = self.evaluated([2] + ids[:200], 0)
        self.assertAlmostEqual(one[0]["result"]["loglikelihood"], -200 * e["nll"], delta=1e-4)

    def scores_of_lines(self, records):
        self.write(records)
        self.generate("--compute", "f32", "--overwrite", "--ordered")
        return lines_of(self.output)

    # ---- whatever runs beside, and where

    def pairs(self):
        return [{"id": i, "prompt": prompt, "choices": choices, "logprobs": 1}
                for i, (prompt, choices) in enumerate(PAIRS * 4)]

    def test_scores_depend_on_nothing_beside_them(self):
        records = self.pairs()
        for policy in ([], ["--kv-policy", "h2o", "--kv-budget", "4"]):
            want = self.scores(records, *policy)
            for words in (["--threads", "1", "--micro-batch", "1", "--micro-batches", "1"],
                          ["--micro-batch", "5", "--micro-batches", "2"],
                          ["--placement", "weights=0/0/100 kv=0/0/100", "--disk-dir-any",
                           "--disk-dir", self.dir, "--cache-dir", self.dir],
                          ["--emulate-device", "64MiB", "--attention", "split"]):
                self.assertEqual(self.scores(records[::-1], *policy, *words),
                                 {k: {**v, "index": len(records) - 1 - v["index"]}
                                  for k, v in want.items()})

    def test_a_stopped_run_goes_on(self):
        records = self.pairs() + [{"id": "made", "prompt": "She said", "max_tokens": 5}]
        self.scores(records)
        want = self.sorted_lines()
        with open(self.output, encoding="utf-8") as f:
            lines = f.readlines()
        with open(self.output, "w", encoding="utf-8") as f:
            f.writelines(lines[:5])
            f.write(lines[6][:30])
        self.generate("--compute", "f32")
        self.assertEqual(self.sorted_lines(), want)
        self.generate("--compute", "f32", "--overwrite", "--ordered")
        self.assertEqual([r["id"] for r in lines_of(self.output)], [r["id"] for r in records])

    # ---- what cannot be scored

    def test_bad_records_are_named_and_the_others_run(self):
        r = self.scores([{"id": "good", "prompt": "She said", "continuation": " nothing"},
                         {"id": "empty", "prompt": "She said", "continuation": ""},
                         {"id": "long", "prompt": [5] * 1000, "continuation": [6] * 26},
                         {"id": "fits", "prompt": [5] * 1000, "continuation": [6] * 25}], status=3)
        self.assertEqual(r["good"]["tokens"], 1)
        self.assertEqual(r["fits"]["tokens"], 25)
        self.assertEqual(r["empty"]["error"]["code"], "empty_continuation")
        self.assertEqual(r["long"]["error"]["code"], "context_length_exceeded")
        for number in ("1000", "26", "1024"):
            self.assertIn(number, r["long"]["error"]["message"])
        r = self.scores([{"id": "long", "prompt": [5] * 1000, "continuation": [6] * 26}],
                        "--overlong", "truncate-left")
        self.assertEqual((r["long"]["tokens"], r["long"]["truncated"]), (26, 1))

    def test_a_plan_counts_what_is_scored(self):
        self.write(self.pairs())
        plan = self.plan("--model", MODEL, "--input", self.input, "--hardware", "t4-208gb")
        self.assertTrue(plan["feasible"])


if __name__ == "__main__":
    unittest.main()
