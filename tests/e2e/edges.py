#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`aquifer generate` at its edges: hostile records, the documents it leaves for programs to read,
limits of the machine, and users who may not write."""
import filecmp
import json
import os
import resource
import shutil
import subprocess
import sys
import unittest

from rig import MODEL, PROGRAM, Rig, lines_of

DEPTH_MAX = 512
LINE_BYTES_MAX = 64 << 20


def refuse_constant(name):
    raise ValueError(f"{name} is not JSON")


def document(path):
    """One JSON document, without NaN, Infinity or a key that is there twice."""
    def unique(pairs):
        keys = [k for k, _ in pairs]
        if len(keys) != len(set(keys)):
            raise ValueError(f"a key is there twice: {keys}")
        return dict(pairs)

    with open(path, encoding="utf-8") as f:
        return json.load(f, parse_constant=refuse_constant, object_pairs_hook=unique)


class Records(Rig):
    """Whatever stands in a line, it costs that record at most."""

    NUMBERS = ["1e400", "-1e400", "-0", "-0.0", "1e-400", "5e-324", "1e308", "NaN", "-Infinity",
               "18446744073709551616", "9223372036854775808", "-9223372036854775809",
               "9223372036854775807", "-9223372036854775808", "4294967296", "-1", "0.5", "null",
               "true", '"1"', "[]", "{}", "[1e400]", "[-1]", "[4294967296]"]
    FIELDS = ["max_tokens", "max_completion_tokens", "min_tokens", "temperature", "top_p", "top_k",
              "min_p", "seed", "stop", "stop_token_ids", "include_stop_str_in_output",
              "ignore_eos", "logprobs", "echo", "n", "repetition_penalty", "presence_penalty",
              "frequency_penalty", "best_of", "prompt", "id", "metadata", "user", "model"]

    def number_lines(self):
        for field in self.FIELDS:
            for k, number in enumerate(self.NUMBERS):
                members = {"id": f'"{field}-{k}"', "prompt": '"a"', "max_tokens": "2"}
                if field == "max_completion_tokens":
                    del members["max_tokens"]
                members[field] = number
                yield "{" + ",".join(f'"{m}":{v}' for m, v in members.items()) + "}"

    def byte_lines(self):
        deep = [b"[" * d for d in (DEPTH_MAX - 1, DEPTH_MAX, 2100, 1000000)]
        for d in deep:
            yield d
            yield b'{"a":' * len(d)
            yield b'{"prompt":"a","max_tokens":1,"metadata":' + d + b"]" * len(d) + b"}"
            yield b'{"prompt":' + d + b"]" * len(d) + b"}"
        yield b"\x00"
        yield b'{"prompt":"a\x00b"}'
        yield b'{"prompt":"a\\u0000b","max_tokens":1}'
        yield b'{"a\\u0000b":1,"prompt":"a"}'
        yield b'{"prompt":"a"}\x00'
        yield b'{"prompt":"a"}{"prompt":"a"}'
        for bad in (b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"):
            yield bad
            yield b'{"prompt":"' + bad + b'"}'
        for half in (b"\\ud800", b"\\udc00", b"\\ud800\\ud800", b"\\udc00\\ud800", b"\\u12"):
            yield b'{"prompt":"' + half + b'"}'
        yield b'{"prompt":"a","prompt":"b"}'
        yield b'{"prompt":"a","stop":' + b'["' + b"x" * 2000 + b'"]}'
        yield b'{"prompt":[' + b",".join([b'"a"'] * 5000) + b"]}"
        yield b'{"prompt":[' + b",".join([b"5"] * 100000) + b"]}"
        yield b'{"id":"' + b"i" * (1 << 20) + b'","prompt":"a","max_tokens":1}'
        head = b'{"prompt":"'
        yield head + b"a" * (LINE_BYTES_MAX - len(head) - 2) + b'"}'
        yield head + b"a" * (LINE_BYTES_MAX - len(head) - 1) + b'"}'
        yield b"x" * (LINE_BYTES_MAX + 4096)

    def test_a_bad_line_costs_one_error_record(self):
        lines = list(self.number_lines()) + list(self.byte_lines())
        self.write(lines)
        words = ("--allow-errors", "--ordered", "--host-memory", "2GiB")
        self.generate(*words, status=3)
        results = lines_of(self.output)
        self.assertEqual(len(results), len(lines))
        for line, r in zip(lines, results):
            error = r.get("error")
            if error:
                self.assertTrue(error["code"] and error["message"].isprintable(), line[:200])
                self.assertEqual(error["line"], results.index(r) + 1)
            else:
                self.assertEqual(r["usage"]["prompt_tokens"] > 0, True)
        # What a reader of JSON can take, and what is in range, is not refused.
        good = {r["id"] for r in results if not r.get("error")}
        for name in ("max_tokens-17", "temperature-2", "temperature-4", "top_k-3", "seed-12",
                     "seed-13", "seed-2", "min_p-16", "metadata-24", "frequency_penalty-15"):
            self.assertIn(name, good)
        self.generate(*words)  # all of it can be read back
        self.assertEqual(len(lines_of(self.output)), len(lines))

    def test_a_line_that_is_too_long_for_the_memory_is_named(self):
        self.write([{"prompt": "a"}, {"prompt": "a", "metadata": "x" * (20 << 20)}])
        done = self.generate("--host-memory", "64MiB", status=2)
        self.assertIn(b"warning: the longest input line has 21.0 MB", done.stderr)

    def test_names_of_any_letters(self):
        strange = "a\u2028\U0001f600\u00e9'\"\\\n"
        self.output = self.path("\u00e9 '\U0001f600")
        self.write([{"id": strange, "prompt": "a", "max_tokens": 1, "metadata": {strange: strange},
                     strange * 40: 1}, {"id": strange + "2", "prompt": "a", "temperature": strange}])
        self.generate("--report", self.path("r"), status=3)
        good, bad = sorted(lines_of(self.output), key=lambda r: r["index"])
        self.assertEqual((good["id"], good["metadata"]), (strange, {strange: strange}))
        self.assertEqual(bad["id"], strange + "2")
        document(self.output + ".status.json")
        document(self.path("r"))


class Documents(Rig):
    """Reports, status and manifest have every key of the manual, of its type, at every end."""

    REAL, WHOLE = (int, float), int
    MAYBE = (int, float, type(None))
    LANE = {"busy_s": REAL, "bytes": MAYBE, "gb_s": MAYBE, "ceiling_gb_s": MAYBE}
    MEMORY = {"host": {"budget": WHOLE, "ledger": WHOLE, "measured": WHOLE}}
    REPORT = {
        "schema": WHOLE, "aquifer": {"version": str, "commit": str},
        "model": {"name": str, "hash": str, "parameters": WHOLE},
        "device": {"backend": str, "isa": str, "threads": WHOLE}, "plan": (dict, type(None)),
        "requests": WHOLE, "errors": WHOLE, "prompt_tokens": WHOLE, "shared_tokens": WHOLE, "prefill_tokens": WHOLE,
        "generated_tokens": WHOLE, "load_s": REAL, "pack_s": REAL, "prefill_s": REAL, "decode_s": REAL, "mixed_s": REAL,
        "idle_s": REAL, "total_s": REAL, "prefill_tok_s": MAYBE, "decode_tok_s": MAYBE,
        "gen_tok_s": MAYBE, "total_tok_s": MAYBE, "lanes": {"compute": LANE, "control": LANE},
        "memory": MEMORY, "predicted": (dict, type(None)), "lossy": [str], "weights": str,
        "emulated": (bool, dict), "environment": {"cpu": str, "cores": WHOLE},
        "command": str, "state": str, "resumed": WHOLE, "total": WHOLE,
    }
    STATUS = {
        "schema": WHOLE, "state": str, "done": WHOLE, "total": WHOLE, "errors": WHOLE,
        "in_flight": WHOLE, "gen_tok_s": MAYBE, "eta_s": MAYBE, "pass_s": MAYBE,
        "lanes": {"compute": LANE, "control": LANE}, "memory": (dict, type(None)),
        "last_error": (str, type(None)),
    }
    MANIFEST = {"schema": WHOLE, "values": {
        "version": str, "model": str, "model_hash": str, "tokenizer_hash": str,
        "weight_format": str, "kv_format": str, "compute": str, "backend": str, "isa": str,
        "kv_policy": str, "bos": str, "max_tokens": WHOLE, "temperature": REAL, "top_p": REAL,
        "seed": WHOLE, "input_bytes": WHOLE, "input_hash": str}}

    def assert_like(self, found, want, at):
        if isinstance(want, dict):
            self.assertIsInstance(found, dict, at)
            for key, kind in want.items():
                self.assertIn(key, found, at)
                self.assert_like(found[key], kind, f"{at}.{key}")
        elif isinstance(want, list):
            self.assertIsInstance(found, list, at)
            for i, item in enumerate(found):
                self.assert_like(item, want[0], f"{at}[{i}]")
        else:
            self.assertIsInstance(found, want, at)
            if isinstance(found, bool):
                self.assertIn(bool, want if isinstance(want, tuple) else (want,), at)

    def check(self, *words, status=0, state="done"):
        report = self.path("report.json")
        if os.path.exists(report):
            os.remove(report)
        self.generate("--report", report, *words, status=status)
        r, s = document(report), document(self.output + ".status.json")
        self.assert_like(r, self.REPORT, "report")
        self.assert_like(s, self.STATUS, "status")
        self.assert_like(document(self.output + ".manifest.json"), self.MANIFEST, "manifest")
        self.assertEqual((r["state"], s["state"]), (state, state))
        self.assertAlmostEqual(r["total_s"],
                               r["prefill_s"] + r["decode_s"] + r["mixed_s"] + r["idle_s"],
                               delta=1e-6)
        return r, s

    def test_after_every_kind_of_end(self):
        bad = {"id": "bad", "prompt": "a", "max_tokens": 5000}
        self.write(self.many(20) + [bad])
        r, s = self.check("--limit", "10")
        self.assertEqual((r["requests"], s["done"], s["total"]), (10, 10, 10))
        self.assertIsInstance(r["plan"], dict)
        self.assertIsInstance(s["memory"]["host"]["measured"], int)
        r, s = self.check("--limit", "10")  # nothing to do
        self.assertEqual((r["requests"], r["resumed"], r["plan"]), (0, 10, None))
        r, s = self.check("--micro-batch", "1", "--micro-batches", "1", status=3)
        self.assertEqual((r["requests"], r["errors"], s["errors"], s["done"]), (11, 1, 1, 21))
        r, s = self.check("--retry-errors", status=3)  # nothing for the model to do
        self.assertEqual((r["requests"], r["errors"], r["generated_tokens"]), (1, 1, 0))

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

        self.run_program(self.words("--overwrite", "--report", self.path("report.json")),
                         status=4, preexec_fn=limit)
        self.assert_like(document(self.output + ".status.json"), self.STATUS, "status")
        self.assertEqual(document(self.output + ".status.json")["state"], "failed")

    def test_standard_output_gets_one_document(self):
        self.write(self.many(5))
        for words, want in (((), self.REPORT), ((), self.REPORT), (("--dry-run",), {
                "schema": int, "preflight": {"records": int}, "plan": (dict, type(None))})):
            done = self.generate("--json", *words)
            self.assert_like(json.loads(done.stdout, parse_constant=refuse_constant), want, "json")

    def test_a_status_in_words_has_the_unit_of_each_number(self):
        status = {
            "schema": 1, "state": "running", "done": 49, "total": 892, "errors": 18,
            "in_flight": 470, "gen_tok_s": 103.25, "eta_s": None, "pass_s": 0.85, "passes": 12,
            "elapsed_s": 200.0, "lanes": {
                "compute": {"busy_s": 3.1, "bytes": None, "gb_s": None, "ceiling_gb_s": None},
                "disk_read": {"busy_s": 8.2, "bytes": 2877358080, "gb_s": 0.383,
                              "ceiling_gb_s": 0.38}},
            "memory": {"host": {"budget": 1 << 30, "ledger": 12 << 20, "measured": 11 << 20}},
            "last_error": None, "later_s": 1.5, "updated": 1}
        with open(self.path("x.status.json"), "w", encoding="utf-8") as f:
            json.dump(status, f)
        done = self.run_program([PROGRAM, "status", self.path("x")])
        written, *lines = done.stdout.decode().splitlines()
        self.assertRegex(written, "^written      .* ago$")
        self.assertEqual(lines, """\
state        running
done         49
total        892
errors       18
in_flight    470
gen_tok_s    103.2 tok/s
eta_s        -
pass_s       850 ms
passes       12
elapsed_s    3 m 20 s
lanes                   busy       moved        rate     ceiling
  compute                3 s           -           -           -
  disk_read              8 s     2.7 GiB  0.383 GB/s   0.38 GB/s
memory                budget      ledger    measured
  host               1.0 GiB    12.0 MiB    11.0 MiB
last_error   -
later_s      1.5""".splitlines())

    def test_a_status_that_is_torn_or_missing(self):
        for text in (None, b"", b'{"state":"runn', b"[1]", b"\xff", b'{"state": NaN}'):
            if text is not None:
                with open(self.path("x.status.json"), "wb") as f:
                    f.write(text)
            done = self.run_program([PROGRAM, "status", self.path("x")], 2)
            self.assertIn(b"x.status.json", done.stderr)
            self.assertEqual(done.stdout, b"")
        for text in (b"{}", b'{"state":5,"pid":"x","done":{},"lanes":[1],"memory":{"host":3}}'):
            with open(self.path("x.status.json"), "wb") as f:
                f.write(text)
            self.run_program([PROGRAM, "status", self.path("x")])


class Limits(Rig):
    """What the machine, the user or the one who started it does not allow."""

    def test_threads(self):
        self.write(self.many(12))
        done = self.generate("--threads", "0", status=1)
        self.assertIn(b"--threads: expected an integer from 1", done.stderr)
        self.assertEqual(os.listdir(self.dir), ["in.jsonl"])
        found = []
        for count in ("1", "64"):
            self.generate("--threads", count, "--overwrite")
            found.append(self.sorted_lines())
        self.assertEqual(found[0], found[1])

    def test_too_little_host_memory_names_the_largest_block(self):
        self.write(self.many(12))
        done = self.generate("--host-memory", "8MiB", status=2)
        self.assertIn(b"the budget is 8.0 MiB; no block fits", done.stderr)
        # The budget has room for the process even where sanitizers make it twice as large.
        done = self.generate("--host-memory", "160MiB", "--micro-batch", "4096", status=2)
        self.assertRegex(done.stderr, rb"the largest block that fits is --micro-batch \d+")
        self.assertEqual(os.listdir(self.dir), ["in.jsonl"])

    @unittest.skipIf("ASAN_OPTIONS" in os.environ, "shadow memory takes all of it")
    def test_an_address_space_limit_is_the_budget(self):
        self.write(self.many(60))
        for size, status in ((64 << 20, 2), (512 << 20, 0)):
            def limit():
                resource.setrlimit(resource.RLIMIT_AS, (size, size))

            done = self.run_program(self.words(), status, preexec_fn=limit)
            self.assertIn(b"(RLIMIT_AS)", done.stderr)
        self.assertEqual(len(self.results()), 60)

    def as_nobody(self, words, status, **how):
        """As a user who owns nothing; skipped where that user cannot even run the program."""
        if os.geteuid() != 0:
            self.skipTest("only root can become another user")
        nobody = {"user": 65534, "group": 65534, "extra_groups": []}
        try:
            subprocess.run([PROGRAM, "info"], check=True, stdout=subprocess.DEVNULL, **nobody)
            subprocess.run(["test", "-r", os.path.join(MODEL, "config.json")], check=True, **nobody)
        except (OSError, subprocess.CalledProcessError):
            self.skipTest("the program or model is in a folder that only root may read")
        return self.run_program(words, status, env={"PATH": os.environ["PATH"], **how}, **nobody)

    def test_what_a_run_reads_is_not_replaced(self):
        """Files of the model and a configuration; reports beside a model may come again."""
        self.write([{"id": "a", "prompt": "the old man", "max_tokens": 2}])
        model, config = self.path("model"), self.path("c.yaml")
        shutil.copytree(MODEL, model)
        with open(config, "w", encoding="utf-8") as f:
            f.write("max-tokens: 2\n")
        command = [PROGRAM, "generate", "--model", model, "--input", self.input, "--output", self.output, "--overwrite"]
        for option, name in (("report", "config.json"), ("trace", "model.safetensors"), ("metrics-file", "vocab.json"),
                             ("output", "generation_config.json"), ("report", "tokenizer_config.json")):
            path = os.path.join(model, name)
            done = self.run_program([*command, "--" + option, path], 1)
            self.assertIn(f"--{option} '{path}' would replace a file of the model", done.stderr.decode())
            self.assertTrue(filecmp.cmp(path, os.path.join(MODEL, name), False))
        link = self.path("link.json")
        os.symlink(os.path.join(model, "config.json"), link)
        for option, path in (("report", link), ("errors", os.path.join(model, "vocab.json"))):
            done = self.run_program([*command, "--" + option, path], 1)
            self.assertIn("would replace a file of the model", done.stderr.decode())
        for option in ("report", "errors"):
            done = self.run_program([*command, "--config", config, "--" + option, config], 1)
            self.assertIn("would replace what --config reads", done.stderr.decode())
        for _ in range(2):
            self.run_program([*command, "--config", config, "--report", os.path.join(model, "report.json")])

    def test_a_folder_that_cannot_be_written(self):
        self.write(self.many(3))
        os.chmod(self.dir, 0o755)
        done = self.as_nobody(self.words(), 1)
        self.assertIn(b"cannot be written", done.stderr)
        self.assertIn(b"Permission denied", done.stderr)
        self.assertEqual(os.listdir(self.dir), ["in.jsonl"])
        self.as_nobody(self.words("--dry-run"), 0)
        done = self.as_nobody(self.words(target="-"), 0)  # and no home either
        self.assertEqual(len(done.stdout.splitlines()), 3)
        done = self.as_nobody(self.words("--report", self.path("r"), target="-"), 0)
        self.assertIn(b"warning: report", done.stderr)

    def test_results_of_somebody_else(self):
        self.write(self.many(3))
        os.chmod(self.dir, 0o777)
        self.generate("--limit", "2")
        before = self.sorted_lines()
        done = self.as_nobody(self.words(), 1)
        self.assertIn(b"Permission denied", done.stderr)
        self.assertEqual(self.sorted_lines(), before)


if __name__ == "__main__":
    sys.setrecursionlimit(10000)
    unittest.main(verbosity=2)
