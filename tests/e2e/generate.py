#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`aquifer generate` as a user runs it: files in, files out, on the small trained model."""
import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import time
import unittest

from rig import MODEL, PROGRAM, Rig, lines_of, size_of

KILLS = 10


def golden(count):
    return lines_of(os.path.join(MODEL, "golden", "greedy.jsonl"))[:count]


class Generate(Rig):
    # ---- what comes out

    def test_greedy_tokens_are_the_golden_ones(self):
        want = golden(6)
        self.write({"id": str(g["id"]), "prompt": g["prompt"]} for g in want)
        self.generate("--compute", "f32", "--max-tokens", "64")
        found = self.results()
        for g in want:
            r = found[str(g["id"])]
            self.assertEqual(r["tokens"], g["tokens"])
            self.assertEqual(r["usage"]["prompt_tokens"], len(g["prompt_ids"]))
            self.assertEqual(r["text"], g["text"])

    def test_ids_without_a_token_are_never_chosen(self):
        """A tokenizer without tokens that would come, at the end and in the middle, and one prompt with BOS twice."""
        want = golden(6)
        gone = {t for g in want for t in g["tokens"][::5] if t > 300} | set(range(4000, 4096))
        model = self.path("model")
        os.mkdir(model)
        for name in os.listdir(MODEL):
            os.symlink(os.path.join(MODEL, name), os.path.join(model, name))
        for name in ("vocab.json", "merges.txt"):
            os.remove(os.path.join(model, name))
        with open(os.path.join(MODEL, "vocab.json"), encoding="utf-8") as f:
            vocab = {t: i for t, i in json.load(f).items() if i not in gone}
        with open(os.path.join(MODEL, "merges.txt"), encoding="utf-8") as f:
            merges = [m for m in f.read().split("\n")[1:] if m and m.replace(" ", "") in vocab and
                      all(p in vocab for p in m.split())]
        with open(os.path.join(model, "vocab.json"), "w", encoding="utf-8") as f:
            json.dump(vocab, f)
        with open(os.path.join(model, "merges.txt"), "w", encoding="utf-8") as f:
            f.write("\n".join(merges))
        records = [{"id": i, "prompt": g["prompt_ids"]} for i, g in enumerate(want)]
        self.write(records + [{"id": "twice", "prompt": "</s>She said"}])
        done = self.run_program([PROGRAM, "generate", "--model", model, "--device", "cpu", "--input", self.input,
                                 "--output", self.output, "--compute", "f32", "--max-tokens", "64"])
        said = done.stderr.decode()
        self.assertEqual(said.count("have no token and are never chosen"), 1)
        self.assertIn(f"ids 4000 to 4095 and {len(gone) - 96} below them have no token", said)
        self.assertEqual(said.count("bos: 1 prompt began with BOS already"), 1)
        found = self.results()
        for i, g in enumerate(want):
            self.assertTrue(gone & set(g["tokens"]))
            self.assertFalse(gone & set(found[i]["tokens"]))

    def test_tokens_in_kivi_depend_on_the_sequence_alone(self):
        """Whatever block, tier and order the sequences have; and a resumed run asks for the same residual."""
        want = golden(6)
        self.write({"id": g["id"], "prompt": g["prompt"] * 12} for g in want)
        words = ("--kv-format", "kivi2", "--kv-residual", "32", "--max-tokens", "50", "--ignore-eos",
                 "--logprobs", "0")
        self.generate(*words)
        one = self.results()
        said = self.generate(*words, "--overwrite", "--micro-batch", "2", "--micro-batches", "2",
                             "--placement", "weights=0/100/0 kv=0/40/60 hidden=0/100/0", "--disk-dir",
                             self.dir, "--disk-dir-any", "--threads", "1").stderr
        self.assertIn(b"keys rounded to kivi2 by channel, values by token, the newest 32 tokens to f16", said)
        self.assertEqual(self.results(), one)
        self.generate(*words, "--overwrite", "--limit", "2")
        refused = self.generate(*words[:2], *words[4:], status=1).stderr
        self.assertIn(b"kv_residual", refused)
        self.generate(*words)
        self.assertEqual(self.results(), one)
        self.generate("--kv-format", "f16", *words[4:], "--overwrite")
        f16 = self.results()
        self.assertNotEqual(f16, one)
        self.generate("--kv-format", "kivi2", "--kv-residual", "224", *words[4:], "--overwrite")
        self.assertEqual(self.results(), f16)  # nothing has left the residual

    def test_greedy_tokens_under_h2o_are_the_golden_ones(self):
        with open(os.path.join(MODEL, "golden", "h2o_greedy.json"), encoding="utf-8") as f:
            want = json.load(f)
        if "ASAN_OPTIONS" in os.environ:  # a short prompt and two that lose keys
            want = want[4:8:2] + want[-1:]
        self.write({"id": i, "prompt": g["prompt_ids"]} for i, g in enumerate(want))
        words = ("--compute", "f32", "--kv-format", "f32", "--max-tokens", "64", "--ignore-eos", "--kv-policy", "h2o",
                 "--overwrite")
        self.generate(*words, "--kv-budget", "20%")
        found = self.results()
        for i, g in enumerate(want):
            self.assertEqual(found[i]["tokens"], g["tokens"])
        # Heads that keep all of their own share nothing; wherever they have it, they share alike.
        self.generate(*words, "--kv-policy", "adakv", "--kv-budget", "20%", "--kv-floor", "100%")
        found = self.results()
        for i, g in enumerate(want):
            self.assertEqual(found[i]["tokens"], g["tokens"])
        # Runs that are compared with one another may be shorter where they are slow.
        if "ASAN_OPTIONS" in os.environ:
            words = (*words, "--max-tokens", "24")
        adakv = (*words, "--kv-policy", "adakv", "--logprobs", "0")
        self.generate(*adakv, "--kv-budget", "10", "--kv-floor", "100%")
        alone = self.results()
        self.generate(*adakv, "--kv-budget", "10")
        shared = self.results()
        self.assertNotEqual([shared[i]["tokens"] for i in shared],
                            [alone[i]["tokens"] for i in shared])
        self.generate(*adakv, "--kv-budget", "10", "--emulate-device", "64MiB", "--micro-batch", "4", "--attention",
                      "split", "--placement", "weights=0/50/50 kv=20/40/40 hidden=0/0/100 head=host")
        self.assertEqual(self.results(), shared)
        # Layers and heads that differ, and grow by more than a run: the same wherever their KV is.
        for policy in ("pyramidkv", "ada-snapkv", "ada-pyramid"):
            rows = (*words, "--kv-policy", policy, "--kv-observe", "6", "--logprobs", "0")
            self.generate(*rows, "--kv-budget", "30")
            there = self.results()
            for more in (("--emulate-device", "64MiB", "--micro-batch", "4", "--attention", "split",
                          "--placement", "weights=0/50/50 kv=20/40/40 hidden=0/0/100 head=host"),
                         ("--placement", "weights=0/100/0 kv=0/30/70 hidden=0/100/0"), ("--threads", "3")):
                self.generate(*rows, "--kv-budget", "30", *more)
                self.assertEqual(self.results(), there)
            self.generate(*rows, "--kv-budget", "100%")
            whole = self.results()
            self.generate(*words, "--kv-policy", "full", "--logprobs", "0")
            self.assertEqual(self.results(), whole)
            self.assertNotEqual([there[i]["tokens"] for i in there], [whole[i]["tokens"] for i in whole])
        # Many keys dropped at a time: the same wherever their KV is, and nothing where all of them have room.
        for policy, more in (("h2o", ("--kv-decode", "bulk", "--kv-drop", "9")), ("scissorhands", ("--kv-recent", "3")),
                             ("snapkv", ("--kv-decode", "bulk", "--kv-observe", "6", "--kv-drop", "13"))):
            rows = (*words, "--kv-policy", policy, *more, "--logprobs", "0")
            self.generate(*rows, "--kv-budget", "40")
            there = self.results()
            for placed in (("--emulate-device", "64MiB", "--micro-batch", "4", "--attention", "split",
                            "--placement", "weights=0/50/50 kv=20/40/40 hidden=0/0/100 head=host"),
                           ("--placement", "weights=0/100/0 kv=0/30/70 hidden=0/100/0"), ("--threads", "3")):
                self.generate(*rows, "--kv-budget", "40", *placed)
                self.assertEqual(self.results(), there)
            self.generate(*rows, "--kv-budget", "100%")
            self.assertEqual(self.results(), whole)
            self.assertNotEqual([there[i]["tokens"] for i in there], [whole[i]["tokens"] for i in whole])
        # A part of what is kept is read: nothing is left out where all of it may be.
        rows = (*words, "--kv-policy", "full", "--logprobs", "0", "--kv-read-dense", "1")
        self.generate(*rows, "--kv-read", "96")
        there = self.results()
        for placed in (("--emulate-device", "64MiB", "--micro-batch", "4", "--placement",
                        "weights=0/50/50 kv=0/60/40 hidden=0/0/100 head=host"),
                       ("--placement", "weights=0/100/0 kv=0/30/70 hidden=0/100/0"), ("--threads", "3")):
            self.generate(*rows, "--kv-read", "96", *placed)
            self.assertEqual(self.results(), there)
        self.generate(*rows, "--kv-read", "1024")
        self.assertEqual(self.results(), whole)
        # Heads of all layers share: a device has no room to cut a prompt over all layers, nor has a disk.
        rows = (*words, "--kv-policy", "kvcompress", "--kv-recent", "20", "--logprobs", "0")
        self.generate(*rows, "--kv-budget", "32")
        there = self.results()
        for more in (("--placement", "weights=0/0/100 kv=0/100/0 hidden=0/0/100", "--micro-batch", "4"),
                     ("--micro-batch", "3", "--micro-batches", "2", "--executor", "serial"), ("--threads", "3"),
                     ("--micro-batch", "2", "--micro-batches", "3", "--side-by-side", "on")):
            self.generate(*rows, "--kv-budget", "32", *more)
            self.assertEqual(self.results(), there)
        self.generate(*rows, "--kv-budget", "32", "--kv-cross-layer", "1000")
        uncut = self.results()
        self.generate(*rows, "--kv-budget", "32", "--kv-cross-layer", "0")
        self.assertEqual(self.results(), uncut)
        self.generate(*rows, "--kv-budget", "100%")
        self.assertEqual(self.results(), whole)
        self.assertNotEqual([there[i]["tokens"] for i in there], [whole[i]["tokens"] for i in whole])
        # Each head has a rule, by the tokenizer's classes of tokens: in memory, on disk, and half and half.
        rows = (*words, "--kv-policy", "fastgen", "--logprobs", "0")
        self.generate(*rows, "--kv-mass", "0.8")
        there = self.results()
        for more in (("--placement", "weights=0/0/100 kv=0/30/70 hidden=0/0/100", "--micro-batch", "4"),
                     ("--micro-batch", "3", "--micro-batches", "2", "--executor", "serial"), ("--threads", "3"),
                     ("--micro-batch", "2", "--micro-batches", "3", "--side-by-side", "on")):
            self.generate(*rows, "--kv-mass", "0.8", *more)
            self.assertEqual(self.results(), there)
        self.generate(*rows, "--kv-mass", "1")
        self.assertEqual(self.results(), whole)
        # Queries to come rank the prompt, wherever they are attended.
        rows = (*words, "--kv-policy", "expected", "--logprobs", "0")
        self.generate(*rows, "--kv-budget", "50%")
        there = self.results()
        for more in (("--emulate-device", "64MiB", "--micro-batch", "4", "--placement",
                      "weights=0/50/50 kv=0/60/40 hidden=0/0/100 head=host"),
                     ("--placement", "weights=0/100/0 kv=0/30/70 hidden=0/100/0"), ("--threads", "3")):
            self.generate(*rows, "--kv-budget", "50%", *more)
            self.assertEqual(self.results(), there)
        self.assertNotEqual([there[i]["tokens"] for i in there], [whole[i]["tokens"] for i in whole])
        self.generate(*rows, "--kv-budget", "100%")
        self.assertEqual(self.results(), whole)
        # Of rules: a cap that no prompt comes to changes nothing, nor all of the prompt; a lower one does.
        rows = (*words, "--kv-policy", "fastgen", "--logprobs", "0")
        self.generate(*rows, "--kv-mass", "1", "--kv-budget", "100%")
        self.assertEqual(self.results(), whole)
        self.generate(*rows, "--kv-mass", "1", "--kv-budget", "30%")
        self.assertNotEqual(self.results(), whole)
        self.assertNotEqual([there[i]["tokens"] for i in there], [whole[i]["tokens"] for i in whole])
        # The whole sequence is the full cache, bit for bit.
        self.generate(*words, "--kv-budget", "100%", "--logprobs", "0")
        whole = self.results()
        self.generate(*words, "--kv-policy", "full", "--logprobs", "0")
        self.assertEqual(self.results(), whole)
        self.assertNotEqual(whole[0]["tokens"], found[0]["tokens"])

    def test_three_forms_side_by_side(self):
        harness = ('{"best_of": 1, "echo": true, "logprobs": 1, "max_tokens": 0, "model": "x", '
                   '"n": 1,  "prompt": "In my palm is a clear stone", "request_type": '
                   '"language-model-inference", "stop": null, "temperature": 0, "top_p": 1}')
        self.write([
            {"id": 3, "prompt": "She said", "metadata": {"a": [1, None]}},
            {"custom_id": "b-1", "method": "POST", "url": "/v1/completions",
             "body": {"model": "m", "prompt": "She said", "max_tokens": 4}},
            harness,
            {"custom_id": "b-2", "method": "POST", "url": "/v1/completions",
             "body": {"prompt": "She said", "stream": True}},
            "{broken",
        ])
        self.generate("--ordered", status=3)
        plain, batch, scored, refused, broken = lines_of(self.output)
        self.assertEqual((plain["id"], plain["index"], plain["finish_reason"]), (3, 0, "length"))
        self.assertEqual(plain["metadata"], {"a": [1, None]})
        self.assertEqual(len(plain["tokens"]), 32)
        body = batch["response"]["body"]
        self.assertEqual(batch["custom_id"], "b-1")
        self.assertEqual((batch["error"], batch["response"]["status_code"]), (None, 200))
        self.assertEqual((body["object"], body["model"]), ("text_completion", "m"))
        self.assertEqual(body["usage"]["completion_tokens"], 4)
        self.assertTrue(plain["text"].startswith(body["choices"][0]["text"]))
        with open(self.output, encoding="utf-8") as f:
            self.assertIn('"request":' + harness, f.read())
        logprobs = scored["result"]["choices"][0]["logprobs"]
        self.assertEqual("".join(logprobs["tokens"]), "In my palm is a clear stone")
        self.assertIsNone(logprobs["token_logprobs"][0])
        self.assertEqual(refused["response"]["status_code"], 400)
        self.assertEqual(refused["response"]["body"]["error"]["code"], "unsupported_parameter")
        self.assertEqual(refused["error"]["code"], "unsupported_parameter")
        self.assertEqual((broken["id"], broken["error"]["line"]), (None, 5))

    def test_neighbours_and_order_do_not_change_results(self):
        records = [{"id": f"r{i}", "prompt": "The " + "old " * (i % 7) + "man",
                    "max_tokens": 5 + i % 11, "temperature": 0.8 if i % 2 else 0}
                   for i in range(24)]
        self.write(records)
        self.generate("--seed", "5")
        together = self.results()
        self.write(reversed(records))
        self.generate("--seed", "5", "--ordered", "--overwrite", "--micro-batch", "2",
                      "--micro-batches", "2", "--threads", "1")
        self.assertEqual([r["id"] for r in lines_of(self.output)], [r["id"] for r in records][::-1])
        for id_, r in self.results().items():
            self.assertEqual(r["tokens"], together[id_]["tokens"])

    def test_samples_differ_and_repeat(self):
        self.write([{"id": "a", "prompt": "She said", "n": 3, "temperature": 1, "seed": 11}])
        self.generate()
        first = self.results()["a"]
        texts = [c["text"] for c in first["choices"]]
        self.assertEqual(len(set(texts)), 3)
        self.assertEqual(first["text"], texts[0])
        self.generate("--overwrite")
        self.assertEqual(self.results()["a"], first)

    def test_a_stop_string_across_tokens_ends_the_text(self):
        self.write([{"id": 1, "prompt": golden(1)[0]["prompt"], "logprobs": 0}])
        self.generate("--compute", "f32", "--max-tokens", "24")
        whole = self.results()[1]
        first, second = whole["logprobs"]["tokens"][3:5]
        stop = first[-1] + second[:2]
        cut = whole["text"].index(stop)
        self.write([{"id": 1, "prompt": golden(1)[0]["prompt"], "stop": [stop]}])
        self.generate("--compute", "f32", "--max-tokens", "24", "--overwrite")
        r = self.results()[1]
        self.assertEqual(r["text"], whole["text"][:cut])
        self.assertEqual((r["finish_reason"], r["stop_reason"]), ("stop", stop))
        self.assertEqual(r["tokens"], whole["tokens"][:len(r["tokens"])])
        self.assertLess(len(r["tokens"]), 24)

    def test_scoring_agrees_with_generating(self):
        g = golden(2)[1]
        self.write([{"id": "g", "prompt": g["prompt_ids"], "max_tokens": 12, "logprobs": 2}])
        self.generate("--compute", "f32")
        made = self.results()["g"]
        ids = g["prompt_ids"] + made["tokens"]
        self.write([{"id": "s", "prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 2}])
        self.generate("--compute", "f32", "--overwrite")
        scored = self.results()["s"]["logprobs"]
        self.assertEqual(scored["token_ids"], ids)
        self.assertEqual(len(scored["text_offset"]), len(ids))
        self.assertIsNone(scored["top_logprobs"][0])
        made = made["logprobs"]
        for i, lp in enumerate(made["token_logprobs"]):
            self.assertAlmostEqual(scored["token_logprobs"][len(g["prompt_ids"]) + i], lp, delta=1e-3)
            best = max(made["top_logprobs"][i].values())
            self.assertEqual(lp, best)  # greedy
            self.assertLessEqual(sum(map(math.exp, made["top_logprobs"][i].values())), 1.0001)

    def test_echo_stands_in_front(self):
        self.write([{"id": 1, "prompt": "She said", "echo": True, "max_tokens": 3}])
        self.generate()
        r = self.results()[1]
        self.assertTrue(r["text"].startswith("She said"))
        self.assertGreater(len(r["text"]), len("She said"))
        self.assertEqual(len(r["tokens"]), 3)

    def test_prompts_that_are_too_long(self):
        long = [2] + [100 + i % 900 for i in range(1199)]
        self.write([{"id": "long", "prompt": long}, {"id": "short", "prompt": [5]}])
        self.generate(status=3)
        error = self.results()["long"]["error"]
        self.assertEqual(error["code"], "context_length_exceeded")
        for number in ("1200", "32", "1024"):
            self.assertIn(number, error["message"])
        self.generate("--overlong", "truncate-left", "--overwrite")
        r = self.results()["long"]
        self.assertEqual((r["truncated"], r["usage"]["prompt_tokens"]), (1200 - 992, 992))
        self.write([{"id": "long", "prompt": long[:1020]}, {"id": "short", "prompt": [5]}])
        self.generate("--overlong", "clip", "--ignore-eos", "--overwrite")
        r = self.results()
        self.assertEqual(r["long"]["usage"]["completion_tokens"], 4)
        self.assertNotIn("truncated", r["long"])
        self.assertEqual(r["short"]["usage"]["completion_tokens"], 32)

    # ---- where things come from and go to

    def test_pipes_in_and_out(self):
        records = b'\xef\xbb\xbf{"id": "a", "prompt": "She said"}\r\n\r\n{"id": "b", "prompt": [5]}'
        done = self.run_program(self.words("--ordered", source="-", target="-"), input=records)
        self.assertEqual([json.loads(line)["id"] for line in done.stdout.splitlines()], ["a", "b"])
        self.assertEqual(os.listdir(self.dir), [])

    def test_a_prompt_on_the_command_line(self):
        done = self.run_program([PROGRAM, "generate", "--model", MODEL, "--device", "cpu",
                                 "--compute", "f32", "--prompt", golden(1)[0]["prompt"],
                                 "--max-tokens", "64", "--quiet"])
        self.assertEqual(done.stdout.decode(), golden(1)[0]["text"] + "\n")
        self.assertEqual(done.stderr, b"")

    def test_other_fields_templates_and_text(self):
        self.write([{"question": "Why?", "answer": "So."}])
        self.generate("--prompt-template", "Q: {question}\nA:", "--echo", "--max-tokens", "2")
        self.assertTrue(self.results()[0]["text"].startswith("Q: Why?\nA:"))
        self.generate("--prompt-field", "answer", "--echo", "--max-tokens", "2", "--overwrite")
        self.assertTrue(self.results()[0]["text"].startswith("So."))
        self.write(["Once upon a time", "", "The end"])
        self.generate("--input-format", "text", "--echo", "--max-tokens", "2", "--overwrite")
        self.assertEqual(len(self.results()), 2)

    def test_a_newline_can_be_typed(self):
        self.write([{"q": "Why?"}])
        words = ("--prompt-template", r"Q: {q}\nA:", "--stop", r"\n", "--echo", "--max-tokens", "2")
        self.generate(*words)
        self.assertTrue(self.results()[0]["text"].startswith("Q: Why?\nA:"))
        manifest = self.output + ".manifest.json"
        with open(manifest, encoding="utf-8") as f:
            values = json.load(f)
        self.assertEqual(values["values"]["stop"], ["\n"])
        values["values"]["stop"] = [r"\n"]  # as a run had it that took the two characters,
        del values["sums"], values["xxh3"]   # and wrote no checksums
        with open(manifest, "w", encoding="utf-8") as f:
            json.dump(values, f)
        done = self.generate(*words, status=1)
        self.assertIn(rb'stop                         | ["\\n"]', done.stderr)

    def test_the_line_that_makes_records_of_a_table_does(self):
        with open(self.path("q.csv"), "w", encoding="utf-8") as f:
            f.write('name,question\na,"Why, oh why?"\n')
        done = self.generate(source=self.path("q.csv"), status=1)
        line = done.stderr.decode().split("rows: ")[1].split(", and --prompt-field")[0]
        self.run_program(["sh", "-c", line], cwd=self.dir)
        self.generate("--prompt-field", "question", "--echo", source=self.path("prompts.jsonl"))
        self.assertTrue(self.results()[0]["text"].startswith("Why, oh why?"))

    def test_report_and_status(self):
        self.write([{"prompt": "She said"} for _ in range(5)])
        self.generate("--report", self.path("report.json"))
        with open(self.path("report.json"), encoding="utf-8") as f:
            report = json.load(f)
        parts = sum(report[k] for k in ("prefill_s", "decode_s", "mixed_s", "idle_s"))
        self.assertAlmostEqual(report["total_s"], parts, delta=1e-6)
        self.assertEqual((report["requests"], report["generated_tokens"]), (5, 160))
        self.assertLess(report["idle_s"], report["total_s"])
        memory = report["memory"]["host"]
        self.assertLessEqual(memory["measured"], memory["ledger"])
        done = self.run_program([PROGRAM, "status", self.output])
        self.assertIn(b"done", done.stdout)

    def test_prompts_that_begin_alike_are_computed_once(self):
        header = "The old house stood at the end of the lane, and nobody had lived in it. " * 8
        records = [{"id": f"q{i}", "prompt": header + f"Number {i}: who"} for i in range(6)]
        records.append({"id": "n", "prompt": header, "n": 3, "temperature": 1, "seed": 5})
        records.append({"id": "score", "prompt": header, "choices": [" It was", " Nobody"]})
        records.append({"id": "echo", "prompt": header, "echo": True, "logprobs": 1})
        self.write(records)
        found = []
        for share in ("off", "on"):
            output = self.path(f"{share}.jsonl")
            self.generate("--share-prefixes", share, "--report", self.path("report.json"),
                          "--ordered", target=output)
            with open(self.path("report.json"), encoding="utf-8") as f:
                report = json.load(f)
            with open(output, encoding="utf-8") as f:
                lines = [json.loads(line) for line in f]
            for line in lines:
                line.pop("created", None)
            found.append((report["shared_tokens"], lines))
        self.assertEqual(found[0][1], found[1][1])
        self.assertEqual(found[0][0], 0)
        # All but the first, whose header is computed, and the one whose prompt's log-probabilities
        # are asked for: ten sequences, of which each shares most of some 150 tokens.
        self.assertGreater(found[1][0], 9 * 96)

    def test_what_prompts_share_is_read_from_disk_once_a_pass(self):
        header = "The old house stood at the end of the lane, and nobody had lived in it. " * 8
        self.write([{"id": f"q{i}", "prompt": header + f"Number {i}: who", "max_tokens": 8 + i} for i in range(10)])
        moved, lines = {}, {}
        for share in ("off", "on"):
            output, report = self.path(f"{share}.jsonl"), self.path("report.json")
            self.generate("--share-prefixes", share, "--placement", "kv=0/0/100", "--disk-dir", self.dir,
                          "--verify-store", "always", "--report", report, "--ordered", target=output)
            with open(report, encoding="utf-8") as f:
                lanes = json.load(f)["lanes"]
            moved[share] = [lanes[name]["bytes"] for name in ("disk_read", "disk_write")]
            lines[share] = lines_of(output)
            for line in lines[share]:
                line.pop("created", None)
        self.assertEqual(lines["off"], lines["on"])
        # Of the five full runs of each of ten prompts all but one set are the header's.
        self.assertLess(moved["on"][0], moved["off"][0] / 3)
        self.assertLess(moved["on"][1], moved["off"][1] / 3)

    def test_behind_a_link_parts_share_what_is_home(self):
        header = "The old house stood at the end of the lane, and nobody had lived in it. " * 8
        self.write([{"id": f"q{i}", "prompt": header + f"Number {i}: who", "max_tokens": 2 + i * 5 % 9}
                    for i in range(40)])
        moved, lines = {}, {}
        for share in ("off", "on"):
            report = self.reported("--share-prefixes", share, "--emulate-device", "64MiB", "--emulate-link", "2/2",
                                   "--attention", "device", "--placement", "weights=0/100/0 kv=0/100/0 hidden=100/0/0",
                                   "--micro-batch", "1", "--micro-batches", "3", "--ordered",
                                   target=self.path(f"{share}.jsonl"))
            moved[share] = report["lanes"]["d2h"]["bytes"]
            lines[share] = lines_of(self.path(f"{share}.jsonl"))
            for line in lines[share]:
                line.pop("created", None)
        self.assertEqual(lines["off"], lines["on"])
        # All but the first of each micro-batch, and of those that take seats a pass later.
        self.assertGreater(report["shared_tokens"], 32 * 128)
        self.assertLess(moved["on"], moved["off"] / 2)  # prompts are sent home, and a new key a pass

    def share_a_header(self, least, *words):
        """Eight prompts with one header: results are the same with sharing on and off, and so many tokens shared."""
        header = "The old house stood at the end of the lane, and nobody had lived in it. " * 8
        self.write([{"id": f"q{i}", "prompt": header + f"Number {i}: " + "who lived there " * (i % 4), "max_tokens": 12,
                     "logprobs": 0} for i in range(8)])
        found = {}
        for share in ("off", "on"):
            report = self.reported("--share-prefixes", share, *words, "--ordered", target=self.path(f"{share}.jsonl"))
            lines = lines_of(self.path(f"{share}.jsonl"))
            for line in lines:
                line.pop("created", None)
            found[share] = lines, report["shared_tokens"]
        self.assertEqual(found["on"][0], found["off"][0], words)
        self.assertEqual(found["off"][1], 0)
        self.assertGreaterEqual(found["on"][1], least, words)

    def test_sums_over_all_queries_go_on_from_those_of_the_prompt_in_front(self):
        for policy in (("h2o", "--kv-budget", "64"), ("h2o", "--kv-budget", "200"), ("heavy", "--kv-budget", "25%"),
                       ("adakv", "--kv-budget", "64"), ("h2o", "--kv-budget", "64", "--kv-decode", "bulk")):
            self.share_a_header(7 * 128, "--kv-policy", *policy)  # of some 150 tokens whole windows of 64

    def test_prompts_whose_keys_become_codes_are_computed_once_in_a_pass(self):
        for words, least in ((("--kv-format", "kivi4"), 7 * 140), (("--kv-format", "kivi2"), 7 * 140),
                             (("--kv-format", "kivi2", "--kv-policy", "snapkv", "--kv-budget", "64"), 7 * 128),
                             (("--kv-format", "kivi4", "--kv-policy", "knorm", "--kv-budget", "50%"), 7 * 128)):
            self.share_a_header(least, *words)

    def test_a_report_says_which_rules_heads_had(self):
        self.write([{"id": f"q{i}", "prompt": "The old house stood at the end of the lane. " * (3 + i)} for i in range(4)])
        report = self.path("report.json")
        found = {}
        for budget in ("100%", "30%"):
            self.generate("--kv-policy", "fastgen", "--kv-mass", "0.9", "--kv-budget", budget, "--max-tokens", "8",
                          "--share-prefixes", "off", "--report", report, target=self.path(f"{budget[:-1]}.jsonl"))
            with open(report, encoding="utf-8") as f:
                whole = json.load(f)
            rules = found[budget] = whole["kv_rules"]
            self.assertEqual(rules["names"], ["special", "punct", "frequent", "local", "full"])
            self.assertEqual(len(rules["by_layer"]), whole["model"]["layers"])
            heads = [had for layer in rules["by_layer"] for had in layer["had"]]
            self.assertEqual({sum(had) for had in heads}, {4})
            self.assertEqual(rules["had"], [sum(column) for column in zip(*heads)])
            self.assertLessEqual(rules["kept_slots"]["mean"], rules["kept_slots"]["max"])
        longest = max(line["usage"]["prompt_tokens"] for line in lines_of(self.path("100.jsonl")))
        self.assertLessEqual(found["30%"]["kept_prompt"], 0.3)
        self.assertLess(found["30%"]["kept_prompt"], found["100%"]["kept_prompt"])
        self.assertGreater(found["100%"]["kept_prompt"], 0.3)
        self.assertEqual(found["30%"]["had"][4], 0)  # everything is more than the cap
        self.assertLessEqual(found["30%"]["kept_slots"]["max"], 0.3 * longest + 8)
        self.generate("--max-tokens", "8", "--report", report, target=self.path("full.jsonl"))
        with open(report, encoding="utf-8") as f:
            self.assertNotIn("kv_rules", json.load(f))

    def test_records_that_begin_alike_run_together(self):
        headers = ["The old house stood at the end of the lane, and nobody had lived in it. " * 6,
                   "When the storm had passed, the captain counted his men, one by one. " * 6]
        self.write([{"id": f"q{i}", "prompt": headers[i % 2] + f"Number {i}: who"} for i in range(12)])
        block = ("--micro-batch", "2", "--micro-batches", "1", "--max-tokens", "6")
        shared = {}
        for share in ("off", "on"):
            done = self.generate(*block, "--share-prefixes", share, "--report", self.path("report.json"),
                                 "--ordered", target=self.path(f"{share}.jsonl"))
            with open(self.path("report.json"), encoding="utf-8") as f:
                shared[share] = json.load(f)["shared_tokens"]
            self.assertEqual(b"prompts begin alike in" in done.stderr, share == "on")
            self.assertEqual(b"of them distinct; sharing saves at most" in done.stderr, share == "on")
        lines = [lines_of(self.path(f"{share}.jsonl")) for share in ("off", "on")]
        for line in lines[0] + lines[1]:
            line.pop("created", None)
        self.assertEqual(lines[0], lines[1])
        self.assertEqual(shared["off"], 0)
        # With two seats, and every second record of the other header, hardly any would meet.
        self.assertGreater(shared["on"], 8 * 64)

    def test_another_order_must_save_a_twentieth_unless_it_is_asked_for(self):
        header, draw = list(range(100, 132)), random.Random(3)
        apart = [[draw.randrange(1000, 4000) for _ in range(60)] for _ in range(30)]
        prompts = [header + apart[0], *apart[1:-1], header + apart[-1]]  # 32 of some 1900 tokens
        self.write([{"id": f"q{i}", "prompt": p} for i, p in enumerate(prompts)])
        block = ("--micro-batch", "2", "--micro-batches", "1", "--max-tokens", "2", "--overwrite", "--ordered")
        shared, lines = {}, {}
        for share in ("auto", "on", "off"):
            done = self.generate(*block, "--share-prefixes", share, "--report", self.path("report.json"))
            self.assertEqual(b"prompts begin alike in 32 of" in done.stderr, share == "on")
            lines[share] = self.sorted_lines()
            with open(self.path("report.json"), encoding="utf-8") as f:
                shared[share] = json.load(f)["shared_tokens"]
        self.assertEqual(shared, {"auto": 0, "on": 32, "off": 0})
        self.assertEqual(lines["auto"], lines["on"])
        self.assertEqual(lines["auto"], lines["off"])

    def test_plans_are_made_for_distinct_tokens(self):
        header = list(range(100, 200))  # three steps of 32, and a bit
        lines = [{"id": f"q{i}", "prompt": header + [300 + i] * 20, "max_tokens": 8, "ignore_eos": True}
                 for i in range(20)]
        lines.append({"id": "n", "prompt": [900] * 70, "n": 4, "temperature": 1, "max_tokens": 8})
        self.write(lines)
        block = ("--max-tokens", "8", "--micro-batch-tokens", "4096")
        found, metrics = {}, self.path("aquifer.prom")
        for share in ("off", "on"):
            found[share] = json.loads(self.generate(*block, "--share-prefixes", share, "--json", "--dry-run").stdout)
            self.assertEqual(found[share]["preflight"]["pending_prompts"]["tokens"], 20 * 120 + 4 * 70)
        saved = 19 * 96 + 3 * 64
        self.assertEqual(found["on"]["preflight"]["pending_prompts"],
                         {"tokens": 2680, "distinct_tokens": 2680 - saved, "shared_tokens_max": saved})
        self.assertEqual(found["off"]["preflight"]["pending_prompts"]["shared_tokens_max"], 0)
        pages = {share: doc["plan"]["kv_pages"]["pages"] for share, doc in found.items()}
        self.assertLess(pages["on"], 0.9 * pages["off"])
        # The run shares what the preflight has found in steps of 32, and the tokens behind: all sequences sit down at
        # once.
        self.generate(*block, "--report", self.path("report.json"), "--metrics-file", metrics)
        with open(self.path("report.json"), encoding="utf-8") as f:
            report = json.load(f)
        shared = 19 * 100 + 3 * 69
        self.assertEqual(report["shared_tokens"], shared)
        self.assertEqual(report["prefill_tokens"], 2680 - shared)
        self.assertEqual(report["preflight"]["pending_prompts"]["shared_tokens_max"], saved)
        with open(metrics, encoding="utf-8") as f:
            self.assertIn("aquifer_shared_prompt_tokens_total{output=", text := f.read())
        self.assertIn(f" {shared}\n", text)

    def test_samples_of_one_prompt_cost_it_once(self):
        self.write([{"id": "n", "prompt": "The old house stood at the end of the lane. " * 9, "n": 16, "temperature": 1,
                     "seed": 5}])
        report = self.reported("--max-tokens", "6")
        prompt = self.results()["n"]["usage"]["prompt_tokens"]
        self.assertGreater(prompt, 100)
        self.assertEqual(report["prefill_tokens"], prompt + 15)  # of each sample the last token, whose logits it takes

    # ---- refused, before anything is written

    def test_products_on_codes_are_named_and_refused(self):
        self.write([{"id": str(i), "prompt": "The old house stood at the end of the lane"} for i in range(3)])
        done = self.generate("--compute", "int8", status=1)
        self.assertIn(b"--compute int8 takes weights in int8 or int4, found", done.stderr)
        self.assertEqual(os.listdir(self.dir), ["in.jsonl"])
        tokens = {}
        for compute in ("bf16", "int8"):
            done = self.generate("--compute", compute, "--weight-format", "int8", "--max-tokens", "12", "--overwrite",
                                 "--report", self.path("report.json"))
            self.assertEqual(b"in the products to int8" in done.stderr, compute == "int8")
            with open(self.path("report.json"), encoding="utf-8") as f:
                report = json.load(f)
            self.assertEqual(any("in the products to int8" in line for line in report["lossy"]), compute == "int8")
            tokens[compute] = [line["tokens"] for line in lines_of(self.path("out.jsonl"))]
            self.assertEqual(tokens[compute][0], tokens[compute][2])
        self.assertEqual(tokens["bf16"], tokens["int8"])  # of a text that the model is sure of

    def test_what_is_refused_leaves_nothing_behind(self):
        cases = [
            ([{"id": 1, "prompt": "a"}, {"id": "1", "prompt": "b"}], (), b"lines 1 and 2"),
            (["{broken"], (), b"none of the 1 records is valid"),
            ([{"prompt": "a"}, {"prompt": ""}], ("--strict",), b"--strict"),
            ([{"prompt": "a"}, "x", "y"], (), b"more than half"),
            ([], (), b"no records"),
        ]
        for records, words, message in cases:
            self.write(records)
            done = self.generate(*words, status=1)
            self.assertIn(message, done.stderr)
            self.assertEqual(os.listdir(self.dir), ["in.jsonl"])

    def test_budgets_that_mean_nothing_say_what_was_meant(self):
        self.write([{"prompt": "She said"}])
        cases = [
            (("--kv-policy", "h2o", "--kv-budget", "0"), b"no token could be kept"),
            (("--kv-policy", "h2o", "--kv-budget", "1"), b"100 % or one token?"),
            (("--kv-policy", "h2o", "--kv-budget", "1025"), b"1024 tokens of the model's context"),
            (("--kv-policy", "h2o", "--kv-budget", "64", "--kv-heavy", "40", "--kv-recent", "40"),
             b"--kv-heavy 40 and --kv-recent 40 together are above --kv-budget 64"),
            (("--kv-policy", "window", "--kv-budget", "8", "--kv-sinks", "8"),
             b"a window smaller than its 8 sinks"),
            (("--kv-policy", "scissorhands", "--kv-budget", "64", "--kv-drop", "64"),
             b"--kv-drop 64: a drop of all of --kv-budget 64 would leave nothing"),
            (("--kv-policy", "h2o", "--kv-budget", "64", "--kv-decode", "bulk", "--kv-drop", "0"),
             b"--kv-drop: expected a part of the budget"),
            (("--kv-budget", "20%"), b"--kv-policy h2o"),
            (("--kv-policy", "window", "--kv-budget", "64", "--kv-positions", "cache"),
             b"--kv-positions cache: the model adds positions to the embedding"),
            (("--kv-read", "32"), b"--kv-read 32: a row always reads"),
            (("--kv-read", "1025"), b"--kv-read 1025: above the 1024 tokens of the model's context"),
            (("--kv-read", "96", "--kv-read-dense", "6"), b"--kv-read-dense 6: rows would read all of their keys"),
            (("--kv-read", "many"), b"--kv-read"),
            (("--kv-read", "96", "--emulate-device", "64MiB", "--attention", "device"),
             b"--kv-read 96: rows choose what they read where the host attends"),
            (("--kv-read", "96", "--emulate-device", "64MiB", "--placement",
              "weights=100/0/0 kv=50/50/0 hidden=100/0/0"), b"reading less gains nothing"),
            (("--kv-policy", "kvcompress", "--kv-budget", "63"), b"--kv-budget 63: each head keeps the newest 64"),
            (("--kv-policy", "kvcompress", "--kv-budget", "64", "--kv-recent", "0"), b"--kv-recent 0"),
            (("--kv-policy", "kvcompress", "--kv-budget", "64", "--kv-pool", "max:4"), b"--kv-pool"),
            (("--kv-policy", "kvcompress", "--kv-budget", "64", "--kv-floor", "20%"), b"--kv-floor"),
            (("--kv-policy", "kvcompress", "--kv-budget", "64", "--kv-cross-layer", "0.5"), b"--kv-cross-layer 0.5"),
            (("--kv-policy", "kvcompress", "--kv-budget", "64", "--kv-cross-layer", "-1"), b"--kv-cross-layer"),
            (("--kv-policy", "snapkv", "--kv-budget", "64", "--kv-cross-layer", "2"), b"--kv-cross-layer"),
            (("--kv-policy", "kvcompress", "--kv-budget", "64", "--kv-heads", "shared"), b"--kv-heads"),
            (("--kv-policy", "kvcompress", "--kv-budget", "64", "--kv-decode", "bulk"),
             b"--kv-policy kvcompress: --kv-decode bulk does not go with it: only scores of attention that go on"),
            (("--kv-policy", "kvcompress", "--kv-budget", "64", "--placement", "weights=0/100/0 kv=0/50/50 hidden=0/100/0"),
             b"expected no KV on disk, found 50%"),
            (("--kv-policy", "kvcompress", "--kv-budget", "64", "--emulate-device", "64MiB"),
             b"--device cpu without --emulate-device, or --kv-policy snapkv"),
            (("--kv-policy", "fastgen", "--kv-budget", "3"), b"--kv-budget 3: each head keeps the first 4 tokens"),
            (("--kv-policy", "fastgen", "--kv-heavy", "64"), b"--kv-heavy does not go with it: each head has"),
            (("--kv-policy", "fastgen", "--kv-mass", "2"), b"--kv-mass"),
            (("--kv-policy", "h2o", "--kv-budget", "64", "--kv-mass", "0.9"), b"--kv-policy fastgen finds them"),
            (("--kv-policy", "fastgen", "--emulate-device", "64MiB"),
             b"--device cpu without --emulate-device, or --kv-policy h2o"),
        ]
        for words, message in cases:
            done = self.generate(*words, status=1)
            self.assertIn(message, done.stderr)
            self.assertEqual(os.listdir(self.dir), ["in.jsonl"])

    def test_a_dry_run_writes_nothing(self):
        self.write([{"prompt": "She said"}])
        done = self.generate("--dry-run")
        for word in (b"records: 1", b"plan:", b"ledger:"):
            self.assertIn(word, done.stdout)
        self.assertEqual(os.listdir(self.dir), ["in.jsonl"])

    # ---- cut off and started again

    def test_killed_at_random_points_the_results_are_the_same(self):
        self.write(self.many(120))
        words = ("--micro-batch", "8", "--micro-batches", "1")
        self.generate(*words)
        want = self.sorted_lines()
        size = size_of(self.output)
        rng = random.Random(20)
        kills = whole = 0
        os.remove(self.output)
        while kills < KILLS:
            child = subprocess.Popen(self.words(*words), stderr=subprocess.PIPE)
            goal = size_of(self.output) + rng.random() * size / 8
            until = time.monotonic() + 60
            while (child.poll() is None and size_of(self.output) < goal and
                   time.monotonic() < until):
                time.sleep(0.001)
            child.kill()
            child.communicate()
            if child.returncode == -signal.SIGKILL:
                kills += 1
            else:  # it was done before: compare, and begin anew
                self.assertEqual(child.returncode, 0)
                self.assertEqual(self.sorted_lines(), want)
                os.remove(self.output)
                whole += 1
        self.generate(*words)
        self.assertEqual(self.sorted_lines(), want)
        print(f"{kills} kills, {whole} whole runs in between", file=sys.stderr)

    def test_a_second_run_on_the_same_output_is_refused(self):
        self.write(self.many(200))
        child = subprocess.Popen(self.words(), stderr=subprocess.PIPE)
        try:
            until = time.monotonic() + 60
            while not size_of(self.output) and time.monotonic() < until:
                time.sleep(0.005)
            done = self.generate(status=1)
            self.assertIn(f"process {child.pid}".encode(), done.stderr)
        finally:
            child.communicate()
        self.assertEqual(child.returncode, 0)
        self.assertEqual(len(self.results()), 200)

    def begun(self, **how):
        """The program, when it has its first results or more than there were: of few seats, so that most records
        are still to come."""
        before = size_of(self.output)
        child = subprocess.Popen(self.words("--micro-batch", "8"), stderr=subprocess.PIPE, **how)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        self.wait_for(lambda: size_of(self.output) > before)
        return child

    def test_a_signal_stops_between_passes_and_the_same_command_goes_on(self):
        self.write(self.many(150))
        self.generate()
        want = self.sorted_lines()
        done = 150
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1,
                       signal.SIGUSR2, signal.SIGXCPU, signal.SIGALRM):
            if done > 75:  # else the run before goes on, until this signal
                self.generate()
                self.assertEqual(self.sorted_lines(), want)
                os.remove(self.output)
            # Not ignored, as it is where nohup runs the tests.
            child = self.begun(preexec_fn=lambda n=number: signal.signal(n, signal.SIG_DFL))
            begin = time.monotonic()
            child.send_signal(number)
            _, err = child.communicate()
            self.assertLess(time.monotonic() - begin, 20)
            self.assertEqual(child.returncode, 130, err.decode())
            self.assertIn(b"the same command goes on", err)
            done = len(self.results())
            with open(self.output + ".status.json", encoding="utf-8") as f:
                status = json.load(f)
            self.assertEqual((status["state"], status["done"]), ("interrupted", done))
            self.assertLess(done, 150)
            self.assertFalse(os.path.exists(self.output + ".lock"))
        self.generate()
        self.assertEqual(self.sorted_lines(), want)

    def test_a_signal_that_the_parent_ignores_is_not_heard(self):
        numbers = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGALRM)

        def ignore():  # as nohup does
            for number in numbers:
                signal.signal(number, signal.SIG_IGN)

        self.write(self.many(150))
        child = self.begun(preexec_fn=ignore)
        for number in numbers:
            child.send_signal(number)
        _, err = child.communicate()
        self.assertEqual(child.returncode, 0, err.decode())
        self.assertNotIn(b"interrupted", err)
        self.assertEqual(len(self.results()), 150)

    def test_a_torn_line_is_repaired(self):
        self.write(self.many(20))
        self.generate()
        want = self.sorted_lines()
        os.truncate(self.output, size_of(self.output) - 25)
        done = self.generate()
        self.assertIn(b"torn", done.stderr)
        self.assertEqual(self.sorted_lines(), want)
        # What a run that was killed while it replaced a file has left beside it.
        with open(self.output + ".tmp", "wb") as f:
            f.write(b"half of a file")
        done = self.generate()
        self.assertIn(b"nothing to do", done.stderr)
        self.assertFalse(os.path.exists(self.output + ".tmp"))

    def test_other_values_are_refused_in_a_table(self):
        self.write(self.many(5))
        self.generate()
        before = self.sorted_lines()
        done = self.generate("--seed", "9", "--max-tokens", "5", status=1)
        for word in (b"seed", b"max_tokens", b"| 0 ", b"| 9", b"was", b"now"):
            self.assertIn(word, done.stderr)
        self.assertEqual(self.sorted_lines(), before)
        self.generate("--seed", "9", "--allow-change", "seed")

    def test_errors_are_tried_again_on_request(self):
        self.write([{"id": 1, "prompt": "a"}, {"id": 2, "prompt": "b", "max_tokens": 2000}])
        self.generate(status=3)
        self.generate()  # nothing to do
        done = self.generate("--retry-errors", "--overlong", "clip", "--allow-change", "overlong")
        self.assertIn(b"1 error record taken out", done.stderr)
        self.assertEqual(sorted(self.results()), [1, 2])
        self.assertNotIn("error", self.results()[2])

    # ---- a disk that is full

    def test_a_full_disk_ends_with_4_and_whole_lines(self):
        disk = self.mount(64 << 10)
        self.output = os.path.join(disk, "out.jsonl")
        self.write(self.short(300))
        done = self.generate("--disk-full-wait", "2s", status=4)
        self.assertIn(b"waiting up to 2 s", done.stderr)
        with open(self.output, "rb") as f:
            text = f.read()
        self.assertTrue(text.endswith(b"\n"))
        found = len(self.results())
        self.assertTrue(0 < found < 300)
        self.resize(disk, 8 << 20)
        self.generate()
        self.assertEqual(len(self.results()), 300)

    def test_a_file_size_limit_ends_with_4_and_whole_lines(self):
        self.write(self.many(60))

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

        done = self.run_program(self.words(), status=4, preexec_fn=limit)
        self.assertIn(b"out.jsonl", done.stderr)
        found = len(self.results())
        self.assertTrue(0 < found < 60)
        self.generate()
        self.assertEqual(len(self.results()), 60)

    def test_a_device_that_is_full(self):
        self.write(self.many(3))
        done = self.generate(status=4, target="/dev/full")  # no wait: nobody can make space there
        self.assertNotIn(b"waiting", done.stderr)

    # ---- many records

    @unittest.skipIf("ASAN_OPTIONS" in os.environ, "shadow memory would be counted")
    def test_a_hundred_thousand_records_are_checked_in_bounded_memory(self):
        with open(self.input, "w", encoding="utf-8") as f:
            for i in range(100000):
                f.write('{"id": "request-%d", "prompt": "The old man and number %d"}\n' % (i, i))
        begin = time.monotonic()
        child = subprocess.Popen(self.words("--dry-run", "--json"), stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
        text = child.stdout.read()
        child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        child.stdout.close()
        child.stderr.close()
        self.assertEqual(child.returncode, 0)
        self.assertEqual(json.loads(text)["preflight"]["valid"], 100000)
        print(f"preflight of 100000 records: {time.monotonic() - begin:.1f} s, "
              f"{usage.ru_maxrss / 1024:.0f} MiB", file=sys.stderr)
        if "asan" not in os.environ.get("MESON_TEST_SETUP", ""):
            self.assertLess(usage.ru_maxrss, 256 * 1024)


if __name__ == "__main__":
    unittest.main(verbosity=2)
