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


class Preflight(Rig):
    def test_one_bad_line_of_each_kind_is_shown(self):
        chat = {"custom_id": None, "method": "POST", "url": "/v1/embeddings", "body": {}}
        self.write([{**chat, "custom_id": f"c{i}"} for i in range(7)] +
                   [{"prompt": ""}, {"prompt": "x", "n": 999}, "no json"] +
                   [{"prompt": "She said", "max_tokens": 1}] * 11)
        err = self.generate("--dry-run", status=0).stdout.decode()
        self.assertEqual(err.count("'url': expected"), 1)
        for code in ("unsupported_endpoint: 7", "line 1: unsupported_endpoint",
                     "line 9: invalid_parameter", "line 10: invalid_json"):
            self.assertIn(code, err)

    def test_another_models_name_is_noted_once(self):
        def line(i, model):
            return {"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions",
                    "body": {"model": model, "prompt": "She said", "max_tokens": 1}}
        self.write([line(0, "tiny-opt"), line(1, "owner/Tiny-OPT"), line(2, "gpt-4o-mini"),
                    line(3, "a/b")])
        done = self.generate()
        self.assertIn("model: 2 records name another one (first 'gpt-4o-mini' in line 3), and are "
                      "answered by tiny-opt", done.stderr.decode())
        self.assertEqual(json.loads(self.generate("--dry-run", "--json").stdout)
                         ["preflight"]["other_models"], 2)


class Output(Rig):
    def test_every_json_document_has_a_schema(self):
        model = ["--model", MODEL, "--device", "cpu"]
        text = os.path.join(MODEL, "golden", "eval.txt")
        score = ["eval", *model, "--text", text, "--prompt-tokens", "16", "--score-tokens", "4",
                 "--windows", "1"]
        self.write([{"prompt": "She said", "max_tokens": 1}])
        for words in ([*score, "--json"], [*score, "--json", "--dry-run"], score,
                      [*score, "--json", "--sweep", "kv-policy=full"],
                      ["bench", *model, "--prompt-len", "4", "--gen-len", "2", "--requests", "2",
                       "--dry-run", "--json"],
                      ["generate", *model, "--input", self.input, "--output", self.output,
                       "--dry-run", "--json"],
                      ["info", "--json"], ["pack", "--model", MODEL, "--list", "--json"]):
            doc = json.loads(self.run_program([PROGRAM, *words]).stdout)
            self.assertEqual(doc["schema"], 1, words)

    def test_people_read_sizes_and_tenths(self):
        self.write([{"prompt": "She said", "max_tokens": 1}])
        place = "weights=0/100/0 kv=0/97.2917/2.7083 hidden=0/100/0"
        done = self.generate("--dry-run", "--placement", place, "--disk-dir-any").stdout.decode()
        self.assertIn("kv=0/97.3/2.7 ", done)
        self.assertRegex(done, r"ledger: host +weights +12\.0 MiB")
        self.assertNotIn("attention device", done)
        words = [PROGRAM, "plan", "--shape", "opt-125m", "--prompt-len", "64", "--gen-len", "8",
                 "--micro-batch", "4", "--micro-batches", "1", "--hardware"]
        text = self.run_program([*words, "epyc-zen5-2vcpu"]).stdout.decode()
        self.assertNotIn("\n  attention", text)
        self.assertNotIn("device products", text)
        self.assertIn("\n  attention", self.run_program([*words, "t4-208gb"]).stdout.decode())


class Tokenize(Rig):
    def tokenize(self, records, *words, status=0):
        self.write(records)
        done = self.run_program([PROGRAM, "tokenize", "--model", MODEL, "--input", self.input,
                                 *words], status)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_records_of_generate_are_texts_too(self):
        lines = self.tokenize([
            {"id": 1, "text": "She said"}, {"id": 2, "prompt": "She said"},
            {"custom_id": "c", "method": "POST", "url": "/v1/completions",
             "body": {"prompt": "She said"}}])
        self.assertEqual([line["id"] for line in lines], [1, 2, "c"])
        self.assertEqual(lines[0]["ids"], lines[1]["ids"])
        self.assertEqual(lines[0]["ids"], lines[2]["ids"])

    def test_another_field_may_hold_the_text(self):
        good, bad = self.tokenize([{"question": "She said", "text": "x"}, {"text": "x"}],
                                  "--prompt-field", "question", status=3)
        self.assertEqual(len(good["ids"]), 3)
        self.assertIn("'question': expected a string, found nothing", bad["error"]["message"])
        self.assertIn("'prompt': expected a string, found another type",
                      self.tokenize([{"prompt": ["a"]}], status=3)[0]["error"]["message"])


class Directories(Rig):
    def test_a_cache_that_cannot_be_made_names_the_way_out(self):
        home = {"HOME": "/proc/none", "PATH": os.environ["PATH"]}
        words = [PROGRAM, "generate", "--model", MODEL, "--prompt", "She said", "-n", "2",
                 "--placement", "weights=0/0/100", "--device", "cpu"]
        done = self.run_program(words, 2, env=home)
        self.assertIn("--cache-dir DIR names another one", done.stderr.decode())
        self.run_program([*words, "--cache-dir", self.path("cache"), "--disk-dir-any"], env=home)


class Statuses(Rig):
    def test_a_file_that_the_line_names_is_1_and_a_model_2(self):
        none = self.path("none.yaml")
        model = ["--model", MODEL, "--device", "cpu"]
        lengths = ["--prompt-tokens", "4", "--score-tokens", "4"]
        shape = ["--shape", "opt-125m", "--prompt-len", "4", "--gen-len", "4"]
        for words in (["generate", *model, "--input", none, "--output", self.output],
                      ["eval", *model, "--text", none, *lengths],
                      ["eval", *model, "--ids", none, *lengths],
                      ["tokenize", "--model", MODEL, "--input", none],
                      ["plan", *shape, "--hardware", none],
                      ["plan", *shape[2:], "--shape", none.replace("yaml", "json")],
                      ["bench", "--table", none], ["published", none],
                      ["generate", "--config", none, *model]):
            done = self.run_program([PROGRAM, *words], 1)
            self.assertIn("none.", done.stderr.decode())
            self.assertIn("No such file", done.stderr.decode())
        self.run_program([PROGRAM, "generate", "--model", none, "--prompt", "x"], 2)
        self.run_program([PROGRAM, "tokenize", "--model", none], 2)

    @unittest.skipIf("ASAN_OPTIONS" in os.environ, "e2e-table has tables; this one takes minutes")
    def test_a_table_with_a_row_that_fits_is_no_failure(self):
        words = [PROGRAM, "plan", "--shape", "opt-6.7b", "--hardware", "t4-208gb", "--prompt-len",
                 "64", "--gen-len", "8", "--host-memory", "600MiB", "--device-memory", "2GiB"]
        done = self.run_program([*words, "--sweep", "host-memory=100GiB"])
        self.assertIn("warning: ", done.stderr.decode())
        self.assertNotIn("error: ", done.stderr.decode())
        self.assertIn("error: ", self.run_program(words, 2).stderr.decode())


if __name__ == "__main__":
    unittest.main()
