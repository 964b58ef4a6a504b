#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shards of one input on one machine: runs side by side, killed and started again, merged; processes that pack the same
store at once; `aquifer status` of several files."""
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import time
import unittest

from rig import MODEL, PROGRAM, Rig, lines_of, size_of

RECORDS, SHARDS = 240, 4


def without_time(path):
    with open(path, encoding="utf-8") as f:
        return [re.sub(r'"created":\d+,?', "", line) for line in f]


class Shards(Rig):
    def shard(self, k):
        return self.path(f"s{k}.jsonl")

    def start(self, k, *words, count=SHARDS):
        return subprocess.Popen(self.words("--shard", f"{k}/{count}", *words, target=self.shard(k)),
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def ends(self, child, status=0):
        said = child.communicate(timeout=900)[1].decode()
        self.assertEqual(child.returncode, status, said)
        return said

    def merge(self, *words, status=0, count=SHARDS):
        return self.run_program([PROGRAM, "merge", self.path("merged.jsonl"), *map(self.shard, range(count)), *words],
                                status).stderr.decode()

    def mixed(self):
        for i, record in enumerate(self.many(RECORDS)):
            if i % 3 == 0:
                body = {k: v for k, v in record.items() if k != "id"}
                record = {"custom_id": record["id"], "method": "POST", "url": "/v1/completions", "body": body}
            elif i % 3 == 1:
                del record["id"]
            yield record

    def status(self, *files):
        return json.loads(self.run_program([PROGRAM, "status", "--json", *files]).stdout)

    def test_shards_side_by_side_and_killed_are_one_run_once_they_are_merged(self):
        self.write(self.mixed())
        slow = ("--threads", "1", "--micro-batch", "1", "--micro-batches", "1")
        children = [self.start(k, *slow) for k in range(SHARDS)]
        for k in (0, 1):
            self.wait_for(lambda k=k: size_of(self.shard(k)) or children[k].poll() is not None)
            os.kill(children[k].pid, signal.SIGKILL if k else signal.SIGTERM)
        self.ends(children[0], 130)
        self.ends(children[1], -signal.SIGKILL)
        for k in (2, 3):
            self.ends(children[k])
        said = self.merge(status=1)
        self.assertRegex(said, r"s0.jsonl', shard 0/4, is not complete: \d+ of \d+ records have no result")
        self.assertIn("s1.jsonl', shard 1/4, is not complete", said)
        self.assertFalse(os.path.exists(self.path("merged.jsonl")))
        found = self.status(*map(self.shard, range(SHARDS)))
        self.assertEqual((found["state"], found["total"], found["stopped"], found["finished"]),
                         ("incomplete", RECORDS, 2, 2))
        self.assertLess(found["done"], RECORDS)
        for k in (0, 1):
            self.ends(self.start(k))
        self.generate("--ordered")
        self.merge()
        self.assertEqual(sorted(without_time(self.path("merged.jsonl"))), sorted(without_time(self.output)))
        self.merge("--ordered", "--overwrite")
        self.assertEqual(without_time(self.path("merged.jsonl")), without_time(self.output))
        said = self.generate(target=self.path("merged.jsonl")).stderr.decode()
        self.assertIn("nothing to do: all 240 records", said)

    def test_shards_of_standard_input(self):
        self.write(self.many(30))
        for k in range(2):
            with open(self.input, "rb") as f:
                self.run_program(self.words("--shard", f"{k}/2", source="-", target=self.shard(k)), stdin=f)
        self.merge(count=2)
        self.assertEqual(len(lines_of(self.path("merged.jsonl"))), 30)

    def test_errors_are_retried_shard_by_shard(self):
        records = self.many(20)
        records[3]["prompt"] = [1, 999999]
        self.write(records)
        for k in range(2):
            child = self.start(k, count=2)
            child.communicate()
            self.assertIn(child.returncode, (0, 3))
        for k in range(2):
            child = self.start(k, "--retry-errors", count=2)
            child.communicate()
            self.assertIn(child.returncode, (0, 3))
        self.assertIn("merged: 20 records (1 errors) of 2 shards", self.merge(count=2))

    def talker(self, template):
        """The model with a chat template."""
        talker = self.path("talker")
        os.mkdir(talker)
        for name in os.listdir(MODEL):
            if os.path.isfile(os.path.join(MODEL, name)):
                os.symlink(os.path.join(MODEL, name), os.path.join(talker, name))
        with open(os.path.join(talker, "chat_template.jinja"), "w", encoding="utf-8") as f:
            f.write(template)
        return talker

    def talk(self, talker, *words, status=0, **kwargs):
        words = self.words(*words, **kwargs)
        words[words.index(MODEL)] = talker
        return self.run_program(words, status).stderr.decode()

    def test_a_template_that_asks_for_the_time_needs_one_for_all_shards(self):
        """The time is part of the prompts, so records would be other shards' in each run."""
        talker = self.talker("{{ strftime_now('%d %B') }} {% for m in messages %}{{ m.content }} {% endfor %}")
        self.write([{"id": i, "messages": [{"role": "user", "content": f"Who is {i}?"}], "max_tokens": 2}
                    for i in range(12)])
        self.assertIn("expected --chat-time", self.talk(talker, "--shard", "0/2", status=1))
        self.assertFalse(os.path.exists(self.output))
        for k in range(2):
            self.talk(talker, "--shard", f"{k}/2", "--chat-time", "2026-01-31", target=self.shard(k))
        self.merge(count=2)

    def test_shards_with_and_without_conversations_are_of_one_run(self):
        """The only conversation is one shard's; the other's manifest has the template, too."""
        talker = self.talker("{% for m in messages %}{{ m.content }} {% endfor %}")
        self.write([{"id": "talk", "messages": [{"role": "user", "content": "Who?"}], "max_tokens": 2},
                    *self.many(11)])
        for k in range(2):
            self.talk(talker, "--shard", f"{k}/2", target=self.shard(k))
        self.merge(count=2)
        self.assertIn("nothing to do: all 12 records", self.talk(talker, target=self.path("merged.jsonl")))

    def test_status_adds_up_what_has_begun(self):
        self.write(self.many(40))
        self.ends(self.start(1))
        found = self.status(self.shard(0), self.shard(1))
        self.assertEqual([s["state"] for s in found["shards"]], ["not begun", "done"])
        self.assertEqual((found["total"], found["shard_count"], found["not_begun"]), (40, SHARDS, 1))
        self.assertEqual(found["done"], len(lines_of(self.shard(1))))
        text = self.run_program([PROGRAM, "status", self.shard(0), self.shard(1)]).stdout.decode()
        self.assertIn("2 of 4 shards are not among these files", text)
        said = self.run_program([PROGRAM, "status", self.shard(2), self.shard(3)], 2).stderr.decode()
        self.assertIn("does not exist", said)

    def test_another_machine_s_process_is_not_looked_for_here(self):
        self.write(self.many(4))
        self.ends(self.start(0))
        name = self.shard(0) + ".status.json"
        with open(name, encoding="utf-8") as f:
            document = json.load(f)
        for host, state in ((document["host"], "stopped"), ("elsewhere", "running")):
            with open(name, "w", encoding="utf-8") as f:
                json.dump(dict(document, state="running", pid=2 ** 22 + 1, host=host), f)
            self.assertEqual(self.status(self.shard(0), self.shard(1))["shards"][0]["state"], state)

    def test_wide_numbers_and_names_shift_no_column(self):
        wide = dict(state="done", done=10**12, total=10**12, gen_tok_s=123456789.5, shard="0/2", lanes={
            "compute": dict(busy_s=1, bytes=1, gb_s=1, ceiling_gb_s=1),
            "a lane with a long name": dict(busy_s=1e9, bytes=1 << 60, gb_s=1e12, ceiling_gb_s=1)})
        for i, document in enumerate((wide, dict(wide, gen_tok_s=1.5, done=1, shard="1/2"))):
            with open(self.shard(i) + ".status.json", "w", encoding="utf-8") as f:
                json.dump(document, f)

        def shown(*files):
            return self.run_program([PROGRAM, "status", *files]).stdout.decode().split("\n")
        titles, *rows = shown(self.shard(0), self.shard(1))[:3]
        self.assertEqual({row.index("tok/s") + 5 for row in rows}, {titles.index("generated") + 9})
        lines = shown(self.shard(0))
        titles, *rows = lines[next(i for i, line in enumerate(lines) if line.startswith("lanes")):][:3]
        self.assertEqual({len(row) for row in rows}, {len(titles)})

    # ---- one packs, others wait

    def streaming(self):
        """Options with which weights stream from the cache, and the store that they then make there, which is gone."""
        cache = self.path("cache")
        disk = ["--placement", "weights=0/0/100 kv=0/100/0 hidden=0/100/0", "--disk-dir-any", "--cache-dir", cache]
        self.generate(*disk, "--overwrite")
        store, = [os.path.join(cache, n) for n in os.listdir(cache) if n.startswith("tiny-opt")]
        shutil.rmtree(store)
        return disk, store

    def test_of_those_that_pack_at_once_one_packs(self):
        self.write(self.many(40))
        disk, store = self.streaming()
        with self.holder(store):
            children = [self.start(k, *disk) for k in range(SHARDS)]
            for child in children:
                self.assertNotIn(b"packing tiny-opt into", self.heard(child, b"waiting for it to end"))
        said = [self.ends(child) for child in children]
        self.assertEqual(sum(f"packing tiny-opt into '{store}'" in s for s in said), 1, said)
        self.assertEqual([n for n in os.listdir(self.path("cache")) if n.startswith("tiny-opt")],
                         [os.path.basename(store)])
        self.generate("--overwrite")
        self.merge()
        self.assertEqual(sorted(without_time(self.path("merged.jsonl"))), sorted(without_time(self.output)))

    def test_a_packed_store_is_only_read(self):
        store = self.path("store")
        self.ends(self.packs(store))

        def found():
            return {n: (s.st_mtime_ns, s.st_size) for n, s in
                    ((n, os.stat(os.path.join(store, n))) for n in sorted(os.listdir(store)))}
        before = found()
        self.write(self.many(12))
        words = ["--placement", "weights=0/0/100 kv=0/100/0 hidden=0/100/0", "--disk-dir-any", "--weight-format", "f16",
                 "--compute", "f32", "--cache-dir", self.path("cache")]
        children = []
        for k in range(2):
            command = self.words("--shard", f"{k}/2", *words, target=self.shard(k))
            command[command.index(MODEL)] = store
            children.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
        for child in children:
            self.assertNotIn("packing", self.ends(child))
        self.merge(count=2)
        self.assertEqual(found(), before)
        self.assertEqual([n for n in os.listdir(self.dir) if n.startswith("store") and n != "store"], [])

    def holder(self, store):
        """The lock of a process that packs, held by this one."""
        os.mkdir(store + ".partial")
        journal = open(os.path.join(store + ".partial", "journal"), "wb")
        fcntl.flock(journal, fcntl.LOCK_EX)
        return journal

    def packs(self, store):
        return subprocess.Popen([PROGRAM, "pack", "--model", MODEL, "--output", store], stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE)

    def heard(self, child, words):
        """Reads its lines until one has these words."""
        os.set_blocking(child.stderr.fileno(), False)
        seen, until = b"", time.monotonic() + 60
        while words not in seen and time.monotonic() < until:
            seen += child.stderr.read() or b""
            time.sleep(0.02)
        self.assertIn(words, seen)
        os.set_blocking(child.stderr.fileno(), True)
        return seen

    def test_a_dead_holder_s_lock_is_taken_over(self):
        store = self.path("store")
        journal = self.holder(store)
        child = self.packs(store)
        self.heard(child, b"another process is packing '%s': waiting" % store.encode())
        self.assertIsNone(child.poll())
        journal.close()
        self.ends(child)
        self.assertTrue(os.path.exists(os.path.join(store, "manifest.json")))

    def test_who_waits_can_be_interrupted(self):
        store = self.path("store")
        with self.holder(store):
            child = self.packs(store)
            self.heard(child, b"waiting for it to end")
            child.send_signal(signal.SIGINT)
            self.assertIn("interrupted while waiting", self.ends(child, 130))

    def test_runs_that_wait_can_be_interrupted(self):
        self.write(self.many(4))
        disk, store = self.streaming()
        score = [PROGRAM, "eval", "--model", MODEL, "--device", "cpu", "--text", os.path.join(MODEL, "golden", "eval.txt"),
                 "--prompt-tokens", "16", "--score-tokens", "4", *disk]
        measure = [PROGRAM, "bench", "--model", MODEL, "--device", "cpu", "--prompt-len", "16", "--gen-len", "4", *disk]
        for words in (self.words(*disk, "--overwrite"), score, measure):
            with self.subTest(words[1]), self.holder(store):
                child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                self.heard(child, b"waiting for it to end")
                begin = time.monotonic()
                child.send_signal(signal.SIGINT)
                self.assertIn("interrupted", self.ends(child, 130))
                self.assertLess(time.monotonic() - begin, 10)
            shutil.rmtree(store + ".partial")


if __name__ == "__main__":
    unittest.main()
