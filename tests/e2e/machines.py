#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which machine to rent, from outside: `plan` on several machines with prices, jobs by a table of
lengths, profiles of one's own, and how large a model is (`info --model`)."""
import json
import unittest

from rig import MODEL, PROGRAM, Rig, refuse_constant

# Jobs whose block is given are planned at once.
JOB = ["--shape", "opt-350m", "--prompt-len", "32", "--gen-len", "8", "--requests", "1000", "--micro-batch", "64",
       "--micro-batches", "1"]


class Machines(Rig):
    def text(self, *words, status=0):
        done = self.run_program([PROGRAM, *words], status)
        return done.stdout.decode()

    def document(self, *words, status=0):
        return json.loads(self.text(*words, "--json", status=status), parse_constant=refuse_constant)

    def refused(self, *words):
        done = self.run_program([PROGRAM, *words], 1)
        self.assertEqual(done.stdout, b"")
        return done.stderr.decode()

    def file(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)
        return self.path(name)

    def names(self):
        return [row["hardware"] for row in self.document("plan", "--hardware", "list")["hardware"]]

    def test_all_machines_are_ranked(self):
        doc = self.document("plan", "--hardware", "all", *JOB, "--price", "l4-24gb=$0.50/h", "--price",
                            "t4-208gb=$0.40/h", "--price", "h100-sxm-80gb=9 EUR/h")
        rows = doc["machines"]
        self.assertEqual(sorted(row["hardware"] for row in rows), sorted(self.names()))
        self.assertGreaterEqual(len(rows), 14)
        fit = [row for row in rows if row["feasible"]]
        self.assertEqual([row["total_s"] for row in fit], sorted(row["total_s"] for row in fit))
        self.assertEqual(doc["ranking"]["time"], [row["hardware"] for row in fit])
        by_name = {row["hardware"]: row for row in rows}
        prices = {"l4-24gb": 0.5, "t4-208gb": 0.4, "h100-sxm-80gb": 9}
        for name, row in by_name.items():
            self.assertAlmostEqual(row["hours"] * 3600 / row["total_s"], 1)
            if name not in prices:
                self.assertEqual([row["money"], row["currency"], row["price"]], [None, None, None])
                continue
            self.assertAlmostEqual(row["money"] / row["hours"], prices[name])
            self.assertAlmostEqual(row["money_per_million"] * row["gen_tok_s"] * 3600 / 1e6, prices[name])
        cheap = sorted(("l4-24gb", "t4-208gb"), key=lambda name: by_name[name]["money"])
        self.assertEqual(doc["ranking"]["money"], {"$": cheap, "EUR": ["h100-sxm-80gb"]})
        self.assertEqual(doc["workload"]["requests"], 1000)
        # A plan alone is the same, with its price in the document, the text and rows of tables.
        alone = self.plan("--hardware", "l4-24gb", *JOB, "--price", "l4-24gb=$0.50/h")
        self.assertEqual(alone["predicted"]["money"], by_name["l4-24gb"]["money"])
        self.assertEqual(alone["plan"], by_name["l4-24gb"]["plan"])
        self.assertEqual(alone["price"], {"per_hour": 0.5, "currency": "$", "date": None, "source": "--price"})
        swept = self.plan("--hardware", "l4-24gb", *JOB, "--price", "t4-208gb=$0.40/h", "--sweep",
                          "hardware=l4-24gb,t4-208gb")["sweep"]
        self.assertEqual([row["money"] for row in swept], [None, by_name["t4-208gb"]["money"]])

    def test_the_tables_are_for_people(self):
        small = self.file("small.yaml", "machine: {name: Small, cores: 2}\nhost: {memory: 2200MiB, memory_gb_s: 20}\n")
        text = self.text("plan", "--hardware", f"t4-208gb,{small},l4-24gb", *JOB, "--price", "l4-24gb=$0.50/h")
        self.assertRegex(text, r"^opt-350m, 1000 requests of 32 \+ 8 tokens\n")
        self.assertRegex(text, r"\n   1  l4-24gb +[\d.]+ +[\d.e-]+ +\$[\d.]+ +\$[\d.e-]+ +f16/f16 +64  \w")
        self.assertRegex(text, rf"\n   -  {small} +opt-350m: host memory: ")
        self.assertIn("\ncheapest first ($): l4-24gb\n", text)
        plain = self.text("plan", "--hardware", "l4-24gb", *JOB, "--price", "l4-24gb=0.50 USD/h")
        self.assertRegex(plain, r"in all \([\d.]+ h\), ")
        self.assertRegex(plain, r"\n  costs [\d.]+ USD, [\d.e-]+ USD a million generated tokens, at 0.5 USD an hour "
                                r"\(--price\)\n")
        swept = self.plan("--hardware", "t4-208gb", *JOB, "--sweep", "hardware=t4-208gb,l4-24gb", "--price",
                          "l4-24gb=0.50 USD/h")["sweep"]
        self.assertEqual([row["price_per_hour"] for row in swept], [None, "0.5 USD"])
        self.assertIn("at 0.71 USD an hour", self.text("plan", "--hardware", "l4-24gb", *JOB, "--price", "l4-24gb=0.71USD/h"))
        listed = self.text("plan", "--hardware", "list")
        for name in self.names():
            self.assertRegex(listed, rf"(?m)^{name} ")
        self.assertNotIn("price", listed)

    def test_a_sweep_over_machines_plans_none_but_these(self):
        page = self.path("swept.html")
        text = self.text("plan", *JOB, "--sweep", "hardware=l4-24gb,t4-208gb", "--price", "t4-208gb=0.40 USD/h",
                         "--price", "l4-24gb=2 USD/h", "--html", page, "--html-points", "0")
        self.assertTrue(text.startswith("opt-350m on L4-24GB\n"), text[:80])
        with open(page, encoding="utf-8") as f:
            html = f.read()
        doc = self.plan(*JOB, "--sweep", "hardware=l4-24gb,t4-208gb", "--price", "t4-208gb=0.40 USD/h", "--price",
                        "l4-24gb=2 USD/h")
        self.assertIn("<p id=\"cost\">Costs <b>", html)
        self.assertIn(" a million generated tokens, at 2 USD an hour (--price).</p>", html)
        self.assertIn('<th scope="col" class="n">cost</th>', html)
        for row in doc["sweep"]:
            money = f'{row["money"]:.2f}' if row["money"] >= 1 else f'{row["money"]:.3g}'
            self.assertIn(f'<td class="n">{money} USD</td>', html)

    def test_a_sweep_over_what_is_no_machine(self):
        for name in "all", "list":
            done = self.run_program([PROGRAM, "plan", *JOB, "--sweep", f"hardware={name}"], 1)
            self.assertEqual(done.stdout, b"")
            self.assertIn(f"found '{name}'", done.stderr.decode())

    def test_a_profile_without_a_name_has_that_of_its_file(self):
        small = self.file("rack 7.v2.yaml", "machine: {cores: 2}\nhost: {memory: 8GiB, memory_gb_s: 20}\n")
        self.assertTrue(self.text("plan", "--hardware", small, *JOB).startswith("opt-350m on rack 7.v2\n"))
        long = self.file("\u00e9" * 60 + ".yaml", "machine: {cores: 2}\nhost: {memory: 8GiB, memory_gb_s: 20}\n")
        self.assertEqual(self.plan("--hardware", long, *JOB)["hardware"], "\u00e9" * 47)

    def test_what_is_lossy_is_told_beside_its_rate(self):
        here, job = "epyc-zen5-2vcpu", ["--shape", "opt-350m", "--prompt-len", "512", "--gen-len", "32",
                                        "--micro-batch", "8", "--micro-batches", "1"]
        page = self.path("page.html")
        here_too = self.file("here.yaml", "machine: {cores: 4}\nhost: {memory: 16GB, memory_gb_s: 20}\n")
        for words, policy in ([], "full"), (["--kv-read", "128"], "full, read 128"), (
                ["--kv-policy", "snapkv", "--kv-budget", "256", "--kv-read", "128"], "snapkv 256, read 128"), (
                ["--kv-policy", "h2o", "--kv-budget", "20%"], "h2o 20%"):
            both = self.text("plan", "--hardware", f"{here},{here_too}", *job, *words)
            self.assertRegex(both, rf"\n   [12]  {here} .* 8  {policy} +\w")
            text = self.text("plan", "--hardware", here, *job, *words, "--sweep", "threads=1", "--html", page,
                             "--html-points", "0")
            self.assertRegex(text, rf"\n  formats .*, policy {policy}\n")
            self.assertRegex(text, rf"\n  threads=1 .*, policy {policy}  bound by")
            with open(page, encoding="utf-8") as f:
                html = f.read()
            self.assertIn(f", policy {policy}.</p>", html)
            self.assertIn(f", {policy}</td></tr>", html)

    def test_a_profile_has_a_price_of_its_day(self):
        mine = self.file("mine.yaml", "machine: {name: Mine, cores: 32, price_per_hour: {value: 2 CHF, date: 2026-01-31}}\n"
                         "device: {memory: 24GB, memory_gb_s: 300, product_f16_tflop_s: 100}\n"
                         "host: {memory: 128GiB, memory_gb_s: 100}\nlinks: {h2d_gb_s: 12}\n"
                         "disk: {space: 1TB, read_gb_s: 3}\n")
        doc = self.plan("--hardware", mine, *JOB)
        self.assertEqual(doc["price"], {"per_hour": 2.0, "currency": "CHF", "date": "2026-01-31", "source": None})
        self.assertAlmostEqual(doc["predicted"]["money"], 2 * doc["predicted"]["hours"])
        self.assertTrue(any("disk.write_gb_s = 1.5" in line for line in doc["assumptions"]))
        self.assertIn("(of 2026-01-31)", self.text("plan", "--hardware", mine, *JOB))
        both = self.document("plan", "--hardware", f"{mine},l4-24gb", *JOB, "--price", f"{mine}=3 CHF/h")
        mine_row = [row for row in both["machines"] if row["hardware"] == mine][0]
        self.assertAlmostEqual(mine_row["money"], 3 * mine_row["hours"])
        poor = self.file("poor.yaml", "machine: {name: Poor}\ndevice: {memory: 24GB}\n")
        told = self.refused("plan", "--hardware", poor, *JOB)
        for key in ("machine.cores", "device.memory_gb_s", "device.product_f16_tflop_s", "host.memory (",
                    "host.memory_gb_s", "links.h2d_gb_s", "6 numbers are missing", "aquifer help hardware"):
            self.assertIn(key, told)
        self.assertIn("\n  memory_gb_s ", self.text("help", "hardware"))

    def test_a_deadline_is_for_all(self):
        words = ["--hardware", "b200-180gb,v100-16gb", *JOB]
        slow = self.document("plan", *words)["machines"][-1]["total_s"]
        doc = self.document("plan", *words, "--deadline", f"{slow * 0.99}s")
        self.assertEqual([row["met"] for row in doc["machines"]], [True, False])
        self.assertIs(doc["deadline"]["met"], True)
        self.assertIs(self.document("plan", *words, "--deadline", "1ms", status=2)["deadline"]["met"], False)

    def test_a_deadline_of_an_unknown_number_of_requests_is_neither_met_nor_missed(self):
        words = [*JOB[:6], *JOB[8:], "--deadline", "1h"]
        alone = self.plan("--hardware", "b200-180gb", *words)
        doc = self.document("plan", "--hardware", "b200-180gb,v100-16gb", *words)
        self.assertIsNone(alone["deadline"]["met"])
        self.assertEqual(doc["deadline"], alone["deadline"])
        self.assertEqual([row["met"] for row in doc["machines"]], [None, None])
        warning = "--deadline says nothing without --requests"
        self.assertIn(warning, alone["warnings"])
        self.assertEqual(doc["warnings"], [warning])
        self.assertIn("\nwarnings\n  " + warning, self.text("plan", "--hardware", "b200-180gb,v100-16gb", *words))
        self.assertNotIn("warnings", self.text("plan", "--hardware", "b200-180gb,v100-16gb", *JOB, "--deadline", "9h"))

    def test_lengths_come_from_a_table(self):
        table = self.file("lengths.txt", "# prompt generated count\n32 8 3\n96 24\n")
        words = [*JOB[:2], *JOB[6:], "--hardware", "l4-24gb"]
        work = self.plan(*words, "--lengths", table)["workload"]
        self.assertEqual([work["prompt_len"], work["gen_len"], work["requests"]], [[32, 96], [8, 24], 1000])
        self.assertEqual([work["prompt_mean"], work["gen_mean"], work["lengths"]], [48, 12, table])
        without = self.plan(*words[:2], "--micro-batch", "4", "--hardware", "l4-24gb", "--lengths", table)
        self.assertEqual(without["workload"]["requests"], 4)
        # The same from records, which say one by one what the table counts.
        self.write([{"prompt": [7 + i] * p, "max_tokens": g}
                    for i, (p, g) in enumerate(([(32, 8)] * 3 + [(96, 24)]) * 250)])
        records = self.plan(*words[:2], *words[4:], "--input", self.input)
        self.assertEqual(records["workload"]["prompt_mean"], 48)
        ours = self.plan(*words, "--lengths", table)
        self.assertEqual(ours["plan"], records["plan"])
        ratio = ours["predicted"]["total_s"] / records["predicted"]["total_s"]
        self.assertTrue(0.97 < ratio < 1.03, ratio)
        several = self.document("plan", *words[:8], "--hardware", "l4-24gb,t4-208gb", "--lengths", table)
        row = [row for row in several["machines"] if row["hardware"] == "l4-24gb"][0]
        self.assertEqual(row["total_s"], ours["predicted"]["total_s"])

    def test_a_model_is_sized_up(self):
        doc = self.document("info", "--shape", "opt-125m")
        hidden, layers, vocab = 768, 12, 50272
        layer = 12 * hidden * hidden + 13 * hidden
        self.assertEqual(doc["parameters"], layers * layer + vocab * hidden + 2050 * hidden + 2 * hidden)
        self.assertEqual(doc["kv_bytes_per_token"]["f16"], 2 * layers * hidden * 2)
        for format, size in (("f32", 4), ("f16", 2), ("int8", 1.0625)):
            self.assertAlmostEqual(doc["weights"][format] / doc["parameters"], size, delta=0.03 * size, msg=format)
        self.assertEqual([row["hardware"] for row in doc["machines"]], self.names())
        box = self.file("box.yaml", "machine: {cores: 2}\nhost: {memory: 8GB, memory_gb_s: 50}\n"
                        "device: {memory: 1GB, memory_gb_s: 100, product_f16_tflop_s: 10}\nlinks: {h2d_gb_s: 4}\n")
        row = self.document("info", "--shape", "opt-125m", "--hardware", box)["machines"][0]
        device, host = 10 ** 9 - 512 * 2 ** 20, 8 * 10 ** 9 - 2 * 2 ** 30
        self.assertEqual([row["device"], row["host"], row["disk"]], [device, host, 0])
        fit = row["fits"]["f16"]
        near = (device - doc["weights"]["f16"]) // (4 * layers * hidden)
        self.assertEqual([fit["where"], fit["device_kv_tokens"]], ["device", near])
        self.assertEqual(fit["kv_tokens"], (device + host - doc["weights"]["f16"]) // (4 * layers * hidden))
        fits = self.document("info", "--shape", "opt-6.7b", "--hardware", box)["machines"][0]["fits"]
        self.assertEqual([fits[f]["where"] for f in ("f16", "int4")], [None, "host"])
        own = self.text("info", "--model", MODEL, "--hardware", "l4-24gb")
        self.assertRegex(own, r"^tiny-opt \(opt\): 6\.05 million parameters, 6 layers of 256\n")
        self.assertRegex(own, r"\n  l4-24gb +device [\d.]+M \+ [\d.]+M  ")
        window = self.document("info", "--shape", "mistral-7b", "--hardware", "l4-24gb")
        self.assertEqual(window["kv_heads"], 8)

    def test_bad_words_are_named(self):
        for words, part in [
                (["plan", "--hardware", "all,h10", *JOB], "found 'h10', the nearest one is 'h100-"),
                (["plan", "--hardware", ",", *JOB], "expected names with commas"),
                (["plan", "--hardware", "all", *JOB, "--html", "x.html"], "--html tells of one machine"),
                (["plan", "--hardware", "all", *JOB, "--sweep", "threads=1,2"], "--sweep tells of one machine"),
                (["plan", "--hardware", "all", *JOB, "--write-config", "x"], "--write-config tells of one"),
                (["plan", "--hardware", "all", *JOB, "--price", "l4=1/h"], "--price: expected a file"),
                (["plan", "--hardware", "t4-208gb,l4-24gb", *JOB, "--price", "b200-180gb=1/h"],
                 "--price: expected a machine that is planned (t4-208gb, l4-24gb), found 'b200-180gb'"),
                (["plan", "--hardware", "t4-208gb", *JOB, "--price", "t4-208gb=1/h", "--price", "l4-24gb=1/h"],
                 "planned (t4-208gb), found 'l4-24gb'"),
                (["plan", "--hardware", "t4-208gb", *JOB, "--sweep", "hardware=l4-24gb,v100-16gb", "--price",
                  "b200-180gb=1/h"], "planned (t4-208gb, l4-24gb, v100-16gb), found"),
                (["plan", *JOB, "--price", "l4-24gb=1/h"], "planned (local), found 'l4-24gb'"),
                (["plan", "--hardware", "all", *JOB, "--price", "l4-24gb=1"], "expected HARDWARE=MONEY/h"),
                (["plan", "--hardware", "all", *JOB, "--lengths", "x"], "leave out --prompt-len"),
                (["plan", "--hardware", "all", "--shape", "opt-31b", *JOB[2:]], "opt-31b"),
                (["info", "--shape", "opt-125m", "--hardware", "local"], "aquifer plan measures this machine"),
                (["info", "--shape", "opt-125m", "--model", MODEL], "found both"),
                (["info", "--hardware", "all"], "expected --model DIR or --shape NAME"),
        ]:
            self.assertIn(part, self.refused(*words), words)
        bad = self.file("bad.txt", "32 8\nthirty 8\n")
        self.assertRegex(self.refused("plan", "--shape", "opt-350m", "--hardware", "l4-24gb", "--lengths", bad),
                         r"bad.txt', line 2: expected \"prompt generated \[count\]\"")


if __name__ == "__main__":
    unittest.main()
