# SPDX-License-Identifier: Apache-2.0
"""The Python package over the shared library, on the small trained model: it gives what the program
gives.  AQUIFER_LIBRARY names the library; the harness that it is a model of is played by a few
lines."""
import fcntl
import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
import unittest

import rig
from rig import MODEL, PROGRAM, lines_of

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
import aquifer  # noqa: E402

TEXT = os.path.join(MODEL, "golden", "eval.txt")
RECORDS = [{"id": "a", "prompt": "She said", "max_tokens": 9, "logprobs": 1},
           {"id": "b", "prompt": ["It was", "The sea"], "max_tokens": 3},
           {"custom_id": "c", "method": "POST", "url": "/v1/completions",
            "body": {"prompt": "A man", "max_tokens": 20}},
           {"request_type": "loglikelihood", "arguments": ["She said", " nothing"]},
           {"id": "bad", "prompt": 5},
           {"custom_id": 7, "method": "POST", "url": "/v1/completions", "body": {"prompt": "A"}},
           {"id": "d", "prompt": "Then", "choices": [" he", " she was"]}]
REQUEST = {"custom_id": "twice", "method": "POST", "url": "/v1/completions",
           "body": {"prompt": "A man", "max_tokens": 2}}


# Few seats: else a session takes as much memory as there is.
SMALL = {"device": "cpu", "compute": "f32", "micro_batch": 4, "micro_batches": 2}


def engine(**options):
    return aquifer.Engine(MODEL, **{**SMALL, **options})


def timeless(results):
    for r in results:
        if r.get("response"):
            r["response"]["body"].pop("created", None)
    return results


class Package(rig.Rig):
    def test_results_are_those_of_the_program(self):
        self.write(RECORDS)
        self.generate("--compute", "f32", "--ordered", status=3)
        want = timeless(lines_of(self.output))
        with engine() as e:
            self.assertEqual(timeless(list(e.generate(RECORDS, ordered=True))), want)
            found = [r.get("id", r.get("request")) for r in e.generate(iter(RECORDS))]
            self.assertNotEqual(found, [r.get("id", r.get("request")) for r in want])
            self.assertEqual(len(found), len(want))

    def test_a_batch_function_gives_columns_what_the_program_gives_records(self):
        """As Ray Data and Dask call it: columns in, columns out, in any division, from a pickled copy."""
        rows = [{"id": f"r{i}", "prompt": p, "max_tokens": 3 + i, "temperature": 0.9}
                for i, p in enumerate(["She said", "It was", [5, 6, 7], "A man", "Then", "The sea"])]
        rows.append({"id": "bad", "prompt": "Too long", "max_tokens": 10 ** 6, "temperature": 0.0})
        self.write(rows)
        self.generate("--compute", "f32", "--ordered", status=3)
        want = lines_of(self.output)
        batch = pickle.loads(pickle.dumps(aquifer.Batch(MODEL, prompt="question", prefix="out_", **SMALL)))
        self.addCleanup(batch.close)
        got = {name: [] for name in ("out_text", "out_tokens", "out_finish_reason", "out_error", "question", "other")}
        for part in (rows[:2], rows[2:]):
            columns = {name: [r[name] for r in part] for name in ("id", "max_tokens", "temperature")}
            columns["question"] = [r["prompt"] for r in part]
            columns["other"] = ["kept"] * len(part)
            result = batch(columns)
            for name, values in got.items():
                values += result[name]
        self.assertEqual(got["out_tokens"], [r.get("tokens", []) for r in want])
        self.assertEqual(got["out_text"], [r.get("text") for r in want])
        self.assertEqual(got["out_error"][:-1], [None] * (len(rows) - 1))
        self.assertTrue(got["out_error"][-1].startswith("context_length_exceeded: "))
        self.assertEqual(got["other"], ["kept"] * len(rows))
        self.assertEqual(batch(rows)[0]["text"], want[0]["text"])
        with self.assertRaisesRegex(KeyError, "no column 'question' in the batch; it has id"):
            batch({"id": [1]})
        with self.assertRaisesRegex(TypeError, "found int"):
            batch(5)

    def test_a_batch_function_takes_whatever_assigns_columns(self):
        class Frame(dict):
            """What of a DataFrame counts."""
            def assign(self, **new):
                return Frame(self, **new)
        batch = aquifer.Batch(MODEL, max_tokens=2, **SMALL)
        self.addCleanup(batch.close)
        frame = batch(Frame(prompt=["She said"]))
        self.assertIsInstance(frame, Frame)
        self.assertEqual(len(frame["tokens"][0]), 2)

    def test_a_gap_in_a_column_is_a_field_that_the_record_lacks(self):
        """As DataFrames and numpy columns have them: NaN, and beside it integers that became floats."""
        class Absent:
            """As pandas.NA."""
            def __ne__(self, other):
                return self

            def __bool__(self):
                raise TypeError("boolean value of NA is ambiguous")
        nan = float("nan")
        batch = aquifer.Batch(MODEL, max_tokens=2, **SMALL)
        self.addCleanup(batch.close)
        columns = {"prompt": ["She said", "It was", "Then", nan], "max_tokens": [3.0, nan, None, 1.0],
                   "temperature": [nan, 0.0, Absent(), 1.0], "id": ["a", nan, "c", "d"]}
        found = batch(columns)
        self.assertEqual(found["error"][:3], [None] * 3)
        self.assertEqual([len(t) for t in found["tokens"]], [3, 2, 2, 0])
        self.assertIn("prompt", found["error"][3])

    def test_a_text_is_a_prompt(self):
        with engine(max_tokens=4) as e:
            one, = e.generate(["She said"])
            other, = e.generate([{"prompt": "She said"}])
            self.assertEqual(one["text"], other["text"])
            self.assertEqual(len(one["tokens"]), 4)
            with self.assertRaisesRegex(TypeError, "expected a record .* found int"):
                list(e.generate([5]))

    def test_records_are_taken_as_seats_become_free(self):
        taken = 0

        def records():
            nonlocal taken
            for i in range(1000):
                taken += 1
                yield {"prompt": "She said", "max_tokens": 2 + i % 3}

        with engine() as e:
            results = e.generate(records())
            next(results)
            self.assertLess(taken, 1000)
            self.assertEqual(len(list(results)), 999)

    def test_an_iteration_that_ends_early_drops_its_records(self):
        with engine() as e:
            many = [{"prompt": "She said", "max_tokens": n} for n in range(1, 40)]
            results = e.generate(many)
            next(results)
            with self.assertRaisesRegex(RuntimeError, "is not over yet"):
                next(e.generate(["It was"]))
            results.close()
            left = e.generate(many)
            next(left)
            e.close()
            with self.assertRaisesRegex(RuntimeError, "the engine was closed"):
                next(left)
            found = list(e.generate([REQUEST, {"prompt": "It was", "max_tokens": 3}, REQUEST]))
            self.assertEqual(sorted(str(r.get("custom_id")) for r in found),
                             ["None", "twice", "twice"])
            self.assertEqual([len(r["tokens"]) for r in found if "tokens" in r], [3])

    def test_records_that_share_an_id_or_have_none_keep_their_places(self):
        def request(custom_id, count, **body):
            return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions",
                    "body": {"prompt": "A man", "max_tokens": count, "ignore_eos": True, **body}}

        with engine() as e:
            results = list(e.generate([request("x", 40), request("x", 2), request("o", 3),
                                       request("no number", 3, temperature=float("nan")),
                                       request("no text \ud800", 3), request("x", 7), "She said"],
                                      ordered=True))
        bodies = [r.get("response", {}).get("body", {}) for r in results]
        self.assertEqual([b.get("usage", {}).get("completion_tokens") for b in bodies],
                         [40, 2, 3, None, None, 7, None])
        self.assertEqual([b["error"]["code"] for b in bodies[3:5]], ["invalid_json"] * 2)
        self.assertIn("text", results[6])

    def test_scores(self):
        pairs = [("She said", " nothing"), ("The old house", " stood in the rain"),
                 ([2, 5, 6], [7, 8])]
        with engine() as e:
            scores = e.score(pairs)
            results = e.generate([{"prompt": p, "continuation": c} for p, c in pairs],
                                 ordered=True)
            self.assertEqual(scores, [(r["loglikelihood"], r["tokens"], r["is_greedy"])
                                      for r in results])
            text, = e.score_texts(["She said nothing"])
            parts = e.score([("", "She said"), ("She said", " nothing")])
            self.assertAlmostEqual(text.loglikelihood, sum(p.loglikelihood for p in parts),
                                   delta=1e-4)
            with self.assertRaisesRegex(aquifer.RecordError, "expected at least one token") as c:
                e.score([("She said", "")])
            self.assertEqual(c.exception.record_code, "empty_continuation")
        with engine(kv_policy="h2o", kv_budget="3") as e:
            self.assertNotEqual(e.score(pairs), scores)

    def test_a_text_is_scored_through_windows_of_what_the_engine_takes(self):
        with engine(max_total_tokens=8) as e:
            texts = e.tokenize(["the old man said that she was a little house in sea and rain"] * 2)
            ids = [t for text in texts for t in text if t != 2][:19]
            text, = e.score_texts([ids])
            # 2 stands in front; the last window reaches back over what is scored, so that it is whole.
            windows = [([2], ids[:8]), ([ids[7]], ids[8:16]), (ids[10:16], ids[16:])]
            parts = e.score(windows)
        self.assertEqual(text.tokens, 19)
        self.assertAlmostEqual(text.loglikelihood, sum(p.loglikelihood for p in parts), delta=1e-4)

    def test_tokens(self):
        e = engine()
        self.assertEqual(e.tokenize(["She", "", "She\u2028said"])[:2], [[2, 3351], [2]])
        self.assertEqual(e.tokenize(["She"], bos="never"), [[3351]])
        with self.assertRaises(aquifer.RecordError):
            e.tokenize(["She", "\ud800"])

    def test_commands_on_the_same_model(self):
        e = aquifer.Engine(MODEL, device="cpu", kv_policy="h2o", kv_budget="40", overlong="clip")
        found = e.eval(text=TEXT, prompt_tokens=60, score_tokens=20, windows=2)
        self.assertEqual(found["tokens_scored"], 40)
        self.assertEqual(found["policy"]["name"], "h2o")
        words = ["--prompt-len", "100", "--gen-len", "20", "--requests", "50", "--hardware",
                 "t4-208gb"]
        want = self.plan("--model", MODEL, *words)
        found = aquifer.Engine(MODEL).plan(prompt_len="100", gen_len="20", requests=50,
                                           hardware="t4-208gb")
        self.assertEqual(found["predicted"], want["predicted"])
        samples = {"max_tokens": 4, "temperature": 0.5, "n": 2}
        found = aquifer.Engine(MODEL, **samples).plan(prompt_len="100", gen_len="20", requests=50,
                                                      hardware="t4-208gb")
        self.assertEqual(found["predicted"], want["predicted"])
        self.write([{"prompt": "She"}] * 5)
        found = aquifer.Engine(MODEL, **samples).plan(input=self.input, hardware="t4-208gb")
        self.assertEqual((found["workload"]["requests"], found["workload"]["gen_len"]), (10, [4, 4]))
        tight = {"prompt_len": 100, "gen_len": 20, "hardware": "t4-208gb", "host_memory": "1MiB",
                 "device_memory": "1MiB"}
        with self.assertRaises(aquifer.AquiferError) as c:
            aquifer.Engine(MODEL).plan(**tight)
        self.assertEqual(c.exception.exit_status, 2)
        self.assertFalse(aquifer.Engine(MODEL).plan(check=False, **tight)["feasible"])

    def test_whole_commands(self):
        self.write(RECORDS)
        lines = []
        done = aquifer.run(["generate", "--model", MODEL, "--device", "cpu", "--input", self.input,
                            "--output", self.output],
                           on_message=lambda level, text: lines.append((level, text)))
        self.assertEqual((done.status, done.output), (3, b""))
        self.assertEqual(len(lines_of(self.output)), len(RECORDS))
        self.assertIn("records: 7 (5 valid, 2 invalid), plain 4, batch 2, harness 1",
                      [text for level, text in done.messages])
        self.assertLessEqual(set(done.messages), set(lines))
        self.assertEqual(aquifer.run(["--version"]).text.split()[1], aquifer.version().split()[0])
        self.assertIn("schema", aquifer.run({"command": "info", "json": True}).json())
        with self.assertRaisesRegex(aquifer.AquiferError, "unknown option '--modell'"):
            aquifer.run(["generate", "--modell", MODEL])
        with self.assertRaisesRegex(aquifer.AquiferError, "no such directory") as c:
            aquifer.run(["tokenize", "--model", "/none", "--input", TEXT])
        self.assertEqual(c.exception.exit_status, 2)
        self.assertEqual(aquifer.run(["tokenize", "--model", "/none", "--input", TEXT],
                                     check=False).status, 2)

    def test_errors_say_what_is_wrong(self):
        with self.assertRaisesRegex(aquifer.AquiferError, "unknown option 'kv_bugdet'.*kv-budget"):
            engine(kv_bugdet="20%").open()
        with self.assertRaises(aquifer.AquiferError) as c:
            aquifer.Engine("/none").open()
        self.assertEqual((c.exception.exit_status, c.exception.text),
                         (2, "model '/none': no such directory"))

    def test_an_exception_stops_the_run_and_the_engine_goes_on(self):
        class Stop(Exception):
            pass

        def stop(*_):
            raise Stop

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, stop))
        with engine() as e:
            with self.assertRaises(Stop):
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                for _ in e.generate({"prompt": "She said", "max_tokens": 900, "ignore_eos": True}
                                    for _ in range(10000)):
                    pass
            one, = e.generate([{"prompt": "She said", "max_tokens": 2}])
            self.assertEqual(len(one["tokens"]), 2)

        def refuse(level, text):
            raise Stop

        self.write(RECORDS)
        with self.assertRaises(Stop):
            aquifer.run(["generate", "--model", MODEL, "--input", self.input, "--output",
                         self.output], on_message=refuse)

    def test_an_engine_that_waits_for_a_packer_can_be_stopped(self):
        class Stop(Exception):
            pass

        def stop(level, text):
            if "waiting for it to end" in text:
                raise Stop

        disk = {"placement": "weights=0/0/100 kv=0/100/0 hidden=0/100/0", "disk_dir_any": True,
                "cache_dir": self.path("cache")}
        with engine(**disk) as e:
            e.open()
        store, = [n for n in os.listdir(self.path("cache")) if n.startswith("tiny-opt")]
        store = os.path.join(self.path("cache"), store)
        shutil.rmtree(store)
        os.mkdir(store + ".partial")
        with open(os.path.join(store + ".partial", "journal"), "wb") as journal:
            fcntl.flock(journal, fcntl.LOCK_EX)
            gives_up = threading.Timer(20, fcntl.flock, (journal, fcntl.LOCK_UN))
            gives_up.start()
            begin = time.monotonic()
            with self.assertRaises(Stop):
                engine(on_message=stop, **disk).open()
            self.assertLess(time.monotonic() - begin, 10)
            gives_up.cancel()
            gives_up.join()

    def test_a_bar_where_tqdm_is(self):
        bars = []

        class Bar:
            def __init__(self, total, **_):
                self.total, self.count, self.closed = total, 0, False
                bars.append(self)

            def update(self):
                self.count += 1

            def close(self):
                self.closed = True

        auto = types.ModuleType("tqdm.auto")
        auto.tqdm = Bar
        kept = {name: sys.modules.get(name) for name in ("tqdm", "tqdm.auto")}
        self.addCleanup(lambda: [sys.modules.pop(n) if m is None else sys.modules.update({n: m})
                                 for n, m in kept.items()])
        with engine(max_tokens=2) as e:
            sys.modules.update({"tqdm": types.ModuleType("tqdm"), "tqdm.auto": auto})
            list(e.generate(["She said", "It was"], progress=True))
            list(e.generate(iter(["She said"]), progress=True))
            list(e.generate(["She said"]))
            self.assertEqual([(b.total, b.count, b.closed) for b in bars],
                             [(2, 2, True), (None, 1, True)])
            sys.modules.update({"tqdm": None, "tqdm.auto": None})  # is not installed
            self.assertEqual(len(list(e.generate(["She said"], progress=True))), 1)

    def test_it_needs_python_and_the_library_alone(self):
        script = ("import sys; sys.modules['numpy'] = None; import aquifer; "
                  "print(aquifer.version())")
        env = {**os.environ, "PYTHONPATH": sys.path[0]}
        done = self.run_program([sys.executable, "-S", "-c", script], env=env)
        self.assertEqual(done.stdout.decode().strip(), aquifer.version())
        env["AQUIFER_LIBRARY"] = self.path("none.so")
        done = self.run_program([sys.executable, "-S", "-c", script], status=1, env=env)
        self.assertRegex(done.stderr.decode(), "ImportError: libaquifer.so.0 is not found: "
                         "install Aquifer, or set AQUIFER_LIBRARY to its path")

    def test_it_says_its_version_and_that_it_carries_no_program(self):
        self.assertEqual(aquifer.__version__, aquifer.version().split()[0])
        with self.assertRaisesRegex(AttributeError, "no attribute 'nothing'"):
            aquifer.nothing
        env = {**os.environ, "PYTHONPATH": sys.path[0]}
        done = self.run_program([sys.executable, "-B", "-m", "aquifer", "--version"], status=1, env=env)
        self.assertRegex(done.stderr.decode(), "this Python package carries no program")

    def test_what_is_public_is_typed_and_documented(self):
        self.assertTrue(os.path.exists(os.path.join(sys.path[0], "aquifer", "py.typed")))
        public = [getattr(aquifer, name) for name in aquifer.__all__]
        public += [f for name, f in vars(aquifer.Engine).items()
                   if callable(f) and not name.startswith("_")]
        for thing in public:
            if isinstance(thing, (type, types.FunctionType)):
                self.assertTrue(thing.__doc__, thing)
            if isinstance(thing, types.FunctionType):
                self.assertIn("return", thing.__annotations__, thing)


# What of the harness the class uses: names and meanings are lm-eval 0.4's.
HARNESS = {
    "__init__.py": "",
    "models.py": "",
    "api/__init__.py": "",
    "api/registry.py": """
        def register_model(name):
            return lambda of: of
        """,
    "api/model.py": """
        class TemplateLM:
            class cache_hook:
                kept = []

                @classmethod
                def add_partial(cls, *what):
                    cls.kept.append(what)

            def loglikelihood(self, requests, disable_tqdm=False):
                ready = []
                for text, more in (r.args for r in requests):
                    first = self.tok_encode(text) if text else [self.prefix_token_id]
                    whole = self.tok_encode(text + more) if text else first + self.tok_encode(
                        more, add_special_tokens=False)
                    ready.append(((text, more), first, whole[len(first):]))
                return self._loglikelihood_tokens(ready, disable_tqdm=disable_tqdm)
        """,
    "utils.py": """
        def get_rolling_token_windows(ids, prefix, width, context):
            for at in range(0, len(ids), width):
                yield [prefix, *ids][at:at + width], ids[at:at + width]

        def make_disjoint_window(pair):
            return pair[0][:1], pair[1]
        """,
}


class Request:
    def __init__(self, *args):
        self.args = args


class Harness(rig.Rig):
    def model(self, **options):
        for name, text in HARNESS.items():
            path = self.path(os.path.join("lm_eval", name))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as f:
                f.write(textwrap.dedent(text))
        sys.path.insert(1, self.dir)
        self.addCleanup(sys.path.remove, self.dir)
        self.addCleanup(lambda: [sys.modules.pop(n) for n in list(sys.modules)
                                 if n.split(".")[0] == "lm_eval" or n == "aquifer.lm_eval"])
        from aquifer.lm_eval import AquiferLM
        return AquiferLM(MODEL, batch_size=8, **SMALL, **options)

    def test_scores_are_the_engines(self):
        pairs = [("She said", " nothing"), ("", "The old house"), ("</s>She said", " nothing"),
                 ("It was" + 600 * " very", " good")]
        for options, front in (({}, [2]), ({"add_bos_token": False}, []),
                               ({"kv_policy": "h2o", "kv_budget": "20%"}, [2])):
            with self.subTest(**options):
                m = self.model(max_length=512, **options)
                found = m.loglikelihood([Request(*p) for p in pairs], disable_tqdm=True)
                ids = m._engine.tokenize([p + c for p, c in pairs], bos="never")
                said = m._engine.tokenize(["She said"], bos="never")[0]
                want = m._engine.score([(front + said, ids[0][len(said):]), ([2], ids[1]),
                                        ([2] + said, ids[2][len(said) + 1:]),
                                        (ids[3][-513:-1], ids[3][-1:])])
                self.assertEqual(found, [(s.loglikelihood, s.is_greedy) for s in want])
                self.assertEqual(m.cache_hook.kept[-len(pairs)], ("loglikelihood", pairs[0], found[0]))

    def test_texts_and_generated_ones(self):
        with open(TEXT, encoding="utf-8") as f:
            text = f.read(4000)
        m = self.model(add_bos_token=False)
        ids = m._engine.tokenize([text], bos="never")[0]
        self.assertGreater(len(ids), m.max_length)
        found = m.loglikelihood_rolling([Request("She said"), Request(text)], disable_tqdm=True)
        want = m._engine.score([([2], ids[:1024]), ([ids[1023]], ids[1024:])])
        self.assertEqual(found[1], sum(s.loglikelihood for s in want))
        self.assertEqual(found[0], m._engine.score_texts(["She said"])[0].loglikelihood)
        given = {"until": [","], "max_gen_toks": 9}
        one, = m.generate_until([Request("She said", given)], disable_tqdm=True)
        want, = m._engine.generate([{"prompt": m.tok_encode("She said"), "max_tokens": 9,
                                     "stop": [","]}])
        self.assertEqual(one, want["text"])
        with self.assertRaisesRegex(ValueError, "leave no room for a prompt in a context of 1024"):
            m.generate_until([Request("a", {"max_gen_toks": 1024})])
        self.assertEqual(m.get_model_info()["aquifer"]["model"]["name"], "tiny-opt")


if __name__ == "__main__":
    unittest.main()
