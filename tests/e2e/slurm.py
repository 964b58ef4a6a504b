#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/slurm_array.sh on a real Slurm of one node: the tasks of a job array share the records of a file, some are
requeued by hand or preempted, one is killed and started again; merged, their results are those of one run.

Exit status 77, with a notice, where there is no Slurm or it does not come up.  By hand, the size of a real array:
    AQ_PROGRAM=build/engine/cli/aquifer AQ_TEST_DATA=tests/data AQ_SLURM_RECORDS=10000 AQ_SLURM_TASKS=8 \
        python3 tests/e2e/slurm.py -v
"""
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
import unittest

import slurm_rig
from rig import MODEL, PROGRAM, Rig, lines_of, size_of

RECORDS = int(os.environ.get("AQ_SLURM_RECORDS", "400"))
TASKS = int(os.environ.get("AQ_SLURM_TASKS", "4"))
CPUS = TASKS
EXAMPLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "slurm_array.sh")


def without_time(path):
    """The lines without the time at which each was made, in an order that depends on nothing else."""
    with open(path, encoding="utf-8") as f:
        return sorted(re.sub(r'"created":\d+,?', "", line) for line in f)


class Array(Rig):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.TemporaryDirectory(prefix="aq-slurm-")
        self.addCleanup(self.folder.cleanup)
        try:
            self.slurm = slurm_rig.Slurm(self.folder.name, CPUS)
        except slurm_rig.Unusable as why:
            print(f"skipped: Slurm does not come up here: {why}", flush=True)
            os._exit(77)
        self.addCleanup(self.slurm.stop)
        self.shards = self.path("shards")

    def shard(self, task):
        return os.path.join(self.shards, f"shard-{task}.jsonl")

    def records(self):
        draw = random.Random(11)
        words = "the old man said that she was a little house in sea and rain".split()
        for i in range(RECORDS):
            prompt = " ".join(draw.choices(words, k=draw.randint(2, 12)))
            if i % 50 == 49:
                yield {"id": f"bad{i}", "prompt": prompt, "temperature": "very"}
            elif i % 2:
                yield {"custom_id": f"c{i}", "method": "POST", "url": "/v1/completions",
                       "body": {"prompt": prompt, "max_tokens": 12, "temperature": 0.8}}
            else:
                yield {"prompt": prompt, "max_tokens": draw.randint(4, 16)}

    def options(self):
        return ["--model", MODEL, "--device", "cpu", "--input", self.input, "--isa", "avx2", "--compute", "f32"]

    def slow(self):
        """One seat, so that a task lasts long enough to be stopped."""
        return ["--threads", "1", "--micro-batch", "1", "--micro-batches", "1"]

    def state(self, task):
        try:
            with open(self.shard(task) + ".status.json", encoding="utf-8") as f:
                return json.load(f)
        except FileNotFoundError:
            return {}

    def under_way(self, task):
        """Has written some results, and has more to write."""
        return self.state(task).get("state") in ("loading", "running") and size_of(self.shard(task)) > 0

    def wait_until(self, what, done, seconds=240, pause=0.1):
        until = time.monotonic() + seconds
        while not done():
            if time.monotonic() > until:
                logs = [open(self.path(n), errors="replace").read()[-2000:] for n in os.listdir(self.dir)
                        if n.startswith("log-")]
                self.fail(f"no {what} within {seconds} s; {self.slurm.last_words()}\n" + "\n".join(logs))
            time.sleep(pause)

    def starts(self, task):
        """How often the task's run began."""
        with open(self.path(f"log-{task}"), encoding="utf-8", errors="replace") as f:
            return f.read().count(f"aquifer: shard {task}/{TASKS}:")

    def hurry(self, job, task):
        """A requeued task waits two minutes before it may begin; a test does not."""
        self.slurm.said("scontrol", "update", f"JobId={job}_{task}", "StartTime=now")

    def hold(self, tasks):
        """Stops the tasks' processes where each has some results, so that none ends before its turn comes."""
        held = set()

        def all_held():
            for task in sorted(set(tasks) - held):
                if self.under_way(task):
                    os.kill(self.state(task)["pid"], signal.SIGSTOP)
                    held.add(task)
            return len(held) == len(tasks)
        self.wait_until("results of each task", all_held, pause=0.01)
        for task in tasks:
            self.assertLess(len(self.lines(task)), self.state(task)["total"], "it ended before it could be stopped")

    def lines(self, task):
        with open(self.shard(task), "rb") as f:
            return f.read().split(b"\n")[:-1]

    def requeue(self, job, task):
        """Slurm wakes the process and asks it to end (SIGCONT, SIGTERM)."""
        said = self.slurm.said("scontrol", "requeue", f"{job}_{task}")
        self.assertNotIn("error", said)
        self.wait_until(f"end of task {task}", lambda: self.slurm.tasks(job).get(task) == "PENDING")

    def near_its_limit(self, job, task):
        """What Slurm sends before a time limit (--signal=B:USR1): the script ends the run and requeues itself."""
        self.slurm.said("scancel", "--batch", "--signal=USR1", f"{job}_{task}")
        os.kill(self.state(task)["pid"], signal.SIGCONT)
        self.wait_until(f"end of task {task}", lambda: self.slurm.tasks(job).get(task) == "PENDING")

    def test_an_array_whose_tasks_are_stopped_gives_the_results_of_one_run(self):
        self.write(self.records())
        job = self.slurm.submit(f"--array=0-{TASKS - 1}", "--output", self.path("log-%a"), "--export",
                                f"ALL,AQUIFER={PROGRAM}", EXAMPLE, self.shards, *self.options(), *self.slow())
        requeued = [1, 2] if TASKS > 2 else [1]
        self.hold([0, *requeued])
        os.kill(self.state(0)["pid"], signal.SIGKILL)
        self.wait_until("end of the killed task", lambda: 0 not in self.slurm.tasks(job))
        refused = self.run_program([PROGRAM, "merge", self.output, self.shard(0)], 1).stderr.decode()
        self.assertIn("is not complete", refused)
        self.requeue(job, requeued[0])
        for task in requeued[1:]:
            self.near_its_limit(job, task)
        self.slurm.said("scontrol", "requeue", f"{job}_0")
        urgent = self.slurm.submit("--partition=urgent", f"--cpus-per-task={CPUS}", "--output", self.path("urgent"),
                                   "--wrap", "sleep 1")  # whatever runs now is preempted
        self.wait_until("end of the urgent job", lambda: not self.slurm.said("squeue", "-h", "-j", str(urgent)).strip()
                        or "Invalid job id" in self.slurm.said("squeue", "-h", "-j", str(urgent)))
        left = set()

        def over():
            left.clear()
            left.update(self.slurm.tasks(job))
            for task, state in self.slurm.tasks(job).items():
                if state == "PENDING":
                    self.hurry(job, task)
            return not left
        self.wait_until("end of the array", over, 1200 if RECORDS > 1000 else 240)
        for task in [0, *requeued]:
            self.assertGreaterEqual(self.starts(task), 2)
        files = [self.shard(k) for k in range(TASKS)]
        summed = json.loads(self.run_program([PROGRAM, "status", "--json", *files]).stdout)
        self.assertEqual((summed["state"], summed["done"], summed["total"]), ("done", RECORDS, RECORDS))
        merged, whole = self.path("merged.jsonl"), self.path("whole.jsonl")
        self.run_program([PROGRAM, "merge", merged, *files])
        self.run_program([PROGRAM, "generate", *self.options(), "--output", whole], 3)
        self.assertEqual(without_time(merged), without_time(whole))
        self.assertEqual(len(lines_of(merged)), RECORDS)
        print(f"{RECORDS} records, {TASKS} tasks: begun {[self.starts(k) for k in range(TASKS)]} times; merged results"
              " are those of one run but for order and 'created'", flush=True)


if __name__ == "__main__":
    reason = slurm_rig.why_not()
    if reason:
        print(f"skipped: no Slurm here ({reason})")
        sys.exit(77)
    unittest.main()
