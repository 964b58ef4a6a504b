#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs that are stopped in the middle of long answers go on from the tokens that these had, with other placements and
numbers of threads, and end with the lines of a job that nobody stopped: under policies and formats of the cache that
take the kept tokens in at once, and those that take them in one by one."""
import json
import os
import re
import shutil
import signal
import subprocess
import unittest

from rig import MODEL, Rig, size_of

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}"
PLACES = (("--threads", "1", "--placement", "weights=0/100/0 kv=0/100/0 hidden=0/100/0"),
          ("--threads", "2", "--micro-batch", "5", "--executor", "serial"),
          ("--threads", "2", "--micro-batch", "4", "--micro-batches", "3"))
ON_DISK = ("--placement", "weights=0/0/100 kv=0/50/50 hidden=0/100/0 head=host", "--disk-dir-any")


def written_at(path):
    return os.stat(path).st_mtime_ns if os.path.exists(path) else 0


def tokens_in(said):
    found = re.search(r"(\d+) tokens of \d+ records in flight are kept", said)
    return int(found.group(1)) if found else 0


class InFlight(Rig):
    def setUp(self):
        super().setUp()
        self.kept = self.output + ".inflight"
        self.model = self.path("model")
        shutil.copytree(MODEL, self.model)
        with open(os.path.join(self.model, "chat_template.jinja"), "w", encoding="utf-8") as f:
            f.write(TEMPLATE)
        self.write(self.records())

    @staticmethod
    def records(count=2):
        """Of every kind, most of them long."""
        long = {"max_tokens": 170, "ignore_eos": True}
        for i in range(count):
            text = f"It was a dark and stormy night, number {i}, and"
            yield {"id": f"greedy{i}", "prompt": text, **long}
            yield {"id": f"sampled{i}", "prompt": text, "temperature": 0.9, "top_p": 0.95, "seed": i,
                   "repetition_penalty": 1.2, "frequency_penalty": 0.3, "min_tokens": 150, **long}
            yield {"id": f"three{i}", "prompt": text, "temperature": 0.8, "n": 3, "logprobs": 2, "echo": True,
                   "stop": [" house"], "max_tokens": 150}
            yield {"id": f"stops{i}", "prompt": text, "temperature": 0.7, "seed": 5 + i, "logprobs": 0,
                   "stop": [". The", "the sea", " of the"], "min_tokens": 100, **long}
            yield {"id": f"text{i}", "prompt": text, "continuation": [text * 6, " she said"]}
            yield {"custom_id": f"chat{i}", "method": "POST", "url": "/v1/chat/completions",
                   "body": {"messages": [{"role": "user", "content": text}], "temperature": 0.5, "logprobs": True,
                            "top_logprobs": 3, **long}}
            yield {"custom_id": f"batch{i}", "method": "POST", "url": "/v1/completions",
                   "body": {"prompt": text, "presence_penalty": 0.5, **long}}

    def words(self, *words, **how):
        return [self.model if w == MODEL else w
                for w in super().words(*words, "--cache-dir", self.path("cache"), **how)]

    @staticmethod
    def lines(path):
        with open(path, encoding="utf-8") as f:
            return sorted(re.sub(r'"created":\d+', "", line) for line in f)

    def whole(self, *words):
        """The lines of a job that nobody stops."""
        path = self.path("whole.jsonl")
        self.generate(*words, "--overwrite", target=path)
        return self.lines(path)

    def stopped(self, number, goal, *words):
        """Runs until it has kept so many bytes itself, and sends the signal; what the program said."""
        before = written_at(self.kept)
        child = subprocess.Popen(self.words("--checkpoint-every", "0.01", *words), stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.addCleanup(child.kill)
        self.wait_for(lambda: (size_of(self.kept) > goal and written_at(self.kept) != before) or child.poll() is not None)
        child.send_signal(number)
        said = child.communicate(timeout=60)[1].decode()
        self.assertEqual(child.returncode, -9 if number == signal.SIGKILL else 130, said)
        return said

    def go_on(self, *words):
        """Runs to the end; the number of tokens that were taken over."""
        report = self.path("report.json")
        self.generate("--report", report, *words)
        self.assertFalse(os.path.exists(self.kept))
        with open(report, encoding="utf-8") as f:
            return json.load(f)["taken_over"]

    def records_done(self):
        return len(self.lines(self.output)) if os.path.exists(self.output) else 0

    def check(self, *words, places=PLACES):
        want = self.whole(*words)
        first = tokens_in(self.stopped(signal.SIGINT, 6000, *words, *places[0]))
        self.assertGreater(first, 100)
        done = self.records_done()
        second = tokens_in(self.stopped(signal.SIGTERM, 12000, *words, *places[1]))
        # Those that have ended since the first stop, on a machine that is slow to stop, are results.
        self.assertTrue(second > first or self.records_done() > done, (first, second, done))
        self.assertEqual(self.go_on(*words, *places[2]), second)
        self.assertEqual(self.lines(self.output), want)

    def test_the_full_cache(self):
        self.check()

    def test_codes_of_eight_bits(self):
        self.check("--kv-format", "int8", "--compute", "f32")

    def test_a_cache_that_drops_tokens(self):
        self.check("--kv-policy", "h2o", "--kv-budget", "20%")

    def test_heads_that_differ(self):
        self.check("--kv-policy", "kvcompress", "--kv-budget", "50%")

    def test_heads_that_have_rules(self):
        self.check("--kv-policy", "fastgen", "--kv-mass", "0.8")

    def test_codes_of_kivi_go_on_token_by_token(self):
        self.check("--kv-format", "kivi2")

    def test_a_cache_half_on_disk_goes_on_half_token_by_token(self):
        self.write(self.records(4))  # as many run at a time, so that the job does not end before it is stopped
        self.check("--kv-policy", "window", "--kv-budget", "60",
                   places=[(*ON_DISK, "--micro-batch", "4", "--threads", t) for t in "121"])

    def test_a_kill_loses_what_came_after_the_last_time_it_was_kept(self):
        want = self.whole()
        self.stopped(signal.SIGKILL, 6000)
        self.assertGreater(self.go_on("--threads", "1"), 100)
        self.assertEqual(self.lines(self.output), want)

    def test_the_first_conversations_may_come_later(self):
        want = self.whole()
        records = list(self.records())
        self.write(sorted((r for r in records if "messages" not in r.get("body", {})), key=str))
        self.stopped(signal.SIGINT, 6000)
        with open(self.input, "a", encoding="utf-8") as f:
            f.writelines(json.dumps(r) + "\n" for r in records if "messages" in r.get("body", {}))
        self.assertGreater(self.go_on(), 100)
        strip = re.compile(r'"index":\d+|"request_id":"[^"]*"')
        self.assertEqual(sorted(strip.sub("", x) for x in self.lines(self.output)),
                         sorted(strip.sub("", x) for x in want))

    def test_changed_values_begin_again(self):
        self.stopped(signal.SIGINT, 6000)
        before = set(self.lines(self.output))
        done = self.generate("--kv-format", "int8", "--allow-change", "kv_format")
        self.assertIn("written with other values", done.stderr.decode())
        made = set(self.lines(self.output)) - before
        self.assertGreater(len(made), 5)
        self.assertLessEqual(made, set(self.whole("--kv-format", "int8")))

    def test_a_file_that_cannot_be_written_stops_nothing(self):
        want = self.whole()
        os.mkdir(self.kept)  # no file can take this name
        done = self.generate("--checkpoint-every", "0.01")
        self.assertIn("records in flight are not kept", done.stderr.decode())
        self.assertEqual(self.lines(self.output), want)


if __name__ == "__main__":
    unittest.main()
