#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`aquifer generate` when the world around it misbehaves: readers that do not read, signals, full
disks, limits, odd files and hostile records."""
import array
import fcntl
import json
import os
import signal
import subprocess
import termios
import time
import unittest

from rig import PROGRAM, Rig, lines_of

LEAVES_WITHIN_S = 20
F_SETPIPE_SZ, PAGE = 1031, 4096


class Faults(Rig):
    def many(self, count):
        return self.short(count)

    def start(self, *words, stdout=subprocess.DEVNULL, stderr=None, **how):
        """The program, and what it says in a file."""
        with open(self.path("said"), "wb") as said:
            child = subprocess.Popen(self.words(*words, **how), stdin=subprocess.DEVNULL,
                                     stdout=stdout, stderr=stderr or said)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        return child

    def said(self):
        with open(self.path("said"), "rb") as f:
            return f.read()

    def ids(self):
        return [r["id"] for r in lines_of(self.output)]


class Pipes(Faults):
    """Nobody reads at the other end."""

    def full_pipe(self):
        """A pipe that takes nothing more, and its two ends."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            while True:
                os.write(writer, b"x" * 4096)
        except BlockingIOError:
            os.set_blocking(writer, True)
        self.addCleanup(os.close, reader)
        self.addCleanup(os.close, writer)
        return writer

    def assert_leaves(self, child, number=signal.SIGINT):
        begin = time.monotonic()
        child.send_signal(number)
        self.assertEqual(child.wait(60), 130, self.said())
        self.assertLess(time.monotonic() - begin, LEAVES_WITHIN_S)

    def test_a_signal_is_heard_while_standard_output_is_blocked(self):
        self.write(self.many(50))
        for number, order in ((signal.SIGINT, ()), (signal.SIGTERM, ("--ordered",))):
            child = self.start(*order, target="-", stdout=self.full_pipe())
            self.wait_for(lambda: b"plan:" in self.said())
            self.assertIsNone(child.poll())
            self.assert_leaves(child, number)
            self.assertNotIn(b"the same command goes on", self.said())

    def test_a_signal_is_heard_while_standard_output_does_not_block(self):
        self.write(self.many(50))
        pipe = self.full_pipe()
        os.set_blocking(pipe, False)
        child = self.start(target="-", stdout=pipe)
        self.wait_for(lambda: b"plan:" in self.said())
        time.sleep(0.5)
        self.assertIsNone(child.poll())
        self.assert_leaves(child)

    def test_a_signal_is_heard_while_standard_error_is_blocked(self):
        self.write(self.many(20000))  # more than can be done before the signal comes
        child = self.start(stderr=self.full_pipe())
        self.wait_for(lambda: os.path.exists(self.output + ".lock"))
        self.assert_leaves(child)
        self.assertFalse(os.path.exists(self.output + ".lock"))

    def test_a_slow_reader_gets_everything(self):
        self.write(self.many(400))
        child = self.start("--ordered", target="-", stdout=subprocess.PIPE)
        time.sleep(1)
        found = [json.loads(line)["id"] for line in child.stdout]
        child.stdout.close()
        self.assertEqual(child.wait(60), 0, self.said())
        self.assertEqual(found, [f"r{i}" for i in range(400)])

    def test_a_reader_that_leaves_is_an_io_error(self):
        self.write(self.many(400))
        child = self.start(target="-", stdout=subprocess.PIPE)
        child.stdout.readline()
        child.stdout.close()
        self.assertEqual(child.wait(60), 4)
        self.assertIn(b"standard output", self.said())

    def test_a_reader_of_words_may_leave(self):
        for words in (("help", "generate"), ("generate", "--help"), ("--version",),
                      ("info", "--json")):
            reader, writer = os.pipe()
            os.close(reader)
            done = subprocess.run([PROGRAM, *words], stdout=writer, stderr=subprocess.PIPE,
                                  timeout=60)
            os.close(writer)
            self.assertEqual((done.returncode, done.stderr), (4, b""))

    # ---- named pipes

    def pipe(self):
        name = self.path("pipe")
        os.mkfifo(name)
        return name

    def blocked_on_a_pipe(self, records=None):
        """The program, waiting for a reader of its output who does not read."""
        self.write(records or self.many(400))
        name = self.pipe()
        reader = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        fcntl.fcntl(reader, F_SETPIPE_SZ, PAGE)
        child = self.start(target=name)
        waiting = array.array("i", [0])

        def full():
            fcntl.ioctl(reader, termios.FIONREAD, waiting)
            return waiting[0] > PAGE - 1024

        self.wait_for(full)
        self.assertIsNone(child.poll())
        return child

    def test_a_pipe_without_a_reader_is_said_and_left(self):
        self.write(self.many(5))
        child = self.start("--quiet", target=self.pipe())
        self.wait_for(lambda: b"waiting for a reader" in self.said())
        self.assert_leaves(child)

    def test_a_pipe_nobody_reads_is_left(self):
        self.assert_leaves(self.blocked_on_a_pipe())

    def test_a_signal_is_heard_while_what_is_done_waits_for_its_reader(self):
        child = self.blocked_on_a_pipe(self.short(60))
        used = [0, 1]
        while used[0] != used[1]:  # until nothing is computed any more
            time.sleep(0.5)
            with open(f"/proc/{child.pid}/stat", encoding="ascii") as f:
                used = [used[1], f.read().rsplit(")", 1)[1].split()[11]]
        child.send_signal(signal.SIGTERM)
        self.wait_for(lambda: b"interrupted: stopping" in self.said())
        self.assertEqual(child.wait(15), 130)
        self.assertRegex(self.said(), rb"interrupted: \d+ of 60 records are done")

    def test_a_second_signal_ends_it_at_once(self):
        child = self.blocked_on_a_pipe()
        child.send_signal(signal.SIGINT)
        self.wait_for(lambda: b"stopping" in self.said())
        time.sleep(0.7)  # nearer together they would be one wish
        child.send_signal(signal.SIGTERM)
        self.assertEqual(child.wait(60), 130)
        self.assertNotIn(b"records are done", self.said())  # there was no time for words

    def test_a_signal_that_comes_again_by_itself_is_no_impatience(self):
        child = self.blocked_on_a_pipe()
        child.send_signal(signal.SIGXCPU)
        self.wait_for(lambda: b"stopping" in self.said())
        time.sleep(0.7)
        child.send_signal(signal.SIGXCPU)
        self.assertEqual(child.wait(60), 130)
        self.assertIn(b"records are done", self.said())

    def test_a_pipe_with_a_late_reader_gets_everything(self):
        self.write(self.many(400))
        name = self.pipe()
        child = self.start(target=name)
        self.wait_for(lambda: b"waiting for a reader" in self.said())
        self.assertEqual(len(lines_of(name)), 400)
        self.assertEqual(child.wait(60), 0, self.said())
        self.assertEqual(sorted(os.listdir(self.dir)), ["in.jsonl", "pipe", "said"])

    def test_an_input_pipe_without_a_writer_is_left(self):
        child = self.start(source=self.pipe())
        self.wait_for(lambda: os.path.exists(self.output + ".lock"))
        time.sleep(0.2)
        self.assert_leaves(child, signal.SIGTERM)
        self.assertFalse(os.path.exists(self.output + ".lock"))


class Disks(Faults):
    """A disk that is full, for a while or for good."""

    def setUp(self):
        super().setUp()
        self.write(self.many(300))
        self.want = [f"r{i}" for i in range(300)]

    def test_a_run_goes_on_when_there_is_space_again(self):
        disk = self.mount(64 << 10)
        self.output = os.path.join(disk, "out.jsonl")
        for order in ((), ("--ordered", "--overwrite")):
            child = self.start(*order)
            self.wait_for(lambda: b"waiting up to 600 s" in self.said())
            self.assertIsNone(child.poll())
            self.resize(disk, 4 << 20)
            self.assertEqual(child.wait(60), 0, self.said())
            self.assertEqual(sorted(self.ids()), sorted(self.want))
            self.resize(disk, 288 << 10)
        self.assertEqual(self.ids(), self.want)

    def test_a_signal_ends_the_wait_for_space(self):
        disk = self.mount(64 << 10)
        self.output = os.path.join(disk, "out.jsonl")
        child = self.start()
        self.wait_for(lambda: b"waiting up to 600 s" in self.said())
        child.send_signal(signal.SIGTERM)
        self.assertEqual(child.wait(60), 130)
        self.resize(disk, 4 << 20)
        self.generate()
        self.assertEqual(sorted(self.ids()), sorted(self.want))

    def fill_before_ordering(self, disk):
        """Room for all lines once, and not for the second copy that ordering takes."""
        self.generate(target=self.path("measure"))
        lines = os.path.getsize(self.path("measure"))
        self.resize(disk, (lines // PAGE + 6) * PAGE)
        return lines

    def test_ordering_waits_for_space(self):
        disk = self.mount(4 << 20)
        self.output = os.path.join(disk, "out.jsonl")
        self.fill_before_ordering(disk)
        child = self.start("--ordered")
        self.wait_for(lambda: b"order the results" in self.said())
        self.assertFalse(os.path.exists(self.output))
        self.resize(disk, 4 << 20)
        self.assertEqual(child.wait(60), 0, self.said())
        self.assertEqual(self.ids(), self.want)
        self.assertFalse(os.path.exists(self.output + ".part"))

    def test_ordering_without_space_keeps_what_there_is(self):
        disk = self.mount(4 << 20)
        self.output = os.path.join(disk, "out.jsonl")
        lines = self.fill_before_ordering(disk)
        for _ in range(2):
            done = self.generate("--ordered", "--disk-full-wait", "1s", status=4)
            self.assertIn(b"order the results", done.stderr)
            self.assertEqual(os.path.getsize(self.output + ".part"), lines)
            self.assertFalse(os.path.exists(self.output + ".tmp"))
        self.generate()  # in the order they came they need no second copy
        self.assertEqual(sorted(self.ids()), sorted(self.want))
        self.resize(disk, 4 << 20)
        self.generate("--ordered")
        self.assertEqual(self.ids(), self.want)

    def test_a_disk_without_room_for_the_manifest(self):
        disk = self.mount(2 * PAGE)
        self.output = os.path.join(disk, "out.jsonl")
        with open(os.path.join(disk, "filler"), "wb") as f:
            f.write(b"x" * PAGE * 2)
        done = self.generate(status=4)
        self.assertIn(b"manifest", done.stderr)
        self.assertEqual(os.listdir(disk), ["filler"])

    def test_errors_are_kept_when_there_is_no_room_to_take_them_out(self):
        disk = self.mount(4 << 20)
        self.output = os.path.join(disk, "out.jsonl")
        self.write(self.many(300) + [{"id": "bad", "prompt": "a", "max_tokens": 2000}])
        self.generate(status=3)
        before = self.sorted_lines()
        self.resize(disk, (os.path.getsize(self.output) // PAGE + 6) * PAGE)
        done = self.generate("--retry-errors", "--disk-full-wait", "1s", status=4)
        self.assertIn(b"waiting up to 1 s", done.stderr)
        self.assertEqual(self.sorted_lines(), before)
        self.assertFalse(os.path.exists(self.output + ".tmp"))

    def test_mending_waits_for_space(self):
        disk = self.mount(4 << 20)
        self.output = os.path.join(disk, "out.jsonl")
        self.generate()
        before = self.sorted_lines()
        with open(self.output, "r+b") as f:
            f.seek(9)
            f.write(b"\0")
        self.resize(disk, (os.path.getsize(self.output) // PAGE + 6) * PAGE)
        done = self.generate("--disk-full-wait", "1s", status=4)
        self.assertIn(b"No space left", done.stderr)
        self.assertFalse(os.path.exists(self.output + ".damaged"))
        child = self.start()
        self.wait_for(lambda: b"waiting up to 600 s" in self.said())
        self.resize(disk, 4 << 20)
        self.assertEqual(child.wait(60), 0, self.said())
        self.assertEqual(self.sorted_lines(), before)
        with open(self.output + ".damaged", "rb") as f:
            self.assertEqual(f.read().count(b"\n"), 1)


class Rivals(Faults):
    def test_of_many_that_start_together_one_writes(self):
        self.write(self.many(600))
        crowd = [subprocess.Popen(self.words(), stderr=subprocess.PIPE) for _ in range(8)]
        said = [child.communicate()[1] for child in crowd]
        winners = 0
        for child, text in zip(crowd, said):
            if b"done: 600 records" in text:
                winners += 1
                self.assertEqual(child.returncode, 0)
            elif b"nothing to do" not in text:  # as one that came after the end might say
                self.assertEqual(child.returncode, 1)
                # The first one holds the lock for a moment before its number is in it.
                self.assertRegex(text, rb"held by (process \d+|another process)")
        self.assertEqual(winners, 1, said)
        self.assertEqual(len(self.results()), 600)


if __name__ == "__main__":
    unittest.main(verbosity=2)
