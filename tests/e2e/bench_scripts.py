# SPDX-License-Identifier: Apache-2.0
"""The Python beside the benchmarks: configurations that the program takes, rows that stay, lines that are missed,
pictures that are drawn.  Nothing here judges how fast the machine is."""
import itertools
import json
import math
import os
import random
import re
import struct
import subprocess
import sys
import unittest
import xml.etree.ElementTree

from rig import MODEL, PROGRAM, Rig

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "bench"))
import best  # noqa: E402
import choices  # noqa: E402
import kv_quality  # noqa: E402
import ledger  # noqa: E402
import peers  # noqa: E402
import predict  # noqa: E402
import recall  # noqa: E402
import runs  # noqa: E402
import svg  # noqa: E402
import table_plots  # noqa: E402


class Arguments:
    hardware = os.path.join(ROOT, "configs", "hardware", "epyc-zen5-2vcpu.yaml")
    build = os.path.join(os.path.dirname(PROGRAM), "..", "..")
    only = ""

    def __init__(self, folder):
        self.cache_dir = os.path.join(folder, "cache")
        self.output = os.path.join(folder, "predicted")


class Predict(Rig):
    def setUp(self):
        super().setUp()
        self.bench = self.again()

    def again(self, rates=(1, 1)):
        """Whose probes find these rates, in turns."""
        bench, found = predict.Bench(Arguments(self.dir), self.dir), itertools.cycle(rates)
        bench.probe = lambda disk: dict(product_memory_gb_s=next(found))
        return bench

    def test_there_are_30_different_runs_and_the_program_takes_them(self):
        jobs = [*predict.resident(), *predict.device(), *predict.disk()]
        self.assertGreaterEqual(len({key for key, _ in jobs}), 30)
        self.assertEqual(len({str(words) for _, words in jobs}), len(jobs))
        for key, words in jobs:
            words = [runs.shape(str(w), self.dir) for w in words]
            done = self.run_program([PROGRAM, "bench", "--random-weights", "1", "--dry-run", "--json", "--device", "cpu",
                                     "--cache-dir", self.path("cache"), "--hardware", Arguments.hardware, *words])
            said = json.loads(done.stdout)["predicted"]
            self.assertGreater(said["decode_pass_s"], 0, key)

    @staticmethod
    def maker(found, seconds=20.0):
        """What makes a row's reports, of these rates in turns; and how many it has made."""
        found, made = itertools.cycle(found), []

        def make(dry):
            # The probe after a run promises 4 tokens a second more than the one before it.
            predicted = dict(gen_tok_s=102.0 if dry else 98.0, prefill_s=1.1, decode_pass_s=0.2, bound_by="h2d link")
            if dry:
                return dict(predicted=predicted)
            made.append(1)
            return dict(gen_tok_s=next(found), decode_tok_s=80.0, prefill_s=1.0, total_s=seconds, predicted=predicted,
                        plan=dict(placement="p", micro_batch=8, micro_batches=2))

        return make, made

    def test_rows_stay_and_failures_are_tried_again(self):
        make, made = self.maker([95.0])

        def fails(dry):
            raise KeyError("plan")

        self.assertIn("KeyError", self.bench.row("one", fails, ["words"])["error"])
        row = self.bench.row("one", make, ["words"])
        self.assertAlmostEqual(row["off"], 0.05)
        self.assertAlmostEqual(row["pass_s"], 0.2)
        self.assertEqual(self.again().row("one", make, ["words"]), row)
        self.assertEqual(len(made), 1)
        self.again().row("one", make, ["other words"])
        self.assertEqual(len(made), 2)
        self.assertEqual(row["runs"], 1)
        text = "\n".join(predict.table([("one", row), ("two", dict(error="no"))]))
        self.assertIn("| one | 95.0 | 100.0 | 5.0 % |", text)
        self.assertIn("| two | failed: no |", text)
        self.assertIn("| a link |", text)

    def test_the_band_of_a_plan_is_that_of_the_measured_runs(self):
        where = {"computing": ["--host-memory", "8GiB"],
                 "a link": ["--emulate-device", "2GiB", "--emulate-link", "0.1/0.1", "--placement",
                            "weights=0/100/0 kv=100/0/0 hidden=100/0/0 head=device"],
                 "a disk": ["--placement", "weights=0/0/100 kv=0/100/0 hidden=0/100/0 head=host"]}
        checked = 0
        for bound, words in where.items():
            done = self.run_program([PROGRAM, "plan", "--shape", "opt-350m", "--hardware", Arguments.hardware, "--json",
                                     "--prompt-len", "64", "--gen-len", "16", "--micro-batch", "8", *words])
            doc = json.loads(done.stdout)
            with open(os.path.join(ROOT, doc["range"]["source"]), encoding="utf-8") as f:
                rows = [[c.strip() for c in line.split("|")[1:-1]] for line in f if line.startswith("|")][2:]
            measured = {name: rest for name, *rest in
                        predict.bands([(r[-1], float(r[1]) / float(r[2])) for r in rows])}
            count, inside, low, high = measured[bound]
            self.assertEqual(doc["range"]["from"], f"{inside} of {count} measured runs bound by {bound}")
            for found, ratio in zip(doc["range"]["gen_tok_s"], (low, high)):
                self.assertAlmostEqual(found / doc["predicted"]["gen_tok_s"], ratio, 3)
            self.assertTrue(any(doc["range"]["source"] in line for line in doc["assumptions"]))
            checked += count
        self.assertEqual(checked, len(rows))

    def test_a_run_is_repeated_while_the_machine_changes(self):
        row = self.again(rates=(1, 2, 1, 1.1)).row("one", self.maker([50.0, 95.0])[0], ["a"])
        self.assertEqual((row["runs"], row["disturbed"]), (2, False))  # the first was disturbed
        self.assertAlmostEqual(row["off"], 0.05)
        row = self.again(rates=(1, 2)).row("two", self.maker([50.0, 90.0, 80.0, 70.0, 60.0])[0], ["a"])
        self.assertEqual((row["runs"], row["disturbed"]), (predict.TRIES, True))  # all were: the median
        self.assertAlmostEqual(row["off"], 0.3)
        self.assertIn("5, disturbed |", "\n".join(predict.table([("two", row)])))

    def test_a_row_far_off_is_run_three_times(self):
        row = self.bench.row("far", self.maker([80.0, 90.0, 97.0])[0], ["a"])
        self.assertEqual(row["runs"], 3)
        self.assertAlmostEqual(row["off"], 0.1)

    def test_of_short_runs_the_middle_one_counts_unless_they_are_apart(self):
        make, made = self.maker([99.0, 96.0, 97.0], 1.0)
        row = self.bench.row("short", make, ["a"])
        self.assertEqual((row["runs"], row["gen_tok_s"], len(made)), (1, 97.0, 3))
        row = self.bench.row("apart", self.maker([97.0, 96.0, 50.0, 99.0, 98.0, 97.0], 1.0)[0], ["a"])
        self.assertEqual((row["runs"], row["gen_tok_s"], row["disturbed"]), (2, 98.0, False))


class Choices(Rig):
    class Arguments:
        build, model, rest, samples, shots, continuations = Arguments.build, MODEL, [], 5, 5, 4

        def __init__(self, contexts, micro_batches):
            self.contexts = contexts
            self.rest = ["--micro-batch", str(8 // micro_batches), "--micro-batches", str(micro_batches)]

    def check(self, micro_batches, most):
        """Over many passes, in each of which two questions run."""
        rows = list(choices.lines(self.Arguments(24, micro_batches), self.dir))
        self.assertEqual(len(rows), 2)
        for r in rows:
            self.assertTrue(r["equal"], r)
            self.assertGreater(r["all"], 4 * r["distinct"])
            self.assertGreaterEqual(r["distinct"], r["tree"])
            self.assertGreaterEqual(r["computed"], r["tree"])
        self.assertGreater(rows[0]["passes"], 10)
        self.assertLessEqual(rows[0]["computed"], most * rows[0]["distinct"])
        self.assertEqual(rows[1]["computed"], rows[1]["distinct"])

    def test_what_contexts_have_in_common_is_computed_once(self):
        self.check(1, 1.06)  # some questions begin with the same words, and meet in no pass

    def test_micro_batches_that_have_not_turned_lend_whole_pages(self):
        self.check(2, 1.25)  # up to 31 tokens of the header are computed again in each of twelve passes

    def test_a_prefix_tree_counts_each_beginning_once(self):
        self.assertEqual(choices.tree([[1, 2, 3], [1, 2, 4, 5], [1, 2, 3], [2], [1]]), 6)


class Plots(Rig):
    def test_a_single_point_is_drawn(self):
        for logarithmic in (False, True):
            plot = svg.Plot("one", "x", "y", x_log=logarithmic, y_log=logarithmic)
            plot.line("a", [(10, 2.5)])
            path = self.path("one.svg")
            plot.save(path)
            with open(path, encoding="utf-8") as f:
                drawn = f.read()
            self.assertIn("<circle", drawn)
            self.assertNotIn("nan", drawn)


class Best(Rig):
    def fits(self, c, point):
        words = [str(runs.shape(w, self.dir)) for w in [*c["args"], *point]]
        done = subprocess.run([PROGRAM, "bench", "--random-weights", "1", "--dry-run", "--device", "cpu", "--cache-dir",
                               self.path("cache"), "--hardware", Arguments.hardware, *words], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, check=False)
        self.assertIn(done.returncode, (0, 2), (c["name"], done.stderr))
        return done.returncode == 0

    def test_every_configuration_is_planned_and_a_point_of_its_grid_fits(self):
        for c in best.CONFIGS:
            self.assertTrue(self.fits(c, []), c["name"])
            self.assertTrue(any(self.fits(c, point) for point in reversed(c["grid"])), c["name"])


class Peers(Rig):
    CONFIG = dict(runs.llama_shape(2, 64, 96, 4, 2, 50), tie_word_embeddings=True)

    def read(self, path):
        """Keys with their values, tensors with their places, and where their data begins."""
        with open(path, "rb") as f:
            def take(form):
                return struct.unpack("<" + form, f.read(struct.calcsize("<" + form)))

            def word():
                return f.read(take("Q")[0]).decode()

            self.assertEqual(f.read(4), b"GGUF")
            version, tensor_count, key_count = take("IQQ")
            self.assertEqual(version, 3)
            keys, tensors = {}, {}
            for _ in range(key_count):
                key, kind = word(), take("I")[0]
                keys[key] = word() if kind == 8 else take({4: "I", 6: "f"}[kind])[0]
            for _ in range(tensor_count):
                name, dims = word(), take("I")[0]
                *shape, kind, at = take(f"{dims}QIQ")
                tensors[name] = (tuple(shape), kind, at)
            return keys, tensors, -(-f.tell() // 32) * 32

    def test_the_model_of_the_peer_is_whole(self):
        path = peers.write_gguf(self.path("model.gguf"), self.CONFIG)
        keys, tensors, data = self.read(path)
        self.assertEqual(keys["general.architecture"], "llama")
        self.assertEqual(keys["llama.attention.head_count_kv"], 2)
        self.assertAlmostEqual(keys["llama.rope.freq_base"], 500000)
        self.assertNotIn("output.weight", tensors)  # tied
        self.assertEqual(tensors["blk.1.attn_k.weight"][:2], ((64, 32), peers.BF16))
        self.assertEqual(tensors["blk.0.ffn_down.weight"][0], (96, 64))
        end = 0
        for shape, kind, at in tensors.values():
            self.assertEqual(at, -(-end // 32) * 32)
            end = at + math.prod(shape) * (2 if kind == peers.BF16 else 4)
        self.assertEqual(os.path.getsize(path), data + end)
        with open(path, "rb") as f:
            f.seek(data + tensors["output_norm.weight"][2])
            self.assertEqual(struct.unpack("<64f", f.read(256)), (1.0,) * 64)

    def test_matrices_of_both_sides_are_as_large(self):
        for name, c in peers.SHAPES.items():
            words = runs.model(runs.shape(name, self.dir), 8, 2, 1) + ["--weight-format", "bf16"]
            done = self.run_program([PROGRAM, "bench", "--random-weights", "1", "--dry-run", "--json", "--device", "cpu",
                                     "--hardware", Arguments.hardware, *map(str, words)])
            ledger_bytes = sum(i["bytes"] for i in json.loads(done.stdout)["ledger"] if i["purpose"] == "weights")
            found = sum(2 * rows * cols for _, rows, cols in peers.tensors(c))
            self.assertAlmostEqual(ledger_bytes, found, delta=4 << 20, msg=name)  # buffers are in whole huge pages


class Prefixes(Rig):
    """How long things take decides nothing here: exit status 1 is that they took longer than they should."""

    def said(self, *words):
        done = subprocess.run([sys.executable, "-B", os.path.join(os.path.dirname(runs.__file__), "prefixes.py"), "--build",
                               Arguments.build, "--shape", "opt-125m", "--records", "4", "--header", "64", "--own", "8",
                               "--new", "2", "--rounds", "1", *words], capture_output=True, text=True, check=False)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        return done.stdout

    def test_each_of_its_jobs_gives_results_that_sharing_does_not_change(self):
        self.assertRegex(self.said(), r"\| shared \| .* \| 288 \| 192 \|\n(.*\n)+.*results are equal\.")
        self.assertRegex(self.said("--samples", "3"), r"\| shared \| .* \| \d+ \| \d+ \|\n(.*\n)+.*results are equal\.")
        self.assertRegex(self.said("--apart"), r"That takes [\d.]+ x the time .*results are equal\.")

    def test_a_preflight_is_timed_with_and_without(self):
        self.assertRegex(self.said("--preflight", "50"), r"preflight of 50 records of 72 tokens: [\d.]+ s .*, [\d.]+ s with it: "
                                                         r"[+-][\d.]+ s per 100,000 records .*; \d+ MB at most")


class Ledger(Rig):
    def test_there_are_20_different_runs_and_the_program_takes_them(self):
        jobs = [*ledger.one_memory(), *ledger.three_tiers(), *ledger.families()]
        self.assertGreaterEqual(len({key for key, _ in jobs}), 20)
        self.assertEqual(len({str(words) for _, words in jobs}), len(jobs))
        for key, words in jobs:
            done = self.run_program([PROGRAM, "bench", "--random-weights", "1", "--dry-run", "--json", "--device", "cpu",
                                     "--cache-dir", self.path("cache"), "--hardware", Arguments.hardware,
                                     *[runs.shape(str(w), self.dir) for w in words]])
            self.assertGreater(json.loads(done.stdout)["memory"]["host"]["ledger"], 0, key)

    def test_a_run_is_kept(self):
        found = ledger.summary(runs.bench(
            Arguments.build, runs.model("opt-125m", 8, 2, 1) + ["--device", "cpu", "--cache-dir", self.path("cache")] +
            runs.spread("0/60/40", "0/0/100", "0/100/0", "host")))
        self.assertEqual(set(found["tiers"]), {"host", "disk", "store"})
        for tier, figures in found["tiers"].items():
            if tier != "host" or "ASAN_OPTIONS" not in os.environ:  # shadow memory would be counted
                self.assertTrue(ledger.is_right(*figures), (tier, figures))

    def test_what_is_outside_is_marked(self):
        mib = 1 << 20
        for said, measured, right in ((100, 100, True), (99, 100, False), (132, 100, True), (133, 100, False),
                                      (2060, 2000, True), (2061, 2000, False)):
            self.assertIs(ledger.is_right(said * mib, measured * mib), right)
        rows = [("a", dict(tiers={"host": [99 * mib, 100 * mib], "disk": [9 * mib, 9 * mib]}, error=None)),
                ("b", dict(error="no"))]
        text = "\n".join(ledger.table(rows))
        self.assertIn("| a | 99.0 | 100.0 | **under** -1.0 |", text)
        self.assertIn("| b | failed: no |", text)


class Recall(unittest.TestCase):
    """Words and full stops stand for tokens."""

    PROSE = " ".join(f"One of {i} things that were {'very ' * (i % 5)}far from {i * 7}." for i in range(900))

    @staticmethod
    def encode(texts):
        return [re.findall(r"\w+|\.", t) for t in texts]

    def test_what_is_asked_was_said_before(self):
        makers = {"story": lambda d: recall.story(d, self.PROSE, 3000), "pairs": lambda d: recall.pairs(d, 3000),
                  "copies": lambda d: recall.copies(d, self.PROSE, 3000), "repeats": lambda d: recall.repeats(d, 900)}
        for name, make in makers.items():
            asked = 0
            for seed in range(5):
                pieces = make(random.Random(seed))
                self.assertEqual(pieces, make(random.Random(seed)))
                said = set()
                for (before, _), (words, again) in zip(pieces, pieces[1:]):
                    if again:
                        self.assertIn((before, words), said, name)
                        asked += 1
                    said.add((before, words))
            self.assertGreater(asked, 20, name)

    def test_needles_stand_once_at_all_depths_and_prompts_are_as_long(self):
        depths = []
        for ahead, behind in recall.needle_windows(self.encode, ["<s>"], self.PROSE, 300, 20):
            self.assertEqual((len(ahead), ahead[0], len(behind)), (300, "<s>", 1))
            question = ahead[-6:]  # The number of the KEY is
            at = [i for i in range(300) if ahead[i:i + 6] == question]
            self.assertEqual(len(at), 2)
            self.assertEqual(ahead[at[0] + 6], behind[0])
            self.assertEqual(ahead.count(behind[0]), 1)
            depths.append(300 - at[0])
        self.assertLess(min(depths), 80)
        self.assertGreater(max(depths), 200)

    def test_a_late_question_is_not_in_the_prompt(self):
        for ahead, behind in recall.needle_windows(self.encode, ["<s>"], self.PROSE, 300, 5, late=True):
            self.assertEqual((len(ahead), len(behind)), (300, 7))
            at = [i for i in range(300) if ahead[i:i + 6] == behind[:6]]
            self.assertEqual([ahead[i + 6] for i in at], behind[6:])

    def test_copies_go_on_with_the_passage(self):
        for ahead, behind in recall.copy_windows(self.encode, ["<s>"], self.PROSE, 200, 30, 10, cue=12):
            self.assertEqual((len(ahead), len(behind)), (200, 30))
            cue = ahead[-12:]
            self.assertTrue(any(ahead[i:i + 42] == cue + behind for i in range(1, 200 - 42)))

    def test_too_little_prose_is_said(self):
        with self.assertRaisesRegex(ValueError, "too little prose"):
            recall.needle_windows(self.encode, [], self.PROSE[:900], 300, 2)


@unittest.skipIf("ASAN_OPTIONS" in os.environ, "the same prompts as elsewhere, and minutes")
class LookingUp(Rig):
    """tiny-llama finds what its prompts have said, unless the policy dropped it."""

    def test_policies_differ_by_what_is_found(self):
        data = os.environ["AQ_TEST_DATA"]
        asked = kv_quality.Asked(kv_quality.arguments([
            "--build", Arguments.build, "--model", os.path.join(data, "tiny-llama"), "--text",
            os.path.join(data, "tiny-opt", "golden", "eval.txt"), "--prompt-tokens", "400", "--score-tokens", "16",
            "--asked", "20", "--only", "bytes", "--host-memory", "512MiB"]))
        found = {text: asked.written("needle", text, self.dir) for text in (
            "kv-policy=full", "kv-policy=full kv-format=kivi4", "kv-policy=window kv-budget=80",
            "kv-policy=snapkv kv-budget=80")}
        whole, kivi, window, snapkv = found.values()
        self.assertGreaterEqual(whole["whole"], 0.95, found)
        self.assertGreaterEqual(kivi["whole"], 0.95, found)
        self.assertLess(window["whole"], 0.3, found)  # its last 76 tokens
        self.assertLess(window["share"], 0.5, found)
        self.assertGreater(snapkv["share"], 0.7, found)  # the question is among those that rank


@unittest.skipIf("ASAN_OPTIONS" in os.environ, "the sums are those of the script, and take minutes")
class KvQuality(Rig):
    def setUp(self):
        super().setUp()
        self.out = self.path("quality")
        self.words = [sys.executable, "-B", os.path.join(ROOT, "bench", "kv_quality.py"), "--build", Arguments.build,
                      "--model", MODEL, "--only", "bytes", "--prompt-tokens", "288", "--score-tokens", "32", "--windows",
                      "1", "--asked", "2", "--host-memory", "512MiB", "--output", self.out]
        self.rows = ["h2o 1:7", "tova", "snapkv", "h2o 1:7 int4", "full int8"]

    def test_every_row_has_as_many_bytes_and_none_could_have_a_slot_more(self):
        self.run_program([*self.words, "--rows", ",".join(self.rows)])
        with open(self.out + ".json", encoding="utf-8") as f:
            doc = json.load(f)["bytes"]
        whole = doc["text"]["full"]["kv_bytes"]
        self.assertEqual(whole, 10 * 32 * 6 * 2 * 256 * 2)  # slots, layers, keys and values, hidden, f16
        found = {(r["name"], r["share"]): (r, t) for r, t in zip(doc["rows"], doc["text"]["rows"])}
        # 288 + 32 are ten pages of 32 slots. snapkv keeps 31 new tokens, so one page holds no prompt worth the name;
        # tova attends one key more than it keeps; an int4 page of a head of 32 has 20 bytes a row for f16's 64.
        slots = {(n, s): int(r["options"].split("budget=")[1].split()[0]) for (n, s), (r, _) in found.items() if s}
        self.assertEqual(slots, {("h2o 1:7", 10): 32, ("h2o 1:7", 20): 64, ("h2o 1:7", 40): 128, ("tova", 10): 31,
                                 ("tova", 20): 63, ("tova", 40): 127, ("snapkv", 20): 33, ("snapkv", 40): 97,
                                 ("h2o 1:7 int4", 10): 96, ("h2o 1:7 int4", 20): 192, ("h2o 1:7 int4", 40): 320})
        for (name, share), (r, t) in found.items():
            self.assertEqual(t["sweep"], r["options"])
            if share:
                self.assertLessEqual(100 * t["kv_bytes"], share * whole, name)
        self.assertIn(("full int8", None), found)
        for kind, tokens in ("needle", 3), ("late", 9), ("copy", 32):
            self.assertEqual((doc[kind]["windows"], doc[kind]["score_tokens"]), (2, tokens))
            self.assertEqual([t["sweep"] for t in doc[kind]["rows"]], [r["options"] for r in doc["rows"]])
        self.assertEqual(set(doc["full"]), {"needle", "copy"})
        with open(self.out + ".md", encoding="utf-8") as f:
            self.assertEqual(f.read().count("\n| "), len(found) + 1)
        for name in "bytes", "needles", "copies":
            with open(f"{self.out}.{name}.svg", encoding="utf-8") as f:
                self.assertGreaterEqual(f.read().count("<circle"), len(found), name)

    def test_what_is_written_counts_until_the_first_wrong_token(self):
        """The model's own tokens in place of what should follow."""
        a = kv_quality.arguments(self.words[3:])
        asked = kv_quality.Asked(a)
        (one, behind), (two, other) = asked.windows["copy"]
        right = {}
        for ahead in (one, two):
            source, out = self.path("in.jsonl"), self.path("out.jsonl")
            runs.write(source, json.dumps({"id": 0, "prompt": ahead, "max_tokens": 32, "ignore_eos": True}))
            self.run_program([PROGRAM, "generate", "--model", MODEL, "--input", source, "--output", out, "--overwrite",
                              "--compute", "f32", "--host-memory", "512MiB", "--kv-format", "f16", "--quiet"])
            with open(out, encoding="utf-8") as f:
                right[tuple(ahead)] = json.loads(f.read())["tokens"]
        wrong = right[tuple(two)][:8] + [right[tuple(two)][8] ^ 1] + right[tuple(two)][9:]
        asked.windows["copy"] = [(one, right[tuple(one)]), (two, wrong)]
        self.assertEqual(asked.written("copy", "kv-policy=full", self.dir), {"share": (1 + 8 / 32) / 2, "whole": 0.5})


class Lines(unittest.TestCase):
    def test_a_missed_line_is_the_exit_status(self):
        lines = runs.Lines()
        lines.add("free", None, 3, "x")
        lines.add("at least", 2, 3, "x")
        self.assertEqual(lines.status(), 0)
        lines.add("at most", 2, 3, "x", at_most=True)
        self.assertEqual(lines.status(), 1)
        self.assertEqual([row.split("|")[2].strip() for row in lines.table()][2:], ["", ">= 2", "<= 2"])
        self.assertIn("**missed**", list(lines.table())[-1])


class Pictures(Rig):
    def test_a_table_becomes_pictures(self):
        table, rows = self.path("t.yaml"), self.path("rows.json")
        with open(table, "w", encoding="utf-8") as f:
            f.write("table: t\ndefaults: {prompt-len: 8, gen-len: 4, repeats: 2, warmup: 0}\nrows:\n"
                    "- {name: a, requests: 1, host-memory: 256MiB, published: {tok-s: 9, source: s}}\n"
                    "- {name: b, requests: 4, micro-batch: 4, host-memory: 512MiB}\n")
        self.run_program([PROGRAM, "bench", "--table", table, "--model", MODEL, "--device", "cpu", "--json", "--output",
                          rows])
        self.run_program([sys.executable, "-B", os.path.join(ROOT, "bench", "table_plots.py"), rows])
        for name in "batch", "budget", "roofline":
            with open(self.path(f"rows.{name}.svg"), encoding="utf-8") as f:
                drawn = f.read()
            self.assertTrue(xml.etree.ElementTree.fromstring(drawn).tag.endswith("svg"))
            self.assertGreaterEqual(drawn.count("<circle"), 2, name)
        with open(self.path("rows.batch.svg"), encoding="utf-8") as f:
            self.assertIn("published: a", f.read())

    def test_lines_hold_what_belongs_together(self):
        def row(seats, policy):
            return dict(model=dict(name="m"), row=dict(prompt_len=1, gen_len=2),
                        plan=dict(micro_batch=seats, micro_batches=1, kv_policy=policy, weight_format="int8",
                                  kv_format="f16"))
        lines = table_plots.lines_by([row(4, "full"), row(1, "full"), row(2, "h2o")], runs.seats)
        self.assertEqual({k: [x for x, _ in v] for k, v in lines.items()},
                         {"m 1+2, int8": [1, 4], "m 1+2, h2o, int8": [2]})


if __name__ == "__main__":
    unittest.main()
