# SPDX-License-Identifier: Apache-2.0
"""What the whole-program tests of `aquifer generate` share: a folder of their own, the program run
on the small trained model, and its results read back.

AQ_PROGRAM names the program, AQ_TEST_DATA the test data.  Only the standard library is used.
"""
import ctypes
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
import unittest

PROGRAM = os.environ["AQ_PROGRAM"]
DATA = os.environ["AQ_TEST_DATA"]
MODEL = os.path.join(DATA, "tiny-opt")
MS_REMOUNT, MNT_DETACH = 32, 2


def lines_of(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def size_of(path):
    return os.path.getsize(path) if os.path.exists(path) else 0


def refuse_constant(name):
    raise ValueError(f"{name} is not JSON")


class Rig(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="aq-generate-")
        self.addCleanup(shutil.rmtree, self.dir)
        self.input = self.path("in.jsonl")
        self.output = self.path("out.jsonl")

    def path(self, name):
        return os.path.join(self.dir, name)

    def write(self, records):
        """Records as JSON; strings and bytes as they are."""
        with open(self.input, "wb") as f:
            for r in records:
                if isinstance(r, bytes):
                    f.write(r + b"\n")
                else:
                    text = r if isinstance(r, str) else json.dumps(r)
                    f.write(text.encode("utf-8") + b"\n")

    def words(self, *words, source=None, target=None):
        return [PROGRAM, "generate", "--model", MODEL, "--device", "cpu", "--input",
                source or self.input, "--output", target or self.output, *words]

    def run_program(self, words, status=0, **how):
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=900,
                              **how)
        self.assertEqual(done.returncode, status, done.stderr.decode())
        return done

    def generate(self, *words, status=0, **how):
        return self.run_program(self.words(*words, **how), status)

    def plan(self, *words, status=0):
        done = self.run_program([PROGRAM, "plan", "--json", *words], status)
        return json.loads(done.stdout, parse_constant=refuse_constant)

    def shape(self, **fields):
        """opt-125m as a config of its own, with other fields."""
        config = {"model_type": "opt", "vocab_size": 50272, "hidden_size": 768, "ffn_dim": 3072,
                  "num_hidden_layers": 12, "num_attention_heads": 12,
                  "max_position_embeddings": 2048, "word_embed_proj_dim": 768, **fields}
        name = self.path("config.json")
        with open(name, "w", encoding="utf-8") as f:
            json.dump(config, f)
        return ["--shape", name, "--prompt-len", "64", "--gen-len", "16"]

    def reported(self, *words, **how):
        """Runs it all anew; the report."""
        report = self.path("report.json")
        self.generate("--overwrite", "--report", report, *words, **how)
        with open(report, encoding="utf-8") as f:
            return json.load(f)

    def results(self):
        """By id; each id once."""
        found = {}
        for r in lines_of(self.output):
            self.assertNotIn(r["id"], found)
            found[r["id"]] = r
        return found

    def sorted_lines(self):
        with open(self.output, encoding="utf-8") as f:
            return sorted(f)

    def many(self, count):
        rng = random.Random(7)
        words = "the old man said that she was a little house in sea and rain".split()
        return [{"id": f"r{i}", "prompt": " ".join(rng.choices(words, k=rng.randint(2, 30))),
                 "max_tokens": rng.randint(8, 48), "temperature": rng.choice([0, 0.9])}
                for i in range(count)]

    def short(self, count):
        """As many records of two tokens, in lines as long: where what is written counts."""
        return [{"id": f"r{i}", "prompt": "She said", "max_tokens": 2,
                 "metadata": {"padding": "x" * 170}} for i in range(count)]

    def wait_for(self, what, seconds=60):
        """Polls until it is true."""
        until = time.monotonic() + seconds
        while not what() and time.monotonic() < until:
            time.sleep(0.005)
        self.assertTrue(what())

    def mount(self, size):
        """A small file system of its own, or the test is skipped.  Returns its folder."""
        disk = self.path("disk")
        os.mkdir(disk)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"none", disk.encode(), b"tmpfs", 0, b"size=%d" % size) != 0:
            self.skipTest("no file system can be mounted here")
        self.addCleanup(libc.umount2, disk.encode(), MNT_DETACH)
        return disk

    def resize(self, disk, size):
        libc = ctypes.CDLL(None, use_errno=True)
        self.assertEqual(libc.mount(b"none", disk.encode(), b"tmpfs", MS_REMOUNT,
                                    b"size=%d" % size), 0)
