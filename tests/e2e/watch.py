#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How `aquifer generate` is watched, and files as other tools read and write them: metrics, time stamps, the bar
of a narrow terminal, gzip and zstd, errors in a file of their own."""
import datetime
import fcntl
import gzip
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import termios
import time
import unittest

from rig import MODEL, PROGRAM, Rig, lines_of

SAMPLE = re.compile(r'^(aquifer_[a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+)\} (-?[0-9.e+-]+)$')
STAMP = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d) aquifer: ")


class Watched(Rig):
    def metrics(self, path):
        """As the text format has it: HELP and TYPE once and first, base units, counters in _total."""
        types, samples = {}, {}
        with open(path, encoding="utf-8") as f:
            for line in f:
                if line.startswith("# TYPE "):
                    _, _, name, kind = line.split()
                    self.assertNotIn(name, types)
                    types[name] = kind
                elif not line.startswith("# HELP "):
                    name, labels, value = SAMPLE.match(line).groups()
                    self.assertIn(name, types)
                    self.assertEqual(types[name] == "counter", name.endswith("_total"), name)
                    self.assertNotIn((name, labels), samples)
                    samples[name, labels] = float(value)
        self.assertFalse([n for n in types if re.search(r"_(ms|kib|mib|gb)(_|$)", n)])
        return samples

    def test_metrics_tell_what_the_results_have(self):
        self.write([*self.many(12), {"id": "bad", "prompt": "x", "max_tokens": -1}])
        target, file = self.path('odd "name\\.jsonl'), self.path("aquifer.prom")
        self.generate("--metrics-file", file, target=target, status=3)
        found = self.metrics(file)
        label = 'output="%s"' % target.replace("\\", "\\\\").replace('"', '\\"')
        self.assertEqual(found["aquifer_records_finished_total", label + ',result="ok"'], 12)
        self.assertEqual(found["aquifer_records_finished_total", label + ',result="error"'], 1)
        self.assertEqual(found["aquifer_run_state", label + ',state="done"'], 1)
        tokens = sum(len(r["tokens"]) for r in lines_of(target) if "tokens" in r)
        self.assertEqual(found["aquifer_generated_tokens_total", label], tokens)

    def test_records_that_wait_are_not_in_flight(self):
        self.write([{"id": str(i), "prompt": "She said", "max_tokens": 120, "ignore_eos": True, "n": 2 - i % 2,
                     "temperature": 1.0, "seed": i}
                    for i in range(120)])
        status, seen = self.output + ".status.json", []
        run = subprocess.Popen(self.words("--micro-batch", "6", "--micro-batches", "1", "--progress", "0.1"),
                               stderr=subprocess.DEVNULL)
        while run.poll() is None:
            try:
                with open(status, encoding="utf-8") as f:
                    seen.append(json.load(f)["in_flight"])
            except FileNotFoundError:
                pass
            time.sleep(0.002)
        self.assertEqual(run.returncode, 0)
        # Six seats hold three records of two choices, or up to six where one of theirs has ended.
        self.assertTrue(any(seen), seen)
        self.assertLessEqual(max(seen), 6)

    def test_each_line_has_its_time(self):
        self.write(self.many(3))
        zone = dict(os.environ, TZ="IST-5:30")
        said = self.run_program(self.words("--log-time", "--progress", "0.1"), env=zone).stderr
        before = None
        for line in said.decode().splitlines():
            at = datetime.datetime.fromisoformat(STAMP.match(line)[1])
            self.assertEqual(at.utcoffset(), datetime.timedelta(hours=5, minutes=30))
            self.assertTrue(before is None or at >= before)
            before = at
        now = datetime.datetime.now(datetime.timezone.utc)
        self.assertLess(abs((now - before).total_seconds()), 600)
        said = self.generate("--log-time", source="/no/such", status=1).stderr.decode()
        self.assertRegex(said.splitlines()[-1], STAMP.pattern + "error: ")

    def test_the_bar_fits_a_narrow_terminal(self):
        self.write([dict(r, max_tokens=200, ignore_eos=True) for r in self.many(40)])
        main, terminal = pty.openpty()
        self.addCleanup(os.close, main)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
        child = subprocess.Popen(self.words("--micro-batch", "4"), stdout=subprocess.DEVNULL, stderr=terminal)
        os.close(terminal)
        said = b""
        while True:
            try:
                some = os.read(main, 4096)
            except OSError:  # the other side is closed
                break
            if not some:
                break
            said += some
        self.assertEqual(child.wait(), 0, said)
        bars = [part for part in re.split(rb"[\r\n]+", said) if part.startswith(b"[")]
        self.assertTrue(bars, said)
        for bar in bars:
            self.assertEqual(len(bar), 39)
            self.assertRegex(bar.decode(), r"^\[[#.]{4,24}\] \d+/40, ")
            self.assertEqual("left" in bar.decode() or "tok/s" in bar.decode() or "pass 1" in bar.decode(), True, bar)

    def test_gzip_in_and_out(self):
        self.write(self.many(12))
        self.generate()
        want = self.sorted_lines()
        packed, target = self.path("in.jsonl.gz"), self.path("out.jsonl.gz")
        with open(self.input, "rb") as f, gzip.open(packed, "wb") as g:
            shutil.copyfileobj(f, g)
        self.generate(source=packed, target=target)
        with gzip.open(target, "rt", encoding="utf-8") as f:
            self.assertEqual(sorted(f), want)
        tokens = [self.run_program([PROGRAM, "tokenize", "--model", MODEL, "--input", name]).stdout
                  for name in (self.input, packed)]
        self.assertEqual(tokens[0], tokens[1])
        self.assertEqual(len(tokens[0].splitlines()), 12)
        # The same input, unpacked: it is what it was.
        self.assertIn(b"nothing to do", self.generate(target=target).stderr)
        with open(packed, "r+b") as f:
            f.truncate(os.path.getsize(packed) - 5)
        said = self.generate(source=packed, target=self.path("other.jsonl"), status=1).stderr
        self.assertIn(b"cut off", said)

    def test_zstd_in_and_out_with_errors_apart(self):
        if not shutil.which("zstd"):
            self.skipTest("there is no `zstd` here")
        self.write([*self.many(12), {"id": "bad", "prompt": "x", "max_tokens": -1}])
        self.generate(status=3)
        want = self.sorted_lines()
        packed, target, errors = self.path("prompts"), self.path("out.jsonl.zst"), self.path("err.jsonl")
        subprocess.run(["zstd", "-q", self.input, "-o", packed], check=True)
        self.generate("--errors", errors, source=packed, target=target, status=3)
        text = subprocess.run(["zstd", "-dcq", target], stdout=subprocess.PIPE, check=True).stdout.decode()
        with open(errors, encoding="utf-8") as f:
            error_lines = list(f)
        self.assertEqual([json.loads(e)["id"] for e in error_lines], ["bad"])
        self.assertEqual(sorted(text.splitlines(keepends=True) + error_lines), want)
        with open(packed, "r+b") as f:
            f.seek(os.path.getsize(packed) // 2)
            f.write(b"\0\0\0\0")
        self.generate(source=packed, target=self.path("other.jsonl"), status=1)


if __name__ == "__main__":
    unittest.main()
