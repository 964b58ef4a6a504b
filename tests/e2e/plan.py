#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`aquifer plan`: documents, exit codes, refusals, tables; and its configs, run for real on the
small model, on emulated devices too.  What it calls feasible runs within its budgets, and what it
calls infeasible is refused by the run as well."""
import json
import os
import re
import shlex
import unittest

from rig import MODEL, PROGRAM, Rig

T4 = ["--shape", "opt-30b", "--hardware", "t4-208gb", "--prompt-len", "512", "--gen-len", "32"]
BOX = """machine: {name: Box, cores: 2}
host:
  memory: 8GiB
  memory_gb_s: 50
  product_f32_tflop_s: 0.2
  product_bf16_tflop_s: 0.8
disk:
  space: 50GB
  read_gb_s: 2
  write_gb_s: 2
links:
  h2d_gb_s: 4
  d2h_gb_s: 4
"""


# Claims about the figures of long searches: what computes them is under sanitizers in shorter ones.
figures = unittest.skipIf("ASAN_OPTIONS" in os.environ, "figures are the same, and take minutes")


class Plan(Rig):
    def setUp(self):
        super().setUp()
        self.box = self.path("box.yaml")
        with open(self.box, "w", encoding="utf-8") as f:
            f.write(BOX)

    def refused(self, *words):
        done = self.run_program([PROGRAM, "plan", *words], 1)
        self.assertEqual(done.stdout, b"")
        return done.stderr.decode()

    def tiny(self, *words, status=0):
        return self.plan("--model", MODEL, "--hardware", self.box, "--prompt-len", "20",
                         "--gen-len", "12", "--requests", "24", *words, status=status)

    def bench(self, config, *words, status=0):
        return self.run_program(
            [PROGRAM, "bench", "--config", config, "--prompt-len", "20", "--gen-len", "12",
             "--requests", "24", "--repeats", "1", "--warmup", "0", "--cache-dir", self.dir,
             "--disk-dir-any", "--json", *words], status)

    def check_same(self, plan, doc):
        """The plan of a run is the one that was told, line by line; only a run has records, and
        knows what its process takes."""
        for key in ("placement", "attention", "micro_batch", "micro_batches", "micro_batch_tokens",
                    "compute", "weight_format", "kv_format", "kv_policy"):
            self.assertEqual(plan[key], doc["plan"][key], key)
        told = {(tier, purpose): size for tier, m in doc["memory"].items()
                for purpose, size in m["items"].items() if purpose != "process"}
        run = {(line["tier"], line["purpose"]): line["bytes"] for line in plan["ledger"]
               if line["bytes"] and line["purpose"] not in ("queued records", "process")}
        self.assertEqual(run, told)

    def check_fits(self, doc):
        for tier in doc["memory"].values():
            self.assertLessEqual(tier["used"], tier["budget"])
            self.assertEqual(sum(tier["items"].values()), tier["used"])

    @figures
    def test_another_machine_is_planned_for(self):
        doc = self.plan(*T4, "--requests", "600")
        self.assertIs(doc["feasible"], True)
        self.assertEqual(doc["schema"], 1)
        self.assertEqual(set(doc["memory"]) - {"disk"}, {"device", "host"})
        self.check_fits(doc)
        for key in ("prefill_s", "decode_s", "total_s", "gen_tok_s", "prefill_tok_s",
                    "decode_tok_s"):
            self.assertGreater(doc["predicted"][key], 0, key)
        now = doc["predicted"]["gen_tok_s"]
        self.assertIsNone(doc["range"]["gen_tok_s"])  # no run on a GPU was compared
        self.assertIn("not measured", doc["range"]["from"])
        self.assertIn("h2d_weights", doc["links"])
        for lane in doc["links"].values():
            self.assertTrue(0 <= lane["busy"] <= 1.0001, lane)
        changes = [row["change"] for row in doc["sensitivity"]]
        self.assertIn("+10 % device memory", changes)
        self.assertIn("+10 % link both ways", changes)
        for row in doc["sensitivity"]:
            self.assertGreaterEqual(row["gen_tok_s"], now * 0.9999)
        host = doc["memory"]["host"]["used"]
        tables = [a for a in doc["assumptions"] if "page tables of pinned host memory" in a]
        size = re.search(r"up to ([0-9.]+) ?MiB", tables[0])  # 8 bytes for 4096
        self.assertAlmostEqual(float(size[1]) * 2**20, host / 512, delta=host / 512 * 0.05)
        self.assertIn("--placement", doc["command"])
        self.assertIn(doc["plan"]["placement"], doc["command"])
        self.assertEqual(doc, self.plan(*T4, "--requests", "600"))  # the same every time

    def test_lengths_come_from_a_file(self):
        records = self.many(40) + [{"id": "ids", "prompt": [5, 6, 7], "max_tokens": 3, "n": 2,
                                    "temperature": 1}, {"id": "bad", "max_tokens": 3}]
        name = self.path("some.jsonl")
        with open(name, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(r) + "\n" for r in records)
        doc = self.plan("--model", MODEL, "--hardware", self.box, "--input", name)
        dry = json.loads(self.run_program(
            [PROGRAM, "generate", "--model", MODEL, "--input", name, "--output", self.path("o"),
             "--dry-run", "--json"]).stdout)["preflight"]
        work = doc["workload"]
        self.assertEqual(work["requests"], dry["sequences"])
        self.assertEqual(work["prompt_len"], [3, dry["prompt_length"]["max"]])
        self.assertEqual(work["gen_len"], [3, max(r["max_tokens"] for r in records)])
        mean = [line for line in doc["assumptions"] if "mean length" in line][0].split()
        self.assertAlmostEqual(float(mean[mean.index("prompt") - 1]),
                               dry["prompt_tokens"] / dry["sequences"], 3)
        self.assertAlmostEqual(float(mean[mean.index("generated") - 1]),
                               dry["output_tokens_max"] / dry["sequences"], 3)
        self.assertTrue(any("1 of the 42 records" in line for line in doc["warnings"]))
        self.assertIn(f"--input {name}", doc["command"])
        self.assertEqual(self.plan("--model", MODEL, "--hardware", self.box, "--input", name,
                                   "--limit", "5")["workload"]["requests"], 5)
        box = ["--model", MODEL, "--hardware", self.box]
        self.assertIn("leave out", self.refused(*box, "--input", name, "--gen-len", "4"))
        self.assertIn("expected a file", self.refused(*box, "--input", "-"))
        for option in ("html", "write-config"):
            self.assertIn("would replace what --input reads",
                          self.refused(*box, "--input", name, "--" + option, name))
        with open(name, "w", encoding="utf-8") as f:
            f.write('{"prompt": 3}\n')
        self.assertIn("Line 1: invalid_record", self.refused(*box, "--input", name))
        with open(name, "a", encoding="utf-8") as f:
            f.write('{"prompt": "a"}\n')
        self.assertIn("Line 1: invalid_record", self.refused(*box, "--input", name, "--limit", "1"))

    def test_a_shape_estimates_the_lengths_of_texts_or_takes_a_tokenizer(self):
        records = self.many(40) + [{"id": "ids", "prompt": [5, 6, 7], "max_tokens": 3, "n": 2,
                                    "temperature": 1}]
        self.write(records)
        words = ["--shape", os.path.join(MODEL, "config.json"), "--hardware", self.box, "--input",
                 self.input]
        doc = self.plan(*words)
        self.assertEqual(doc["workload"]["requests"], 42)
        longest = max(len(r["prompt"].encode()) for r in records[:-1])
        self.assertEqual(doc["workload"]["prompt_len"], [3, -(-longest // 4)])
        estimated = "estimated at 4 bytes a token"
        self.assertTrue(any(estimated in a for a in doc["assumptions"]), doc["assumptions"])
        text = self.run_program([PROGRAM, "plan", *words]).stdout.decode()
        self.assertIn(estimated, text)
        doc = self.plan(*words, "--tokenizer", MODEL)
        exact = self.plan("--model", *[MODEL, *words[2:]])
        for key in ("requests", "prompt_len", "gen_len"):
            self.assertEqual(doc["workload"][key], exact["workload"][key])
        for found in (doc, exact):
            self.assertFalse(any(estimated in a for a in found["assumptions"]))
        self.write(records[-1:])
        self.assertFalse(any(estimated in a for a in self.plan(*words)["assumptions"]))
        box = ["--hardware", self.box, "--input", self.input]
        self.assertIn("goes with --shape", self.refused("--model", MODEL, *box, "--tokenizer",
                                                        MODEL))
        self.assertIn("expected --input FILE", self.refused(*T4, "--tokenizer", MODEL))

    def test_prompts_that_begin_alike_are_planned_once(self):
        header = list(range(100, 200))  # three steps of 32, and a bit
        self.write([{"id": f"q{i}", "prompt": header + [300 + i] * 20, "max_tokens": 8} for i in range(40)])
        told, run = {}, {}
        for share in ("off", "on"):
            words = ["--share-prefixes", share, "--micro-batch", "16", "--micro-batches", "1"]
            told[share] = self.plan("--model", MODEL, "--hardware", self.box, "--input", self.input, *words)
            run[share] = json.loads(self.generate(*words, "--hardware", self.box, "--dry-run", "--json",
                                                  "--host-memory", "8GiB").stdout)
            for key in ("micro_batch", "micro_batches", "placement"):
                self.assertEqual(told[share]["plan"][key], run[share]["plan"][key])
        self.assertEqual(told["off"]["workload"]["prompt_shared_mean"], 0)
        self.assertAlmostEqual(told["on"]["workload"]["prompt_shared_mean"], 39 * 96 / 40, 3)
        for share in told:
            self.assertIn(f" --share-prefixes {share}", told[share]["command"])
        for key in ("prefill_s", "total_s"):
            self.assertLess(told["on"]["predicted"][key], 0.8 * told["off"]["predicted"][key])
        kv = {share: [line["bytes"] for line in run[share]["plan"]["ledger"] if line["purpose"] == "kv"]
              for share in run}
        for share, found in kv.items():
            self.assertEqual(found, [told[share]["memory"]["host"]["items"]["kv"]])
        self.assertLess(kv["on"][0], 0.9 * kv["off"][0])

    def test_an_input_of_more_than_half_invalid_records_is_refused_as_by_generate(self):
        chat = {"custom_id": "c", "method": "POST", "url": "/v1/embeddings", "body": {}}
        self.write([{"id": "a", "prompt": "the old man"}, {"id": "b", "prompt": 3},
                    *[{**chat, "custom_id": f"c{i}"} for i in range(4)]])
        words = ["--model", MODEL, "--hardware", self.box, "--input", self.input]
        told = self.refused(*words)
        ran = self.generate(status=1).stderr.decode()
        self.assertIn("5 of 6 records are invalid, more than half; --allow-errors", told)
        self.assertEqual(told.splitlines()[-1], ran.splitlines()[-1])
        # Of each kind of error an example, before anything else.
        self.assertIn("invalid_record: 1; line 2: ", told)
        self.assertIn("unsupported_endpoint: 4; line 3: ", told)
        doc = self.plan(*words, "--allow-errors", "--no-bos")
        self.assertEqual(doc["workload"]["requests"], 1)
        # The command reads the same records the same way.
        typed = shlex.split(doc["command"])
        self.assertTrue({"--allow-errors", "--no-bos"} <= set(typed), typed)
        typed[typed.index("results.jsonl")] = self.output
        self.run_program([PROGRAM, *typed[1:], "--dry-run", "--device", "cpu"])
        read = doc["workload"]["read"]
        self.assertEqual([read["records"], read["invalid"]], [6, 5])
        self.assertEqual({code: [e["count"], e["line"]] for code, e in read["errors"].items()},
                         {"invalid_record": [1, 2], "unsupported_endpoint": [4, 3]})
        text = self.run_program([PROGRAM, "plan", *words, "--allow-errors"]).stdout.decode()
        lines = text.splitlines()
        self.assertIn("5 of 6 records are invalid and left out", lines[1])
        self.assertIn("invalid_record: 1; line 2: 'prompt'", lines[2])
        self.write([{"id": "a", "prompt": "the old man"}, {"id": "b", "prompt": 3}])
        self.assertEqual(self.plan(*words)["workload"]["read"]["invalid"], 1)  # just half

    def test_the_command_can_be_typed(self):
        name = self.path("it's $HOME.jsonl")
        with open(name, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(r) + "\n" for r in self.many(3))
        template = 'Say "`{prompt}`"!\\n\\\\n\\tso\\d'
        doc = self.plan("--model", MODEL, "--hardware", self.box, "--input", name, "--prompt-template", template)
        words = shlex.split(doc["command"])
        self.assertEqual(words[words.index("--input") + 1], name)
        self.assertNotIn("\n", doc["command"])
        self.assertEqual(words[words.index("--prompt-template") + 1],
                         template.replace("\\d", "\\\\d"))
        self.assertEqual(words[words.index("--placement") + 1], doc["plan"]["placement"])
        self.assertIn(" --deterministic", self.plan(*T4, "--deterministic")["command"])

    @figures
    def test_huge_configs_are_answered(self):
        layers = 512 if "ASAN_OPTIONS" in os.environ else 1024  # each op of each takes its time
        largest = {"model_type": "opt", "vocab_size": 1 << 24, "hidden_size": 1 << 20,
                   "ffn_dim": 1 << 20, "num_hidden_layers": layers,
                   "num_attention_heads": 1 << 20,
                   "max_position_embeddings": 1 << 24, "word_embed_proj_dim": 1 << 20}
        deep = {**largest, "vocab_size": 50272,
                "hidden_size": 1024, "ffn_dim": 4096,
                "num_attention_heads": 16, "max_position_embeddings": 2048,
                "word_embed_proj_dim": 1024}
        for config, status in ((largest, 2), (deep, 0)):
            name = self.path("config.json")
            with open(name, "w", encoding="utf-8") as f:
                json.dump(config, f)
            doc = self.plan("--shape", name, "--hardware", "t4-208gb", "--prompt-len", "512",
                            "--gen-len", "32", status=status)
            self.assertIs(doc["feasible"], status == 0)

    def test_text_says_the_same(self):
        done = self.run_program([PROGRAM, "plan", *T4])
        text = done.stdout.decode()
        for part in ("opt-30b on T4", "placement", "memory", "predicted", "bound by",
                     "what more would buy", "aquifer bench "):
            self.assertIn(part, text)

    def test_layers_with_a_window_hold_less(self):
        """Mistral 7B v0.1, and the same without its window."""
        config = {"model_type": "mistral", "vocab_size": 32000, "hidden_size": 4096,
                  "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
                  "num_key_value_heads": 8, "max_position_embeddings": 32768}
        words = ("--hardware", "t4-208gb", "--prompt-len", "16000", "--gen-len", "384",
                 "--requests", "8", "--micro-batch", "4", "--micro-batches", "1", "--attention",
                 "host", "--placement", "weights=0/100/0 kv=0/100/0 hidden=0/100/0 head=host")
        docs = {}
        for window in (None, 4096):
            shape = self.path(f"{window}.json")
            with open(shape, "w", encoding="utf-8") as f:
                json.dump({**config, "sliding_window": window}, f)
            docs[window] = self.plan("--shape", shape, *words)
        kv = {window: doc["memory"]["host"]["items"]["kv"] for window, doc in docs.items()}
        self.assertAlmostEqual(kv[4096] / kv[None], 4096 / 16384, delta=0.01)
        text = "32 of 32 layers keep their own window of 4096"
        self.assertEqual(docs[4096]["plan"]["kv_windows"], text)
        self.assertNotIn("kv_windows", docs[None]["plan"])
        done = self.run_program([PROGRAM, "plan", "--shape", shape, *words])
        self.assertIn(f"policy full; {text}\n", done.stdout.decode())

    def test_what_does_not_fit_says_by_how_much_and_what_would_help(self):
        doc = self.plan(*T4, "--requests", "64", "--host-memory", "4GiB", "--micro-batch", "64",
                        "--placement", "weights=0/100/0 kv=0/100/0 hidden=100/0/0 head=host",
                        status=2)
        self.assertIs(doc["feasible"], False)
        self.assertIsNone(doc["plan"])
        short = doc["shortfall"]["host"]
        self.assertEqual(short["missing"], short["needed"] - short["budget"])
        self.assertGreater(short["items"]["weights"], 50e9)
        self.assertIsNone(doc["largest"])
        fixes = {f["change"]: f for f in doc["fixes"]}
        self.assertTrue(fixes["--placement auto"]["feasible"])
        self.assertGreater(fixes["--placement auto"]["gen_tok_s"], 0)
        self.assertIs(fixes["--weight-format int4"]["lossy"], True)
        more = [f for change, f in fixes.items() if change.startswith("--host-memory")]
        self.assertTrue(more and more[0]["feasible"])

    @figures
    def test_a_block_too_large_names_the_largest(self):
        words = [*T4, "--requests", "5000", "--host-memory", "60GiB", "--disk-memory", "1GB"]
        done = self.run_program([PROGRAM, "plan", "--json", *words, "--micro-batch", "5000"], 2)
        doc = json.loads(done.stdout)
        told = re.search(rb"the largest block that fits is --micro-batch (\d+)", done.stderr)
        self.plan(*words, "--micro-batch", told[1].decode())
        self.assertGreater(doc["largest"]["micro_batch"], 0)
        self.assertLess(doc["largest"]["micro_batch"], 5000)
        self.assertGreater(doc["largest"]["gen_tok_s"], 0)

    @figures
    def test_what_is_allowed_is_chosen_where_it_is_faster(self):
        plain = self.plan(*T4)
        loose = self.plan(*T4, "--allow", "int8,kv-int8,h2o=20%")
        self.assertGreater(loose["predicted"]["gen_tok_s"], plain["predicted"]["gen_tok_s"])
        self.assertEqual(plain["plan"]["weight_format"], "f16")
        self.assertTrue(any(w.startswith("lossy") for w in loose["warnings"]))
        self.assertFalse(any(w.startswith("lossy") for w in plain["warnings"]))

    @figures
    def test_kivi_is_chosen_only_where_it_is_allowed_and_told(self):
        words = ("--shape", "opt-13b", "--prompt-len", "1024", "--gen-len", "512", "--requests", "200",
                 "--hardware", "epyc-zen5-2vcpu", "--host-memory", "64GiB")
        plain, loose = self.plan(*words), self.plan(*words, "--allow", "kivi2,h2o=90%")
        self.assertEqual((plain["plan"]["kv_format"], loose["plan"]["kv_format"]), ("f16", "kivi2"))
        self.assertEqual(loose["plan"]["kv"], {"name": "full", "residual": 128, "residual_rule": "sliding"})
        self.assertIn("lossy: keys and values rounded to kivi2", loose["warnings"])
        self.assertGreater(loose["predicted"]["gen_tok_s"], plain["predicted"]["gen_tok_s"])
        self.assertGreaterEqual(loose["plan"]["micro_batch"], 2 * plain["plan"]["micro_batch"])
        # The newest 128 tokens, and up to 31 that wait to leave with others: five runs of 32.
        seats, items = loose["plan"]["seats"], loose["memory"]["host"]["items"]
        self.assertEqual(items["kv residual"], seats * 40 * 5 * 32 * 2 * 40 * 128 * 2)
        self.assertLess(items["kv"], seats * 40 * (1536 - 128) * 40 * 128 * 2 * 3 / 8 * 1.05)
        done = self.run_program([PROGRAM, "plan", *T4, "--kv-format", "kivi2"], status=1)
        self.assertIn(b"where no device has memory of its own", done.stderr)

    @figures
    def test_products_on_codes_are_told_and_faster(self):
        words = ("--shape", "opt-1.3b", "--hardware", "epyc-zen5-2vcpu", "--prompt-len", "512", "--gen-len", "8",
                 "--requests", "64", "--weight-format", "int8")
        docs = {compute: self.plan(*words, "--compute", compute) for compute in ("bf16", "int8")}
        told = "lossy: activations rounded to int8 in groups of 64 in the products"
        self.assertEqual([told in docs[c]["warnings"] for c in ("bf16", "int8")], [False, True])
        self.assertLess(docs["int8"]["predicted"]["total_s"], docs["bf16"]["predicted"]["total_s"])
        self.assertIn("--compute int8", docs["int8"]["command"])

    @figures
    def test_every_policy_with_a_budget_can_be_allowed(self):
        plain = self.plan(*T4)["predicted"]["gen_tok_s"]
        for policy, budget in (("snapkv", "64"), ("pyramidkv", "64"), ("window", "12%"), ("tova", "40"),
                               ("keydiff", "0.1"), ("h2o:hf", "48"), ("scissorhands", "64")):
            plan = self.plan(*T4, "--allow", f"{policy}={budget}")
            self.assertEqual(plan["plan"]["kv_policy"], policy)
            self.assertGreater(plan["predicted"]["gen_tok_s"], plain)
        cpu = ("--shape", "llama-3.2-1b", "--hardware", "epyc-zen5-2vcpu", "--host-memory", "5GiB",
               "--prompt-len", "4096", "--gen-len", "256", "--requests", "200")
        full, cut = self.plan(*cpu), self.plan(*cpu, "--allow", "kvcompress=512")
        self.assertEqual(cut["plan"]["kv_policy"], "kvcompress")
        self.assertGreater(cut["predicted"]["gen_tok_s"], full["predicted"]["gen_tok_s"])
        self.assertGreater(cut["plan"]["seats"], 2 * full["plan"]["seats"])
        # Until a prompt is cut its 16 layers of 8 heads hold 2 shares of 512 and a run, or all of 4096 tokens.
        one = (*cpu, "--micro-batch", "1", "--micro-batches", "1", "--micro-batch-tokens", "1", "--kv-policy",
               "kvcompress", "--kv-budget", "512")
        kv = [self.plan(*one, "--kv-cross-layer", x)["memory"]["host"]["items"]["kv"] for x in ("0", "2")]
        run, page = 16 * 32 * 8 * 64 * 2 * 2, 2 << 20
        self.assertEqual(kv, [-(-run * runs // page) * page for runs in (4096 // 32, 2 * 512 // 32 + 1)])
        # A cap is known before prompts run.
        rules = [self.plan(*cpu, "--kv-policy", "fastgen", *cap)["plan"]["seats"] for cap in ((), ("--kv-budget", "512"))]
        self.assertGreater(rules[1], 2 * rules[0])
        # A part of the cache is read: 14 of 16 layers have bounds, for 144 head-blocks of 64 channels in 8 heads.
        part = self.plan(*cpu, "--allow", "kv-read=512")
        self.assertEqual(part["plan"]["kv"], {"name": "full", "read": 512, "read_dense": 2})
        self.assertGreater(part["predicted"]["gen_tok_s"], full["predicted"]["gen_tok_s"])
        bounds = part["plan"]["seats"] * 14 * 144 * 8 * 64 * 4
        self.assertEqual(part["memory"]["host"]["items"]["kv bounds"], -(-bounds // page) * page)
        self.assertIn("--kv-read 512", part["command"])
        close = self.plan("--shape", "llama-3.2-1b", "--hardware", "epyc-zen5-2vcpu", "--prompt-len", "64", "--gen-len",
                          "300", "--kv-policy", "window", "--kv-budget", "64", "--kv-positions", "cache")
        self.assertEqual(close["plan"]["kv"]["positions"], "cache")
        self.assertIn("--kv-positions cache", close["command"])
        both = self.plan(*T4, "--allow", "snapkv=64,h2o=64")
        self.assertEqual(both["plan"]["kv_policy"], "h2o")  # it bounds what is generated, too

    @figures
    def test_a_deadline_takes_the_least_lossy_that_meets_it(self):
        words = [*T4, "--requests", "200", "--allow", "kv-int8,int4"]
        fast = self.plan(*words)
        plain = self.plan(*T4, "--requests", "200")["predicted"]["total_s"]
        late = self.plan(*words, "--deadline", f"{plain * 1.5:.0f}s")
        self.assertIs(late["deadline"]["met"], True)
        self.assertEqual(late["plan"]["weight_format"], "f16")
        self.assertEqual(late["plan"]["kv_format"], "f16")
        self.assertLess(fast["predicted"]["total_s"], plain)
        never = self.plan(*words, "--deadline", "10s", status=2)
        self.assertIs(never["deadline"]["met"], False)

    @figures
    def test_the_least_that_is_needed_is_what_is_told(self):
        done = self.run_program([PROGRAM, "plan", *T4, "--host-memory", "700MiB", "--json"], status=2)
        short = json.loads(done.stdout)["shortfall"]
        self.assertEqual(list(short), ["host"])
        needed = short["host"]["needed"]
        self.assertIn(f"host memory: one seat needs {needed / (1 << 30):.2f} GiB".encode(), done.stderr)
        self.assertIs(self.plan(*T4, "--host-memory", f"{needed}")["feasible"], True)

    @figures
    def test_sweeps_keep_rows_that_do_not_fit(self):
        doc = self.plan(*T4, "--sweep", "host-memory=640MiB,200GB", "--sweep",
                        "weight-format=f16,int4")
        rows = doc["sweep"]
        self.assertEqual([(r["host_memory"], r["weight_format"]) for r in rows],
                         [("640MiB", "f16"), ("640MiB", "int4"), ("200GB", "f16"),
                          ("200GB", "int4")])
        self.assertIs(rows[0]["feasible"], False)
        self.assertIn("host", rows[0]["shortfall"])
        self.assertIs(rows[2]["feasible"], True)
        self.assertGreater(rows[3]["gen_tok_s"], rows[2]["gen_tok_s"])

    def test_requests_that_nobody_counted_are_never_too_few_for_the_block(self):
        doc = self.plan("--shape", "opt-125m", "--hardware", self.box, "--prompt-len", "8-12", "--gen-len", "2",
                        "--micro-batch", "700", "--micro-batches", "2")
        self.assertEqual(doc["plan"]["seats"], 1400)
        self.assertTrue(any("4200 requests" in a for a in doc["assumptions"]), doc["assumptions"])

    def test_bad_input_is_named(self):
        base = ["--shape", "opt-30b", "--hardware", "t4-208gb"]
        self.write([{"vocab_size": 7}])
        for words, part in [
                ([*base, "--prompt-len", "2000", "--gen-len", "100"], "context of 2048"),
                ([*base, "--prompt-len", "0", "--gen-len", "1"], "--prompt-len"),
                ([*base, "--prompt-len", "9-3", "--gen-len", "1"], "--prompt-len"),
                ([*base, "--gen-len", "3"], "--prompt-len"),
                ([*T4, "--placement", "weights=50/20/20"], "found 90"),
                ([*T4, "--requests", "10", "--micro-batch", "8", "--micro-batches", "2"],
                 "more than the 10 requests"),
                ([*T4, "--allow", "int3"], "--allow"),
                ([*T4, "--allow", "snapkw=512"], "ada-snapkv"),
                ([*T4, "--allow", "full=100%"], "snapkv=2048"),
                ([*T4, "--allow", "snapkv=lots"], "--allow: expected a share"),
                ([*T4, "--allow", "kv-read=lots"], "--allow: kv-read: expected a number of slots"),
                ([*T4, "--allow", "kv-read=64"], "--kv-read 64: a row always reads"),
                ([*T4, "--allow", "scissorhands=16"], "--kv-budget 16 a drop leaves 8"),
                ([*T4, "--allow", "snapkv=32"], "--kv-observe"),
                ([*T4, "--allow", "ada-snapkv=512"], "--device cpu, or --kv-policy snapkv"),
                ([*T4, "--allow", "kvcompress=512"], "--device cpu, or --kv-policy snapkv"),
                ([*T4, "--allow", "fastgen=512"], "--device cpu, or --kv-policy h2o"),
                ([*T4, "--kv-policy", "fastgen"], "--device cpu, or --kv-policy h2o"),
                ([*T4, "--kv-policy", "expected", "--kv-budget", "64"], "--device cpu, or --kv-policy snapkv"),
                ([*T4, "--sweep", "seats"], "--sweep"),
                ([*T4, "--kv-policy", "adakv", "--kv-budget", "20%"], "--device cpu"),
                ([*T4, "--sweep", "host-memry=1GiB"], "host-memory"),
                (["--shape", "opt-31b", "--prompt-len", "1", "--gen-len", "1"], "opt-31b"),
                ([*base[:2], "--hardware", "t5", "--prompt-len", "1", "--gen-len", "1"], "t5"),
                ([*T4, "--emulate-device", "1GiB"], "--emulate-device"),
                ([*T4, "--emulate-link", "2/2"], "expected --emulate-device SIZE"),
                ([*T4, "--host-products", "50%"], "computes no products"),
                ([*T4, "--n", "4"], "expected --input FILE"),
                (["--shape", self.input, *base[2:], "--prompt-len", "1", "--gen-len", "1"], "--shape"),
                (["--shape", self.path("no.json"), *base[2:], "--prompt-len", "1", "--gen-len", "1"], "No such"),
                ([*T4, "--requests", "1e13"], "--requests"),
                ([*T4, "--deadline", "0"], "--deadline"),
                ([*T4, "--sweep", "threads=1", "--sweep", "threads=2"], "threads is given twice"),
        ]:
            self.assertIn(part, self.refused(*words), words)

    # ---- types

    def lossy(self, doc):
        return [w for w in doc["warnings"] if w.startswith("lossy")]

    @figures
    def test_on_a_gpu_the_checkpoints_own_type_wins(self):
        for machine in ("a6000-48gb", "a100-80gb", "h200-141gb", "rtx4090-24gb", "t4-208gb"):
            doc = self.plan(*self.shape(torch_dtype="float16"), "--hardware", machine)
            self.assertEqual([doc["plan"]["compute"], doc["plan"]["weight_format"]],
                             ["f16", "f16"], machine)
            self.assertEqual(self.lossy(doc), [], machine)
        doc = self.plan("--shape", "opt-30b", "--hardware", "a100-80gb", "--prompt-len", "512",
                        "--gen-len", "128")
        self.assertIn("--compute f16 --weight-format f16", doc["command"])
        self.assertEqual(self.lossy(doc), [])
        bf16 = self.shape(torch_dtype="bfloat16")
        doc = self.plan(*bf16, "--hardware", "a100-80gb")
        self.assertEqual(doc["plan"]["compute"], "bf16")
        self.assertEqual(self.lossy(doc), [])
        doc = self.plan(*bf16, "--hardware", "t4-208gb")  # which has no bf16
        self.assertEqual(doc["plan"]["compute"], "f16")
        self.assertEqual(self.lossy(doc), ["lossy: bf16 weights rounded to f16"])

    def test_a_packed_store_is_planned_as_it_is(self):
        store = self.path("store")
        self.run_program([PROGRAM, "pack", "--model", MODEL, "--output", store, "--weight-format",
                          "f16"])
        words = ["--model", store, "--host-memory", "1GiB"]
        doc = self.plan(*words, "--hardware", self.box, "--prompt-len", "20", "--gen-len", "12")
        dry = json.loads(self.run_program(
            [PROGRAM, "bench", *words, "--hardware", self.box, "--prompt-len", "20", "--gen-len",
             "12", "--compute", "bf16", "--dry-run", "--cache-dir", self.dir]).stdout)
        self.assertEqual(doc["plan"]["weight_format"], "f16")
        self.assertEqual(doc["plan"]["weight_format"], dry["weight_format"])
        self.assertEqual(self.lossy(doc), ["lossy: f16 weights rounded to bf16 in the products"])

    # ---- the disk

    def test_a_disk_that_is_too_small_is_what_is_told(self):
        words = ["--shape", "opt-30b", "--hardware", self.box, "--prompt-len", "512", "--gen-len",
                 "32"]
        done = self.run_program([PROGRAM, "plan", "--json", *words], 2)
        self.assertIn(b"opt-30b: disk: one seat needs", done.stderr)
        doc = json.loads(done.stdout)
        self.assertEqual(list(doc["shortfall"]), ["disk"])
        short = doc["shortfall"]["disk"]
        self.assertEqual(short["budget"], 50 * 10 ** 9 // 20 * 19)
        self.assertEqual(short["missing"], short["needed"] - short["budget"])
        self.assertEqual(sum(short["items"].values()), short["needed"])
        self.assertGreater(short["items"]["packed weights"], 59e9)
        self.assertTrue(any("nothing streams from it" in w for w in doc["warnings"]))
        # Either would do, more disk or more memory, and each is offered as it can be typed.
        fixes = {f["change"].split()[0]: f for f in doc["fixes"] if not f["lossy"]}
        self.assertEqual(set(fixes), {"--disk-memory", "--host-memory"})
        for fix in fixes.values():
            self.assertIs(fix["feasible"], True)
            found = self.plan(*words, *fix["change"].split())
            self.assertEqual(found["predicted"]["gen_tok_s"], fix["gen_tok_s"])
        text = self.run_program([PROGRAM, "plan", *words], 2).stdout.decode()
        self.assertRegex(text, r"\n  disk +55\.8 GiB of 44\.2 GiB: packed weights 55\.8 GiB\n")
        self.assertRegex(text, r"\n  --disk-memory \d+MiB +[0-9.]+ tok/s\n")
        # Where less memory than disk is missing, that is told; a larger disk is offered as well.
        large = [*words, "--host-memory", "55GiB"]
        done = self.run_program([PROGRAM, "plan", "--json", *large], 2)
        self.assertIn(b"opt-30b: host memory: ", done.stderr)
        fixes = {f["change"].split()[0]: f for f in json.loads(done.stdout)["fixes"]
                 if not f["lossy"]}
        self.assertEqual(set(fixes), {"--disk-memory", "--host-memory"})
        for fix in fixes.values():
            self.assertIs(fix["feasible"], True)
        found = self.plan(*large, *fixes["--disk-memory"]["change"].split())
        self.assertEqual(found["predicted"]["gen_tok_s"], fixes["--disk-memory"]["gen_tok_s"])
        # A placement that puts weights there asks for the same room.
        doc = self.plan(*words, "--placement", "weights=0/5/95 kv=0/100/0 hidden=0/100/0",
                        status=2)
        self.assertGreater(doc["shortfall"]["disk"]["needed"], 59e9)

    def test_disk_memory_is_obeyed(self):
        words = ["--shape", "opt-30b", "--hardware", self.box, "--prompt-len", "512", "--gen-len",
                 "32"]
        doc = self.plan(*words, "--disk-memory", "200GiB")
        self.assertTrue(any("200.0 GiB" in a and "46.6 GiB of 'Box'" in a
                            for a in doc["assumptions"]), doc["assumptions"])
        self.assertLessEqual(doc["memory"]["disk"]["budget"] + 59e9, 200 * 2 ** 30)
        doc = self.plan(*words, "--disk-memory", "30GiB", status=2)  # which it has
        self.assertIn("disk", doc["shortfall"])
        # Packed weights beside the scratch are spoken of where some stream.
        tiny = ["--model", MODEL, "--hardware", self.box, "--prompt-len", "20", "--gen-len", "12"]
        for more, told in (([], False), (["--placement", "weights=0/50/50"], True)):
            found = any("packed weights" in a for a in self.plan(*tiny, *more)["assumptions"])
            self.assertIs(found, told, more)
        doc = self.plan(*T4, "--disk-memory", "5GB")
        self.assertEqual(doc["memory"].get("disk", {"budget": 5 * 10 ** 9})["budget"], 5 * 10 ** 9)
        bare = self.path("bare.yaml")
        with open(bare, "w", encoding="utf-8") as f:
            f.write(BOX.split("disk:")[0])
        self.assertIn("'Box' has no disk", self.refused(
            "--shape", "opt-125m", "--hardware", bare, "--prompt-len", "8", "--gen-len", "8",
            "--disk-memory", "5GB"))

    def test_configs_run(self):
        for i, words in enumerate([
                [],
                ["--emulate-device", "24MiB", "--emulate-link", "4/4", "--host-memory", "300MiB"],
                ["--emulate-device", "20MiB", "--host-memory", "200MiB", "--attention", "host"],
                ["--kv-policy", "h2o", "--kv-budget", "8", "--host-memory", "256MiB"],
                ["--kv-policy", "adakv", "--kv-budget", "8", "--kv-floor", "25%", "--host-memory",
                 "256MiB"],
                ["--weight-format", "int8", "--kv-format", "int8", "--micro-batch", "5"],
                ["--kv-format", "kivi2", "--kv-residual", "32", "--host-memory", "256MiB"],
        ]):
            config = self.path(f"{i}.yaml")
            doc = self.tiny(*words, "--write-config", config)
            self.check_fits(doc)
            row = json.loads(self.bench(config).stdout)
            self.check_same(row["plan"], doc)
            for tier in row["memory"].values():
                if tier["budget"] is not None:  # the disk has none where nobody gave it one
                    self.assertLessEqual(tier["measured"], tier["budget"], (words, row["memory"]))
            os.unlink(config)

    def test_what_it_calls_infeasible_is_refused_by_a_run(self):
        config = self.path("c.yaml")
        words = ["--emulate-device", "24MiB", "--host-memory", "300MiB", "--micro-batch", "12"]
        self.tiny(*words, "--write-config", config)
        small = ["--emulate-device", "1MiB", "--host-memory", "300MiB", "--micro-batch", "12"]
        doc = self.tiny(*small, status=2)
        self.assertIn("device", doc["shortfall"])
        self.bench(config, "--emulate-device", "1MiB", status=2)


if __name__ == "__main__":
    unittest.main()
