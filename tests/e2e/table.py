# SPDX-License-Identifier: Apache-2.0
"""`aquifer bench --table`: rows run, kept, gone on with after a kill, and run again where they changed."""
import csv
import io
import json
import os
import signal
import subprocess
import unittest

from rig import MODEL, PROGRAM, Rig

TABLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "configs", "tables")
ROWS = """table: t
defaults: {prompt-len: 8, gen-len: 4, repeats: 1, warmup: 0}
rows:
- {name: one, requests: 1, published: {tok-s: 2.5, source: "a paper, table 1"}}
- {name: "two, of them", requests: 2}
"""


class Table(Rig):
    def table(self, text):
        path = self.path("table.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def words(self, table, *more, output="rows.json"):
        return [PROGRAM, "bench", "--table", table, "--model", MODEL, "--device", "cpu", "--host-memory", "512MiB",
                "--format", "json", "--output", self.path(output), *more]

    def rows(self, output="rows.json"):
        with open(self.path(output), encoding="utf-8") as f:
            return json.load(f)

    def test_rows_stand_beside_what_was_published(self):
        self.run_program(self.words(self.table(ROWS)))
        one, two = self.rows()
        self.assertEqual((one["name"], two["name"]), ("one", "two, of them"))
        self.assertEqual(one["published"], {"gen_tok_s": 2.5, "source": "a paper, table 1"})
        self.assertAlmostEqual(one["published_ratio"] * 2.5 / one["gen_tok_s"], 1, places=6)
        self.assertIsNone(two["published"])
        error = one["predicted"]["gen_tok_s"] / one["gen_tok_s"] - 1
        self.assertAlmostEqual((one["prediction_error"] + 1) / (error + 1), 1, places=6)
        self.assertEqual((one["row"]["requests"], two["row"]["requests"]), (1, 2))

    @unittest.skipIf("ASAN_OPTIONS" in os.environ, "shadow memory would be counted")
    def test_the_memory_of_a_row_is_its_own(self):
        """Peaks begin anew with each row, of a list as of a table."""
        done = self.run_program([PROGRAM, "bench", "--model", MODEL, "--device", "cpu", "--prompt-len", "300,8",
                                 "--gen-len", "4", "--micro-batch", "64", "--requests", "64", "--repeats", "1",
                                 "--warmup", "0", "--json"])
        large, small = (r["memory"]["host"] for r in json.loads(done.stdout))
        for row in large, small:
            self.assertLessEqual(row["measured"], row["ledger"])
        self.assertLess(small["measured"], 0.7 * large["measured"])

    def test_formats_agree(self):
        table = self.table(ROWS)
        done = {}
        for name in "md", "csv", "jsonl":
            words = self.words(table, "--format", name, output="rows." + name)
            self.run_program(words)
            with open(self.path("rows." + name), encoding="utf-8") as f:
                done[name] = f.read()
        names = ["one", "two, of them"]
        self.assertEqual([r["name"] for r in csv.DictReader(io.StringIO(done["csv"]))], names)
        self.assertEqual([json.loads(x)["name"] for x in done["jsonl"].splitlines() if x], names)
        cells = [x.split("|")[1].strip() for x in done["md"].splitlines() if x]
        self.assertEqual(cells, ["name", "---"] + names)

    def test_what_is_done_stays_done(self):
        words = self.words(self.table(ROWS))
        self.run_program(words)
        first = self.rows()
        again = self.run_program(words).stderr.decode()
        self.assertEqual(again.count("done before"), 2)
        self.assertEqual(self.rows(), first)
        # A changed row is run again, the other one is not; a figure beside it changes no run.
        self.table(ROWS.replace("requests: 2", "requests: 3").replace("tok-s: 2.5", "tok-s: 5"))
        again = self.run_program(words).stderr.decode()
        self.assertEqual(again.count("done before"), 1)
        one, two = self.rows()
        self.assertEqual(one["samples"], first[0]["samples"])
        self.assertEqual((one["published"]["gen_tok_s"], two["row"]["requests"]), (5, 3))

    def test_a_killed_table_goes_on(self):
        rows = "".join(f"- {{name: r{i}, requests: 16, prompt-len: 64, gen-len: {64 + i}}}\n" for i in range(10))
        words = self.words(self.table("table: t\ndefaults: {repeats: 1, warmup: 0}\nrows:\n" + rows))
        state = self.path("rows.json.rows.json")
        run = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self.wait_for(lambda: os.path.exists(state))
        finally:
            run.send_signal(signal.SIGKILL)
            run.wait()
        with open(state, encoding="utf-8") as f:
            kept = len(json.load(f)["rows"])
        self.assertGreater(kept, 0)
        self.assertLess(kept, 10)
        err = self.run_program(words).stderr.decode()
        self.assertEqual(err.count("done before"), kept)
        self.assertEqual([r["name"] for r in self.rows()], [f"r{i}" for i in range(10)])

    def test_a_row_that_does_not_fit_does_not_stop_the_others(self):
        text = ROWS + "- {name: small, requests: 1, host-memory: 8MiB}\n- {name: long, gen-len: 4000}\n"
        words = self.words(self.table(text))
        words = [w for w in words if w not in ("--host-memory", "512MiB")]
        self.run_program(words, status=3)
        one, _, small, long = self.rows()
        self.assertGreater(one["gen_tok_s"], 0)
        self.assertIn("the budget is 8.0 MiB", small["error"]["message"])
        self.assertEqual(small["error"]["exit_status"], 2)
        self.assertIn("context", long["error"]["message"])

    def test_the_command_line_wins(self):
        self.run_program(self.words(self.table(ROWS), "--requests", "4", "--gen-len", "2"))
        self.assertEqual([(r["row"]["requests"], r["row"]["gen_len"]) for r in self.rows()], [(4, 2), (4, 2)])

    def test_bad_tables_are_refused_before_anything_runs(self):
        cases = [
            (ROWS.replace("requests: 2", "requets: 2"), "'requests'"),
            (ROWS.replace("requests: 2", "requests: two"), "found 'two'"),
            (ROWS.replace("requests: 2", "prompt-len: '4,8'"), "found a list"),
            (ROWS.replace("requests: 2", "format: csv"), "option of the whole table"),
            (ROWS.replace("two, of them", "one"), "already given in line 4"),
            (ROWS.replace("name: one, ", ""), "expected the key 'name'"),
            (ROWS.replace("tok-s: 2.5", "tok-s: fast"), "expected a number"),
            (ROWS.replace("tok-s: 2.5", "tok_s: 2.5"), "did you mean 'tok-s'"),
            (ROWS.replace(', source: "a paper, table 1"', ""), "expected the key 'source'"),
            (ROWS.replace("defaults", "default"), "unknown key 'default'"),
            ("table: t\nrows: []\n", "a list of rows"),
            ("rows: 3\n", "expected the key 'table'"),
            ("- 1\n", "expected a map"),
        ]
        for text, message in cases:
            err = self.run_program(self.words(self.table(text)), status=1).stderr.decode()
            self.assertIn(message, err)
            self.assertIn("table.yaml", err)
            self.assertFalse(os.path.exists(self.path("rows.json")), text)
        err = self.run_program(self.words(self.path("none.yaml")), status=1).stderr.decode()
        self.assertIn("none.yaml", err)

    def test_the_shipped_table_runs(self):
        words = [PROGRAM, "bench", "--table", os.path.join(TABLES, "tiny.yaml"), "--model", MODEL, "--device", "cpu",
                 "--json", "--output", self.path("rows.json")]
        self.run_program(words, status=3)
        rows = {r["name"]: r for r in self.rows()}
        self.assertEqual([n for n, r in rows.items() if "error" in r], ["more than there is"])
        # Where bytes live changes no token.
        self.assertEqual(rows["batch 16"]["output_xxh3"], rows["batch 16, emulated device"]["output_xxh3"])
        self.assertNotEqual(rows["batch 16"]["output_xxh3"], rows["batch 16, h2o 50 %"]["output_xxh3"])


PUBLISHED = """table: p
about: Made for this test.
engines:
  theirs:
    hardware: t4-208gb
    host-attention-gb-s: {value: 12.3, source: a paper}
    decode-tflop-s: {value: 4.3, source: a paper}
rows:
- name: offloaded
  shape: opt-6.7b
  prompt-len: 512
  gen-len: 32
  random-weights: 1
  published: {tok-s: 20, source: a paper}
  policy: {engine: theirs, gpu-batch-size: 16, num-gpu-batches: 2, percent: 20 80 0 100 0 100, cpu-cache-compute: on}
- name: somewhere
  shape: opt-6.7b
  prompt-len: 512
  gen-len: 32
  random-weights: 1
  published: {tok-s: 30, source: a paper}
"""


class Published(Rig):
    def published(self, text, *more, status=0):
        path = self.path("published.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return self.run_program([PROGRAM, "published", path, *more], status=status)

    def test_rows_are_predicted_from_their_schedule_to_ours(self):
        doc = json.loads(self.published(PUBLISHED, "--json").stdout)
        row, bare = doc["rows"]
        theirs, stairs = row["theirs"], row["stairs"]
        self.assertAlmostEqual(theirs["ratio"], theirs["gen_tok_s"] / 20, places=6)
        self.assertEqual(stairs[0], {"without": None, "text": "their engine", "gen_tok_s": theirs["gen_tok_s"]})
        names = [s["without"] for s in stairs]
        self.assertTrue({"whole-tensors", "barrier", "serial-host", "slow-host", "slow-device"} <= set(names))
        self.assertNotIn("unpack-each", names)  # nothing is packed
        for before, after in zip(stairs, stairs[1:]):
            self.assertGreaterEqual(after["gen_tok_s"], 0.99 * before["gen_tok_s"])
        self.assertGreater(row["ours"]["gen_tok_s"], theirs["gen_tok_s"])
        self.assertEqual((bare["theirs"], bare["stairs"], bare["ours"]), (None, None, None))
        self.assertEqual((doc["summary"]["all"]["rows"], doc["summary"]["opt-6.7b"]["rows"]), (1, 1))

    def test_markdown_says_the_same(self):
        doc = json.loads(self.published(PUBLISHED, "--json").stdout)
        path = self.path("published.md")
        self.assertEqual(self.published(PUBLISHED, "--output", path).stdout, b"")
        with open(path, encoding="utf-8") as f:
            text = f.read()
        cells = next(x for x in text.splitlines() if x.startswith("| offloaded")).split("|")
        self.assertAlmostEqual(float(cells[4]), doc["rows"][0]["theirs"]["ratio"], delta=0.01)
        self.assertIn("- offloaded: theirs", text)

    def test_what_cannot_be_predicted_is_named(self):
        cases = [
            (PUBLISHED.replace("opt-6.7b", "opt-6.8b"), "row 'offloaded'"),
            (PUBLISHED.replace("t4-208gb", "t5"), "t5"),
            (PUBLISHED.replace("t4-208gb", "epyc-zen5-2vcpu"), "a device with memory of its own"),
            (PUBLISHED.replace("0 100 0 100, cpu", "0 100 50 50, cpu"), "hidden=50/50/0"),
            (PUBLISHED.replace("  published: {tok-s: 20, source: a paper}\n", ""), "expected a published figure"),
        ]
        for text, message in cases:
            self.assertIn(message, self.published(text, status=1).stderr.decode())
        err = self.run_program([PROGRAM, "published"], status=1).stderr.decode()
        self.assertIn("expected FILE", err)


if __name__ == "__main__":
    unittest.main()
