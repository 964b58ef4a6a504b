#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`aquifer generate` with weights, KV cache and hidden states on disk or behind a link: what cannot
work is refused with a sentence that helps, what a machine lacks is done without, and a kill leaves
nothing behind."""
import ctypes
import errno
import os
import platform
import resource
import shutil
import signal
import struct
import subprocess
import unittest

from rig import Rig

ON_DISK = "weights=30/20/50 kv=20/20/60 hidden=0/50/50"
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
IO_URING_SETUP = 425  # the same on every architecture
MS_RDONLY, MNT_DETACH = 1, 2


def forbid_io_uring():
    """In the child: io_uring_setup fails with EPERM from now on, as in many containers."""
    # Loads the number of the call; is it that one?  Then EPERM, else allowed.
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, IO_URING_SETUP),
            (0x06, 0, 0, 0x00050000 | errno.EPERM), (0x06, 0, 0, 0x7fff0000)]
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *c) for c in code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code),
                                                      ctypes.addressof(text)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or libc.prctl(
            PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        os._exit(99)


class Placement(Rig):
    def setUp(self):
        super().setUp()
        self.scratch = self.path("scratch")
        self.cache = self.path("cache")
        os.mkdir(self.scratch)

    def placed(self, *words, placement=ON_DISK, scratch=None, **how):
        return self.words("--placement", placement, "--disk-dir", scratch or self.scratch,
                          "--disk-dir-any", "--cache-dir", self.cache, "--micro-batch", "4",
                          "--micro-batches", "2", "--host-memory", "600MiB", *words, **how)

    def want(self, records=12):
        """The results of the run with everything in memory."""
        self.write(self.many(records))
        self.run_program(self.words("--micro-batch", "8", "--host-memory", "600MiB",
                                    target=self.path("want.jsonl")))
        with open(self.path("want.jsonl"), encoding="utf-8") as f:
            return sorted(f)

    def assert_says(self, done, *parts):
        for part in parts:
            self.assertIn(part, done.stderr.decode())

    def refused(self, *parts, words=(), status=2, **how):
        """The program leaves before it has written a result, and says why."""
        if not os.path.exists(self.input):
            self.write(self.many(4))
        done = self.run_program(self.placed(*words, **how), status)
        self.assert_says(done, *parts)
        self.assertFalse(os.path.exists(self.output) and os.path.getsize(self.output))
        return done

    # ---- what does not add up or fit

    def test_shares_that_do_not_add_up_are_refused(self):
        for placement, parts in (("weights=30/30/30", ("weights", "sum to 100", "90")),
                                 ("kv=50/50", ("kv", "expected percentages")),
                                 ("wheat=0/0/100", ("expected weights, kv, hidden or head",)),
                                 ("head=disk", ("head=disk", "stays in memory"))):
            self.refused(*parts, placement=placement, status=1)

    def test_a_budget_of_the_host_that_is_too_small_says_what_fits(self):
        self.refused("host memory", "the budget is", words=["--host-memory", "30MB"])

    def test_a_budget_of_the_device_that_is_too_small_says_what_fits(self):
        placement = "weights=0/100/0 kv=100/0/0 hidden=100/0/0"
        words = ["--emulate-device", "14MiB", "--attention", "device", "--micro-batch"]
        self.refused("device memory", "no block fits", words=["--emulate-device", "64KiB"])
        done = self.refused("device memory", "the largest block that fits is --micro-batch",
                            words=[*words, "200"], placement=placement)
        fits = done.stderr.decode().split("--micro-batch ")[-1].split()[0]
        self.run_program(self.placed(*words, fits, placement=placement))

    def test_a_budget_of_the_disk_that_is_too_small_says_what_fits(self):
        self.refused("disk memory", "the budget is 0.1 MiB", words=["--disk-memory", "100KiB"])

    @unittest.skipIf("ASAN_OPTIONS" in os.environ, "shadow memory would be counted")
    def test_what_does_not_fit_streams(self):
        """Less and less memory, where nobody says what goes where: the same results, or a sentence."""
        want = self.want()
        streamed = refused = 0
        for mib in range(64, 16, -4):
            done = subprocess.run(
                self.words("--host-memory", f"{mib}MiB", "--disk-dir", self.scratch, "--overwrite",
                           "--disk-dir-any", "--cache-dir", self.cache, "--threads", "1"),
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=900)
            said = done.stderr.decode()
            if done.returncode != 0:
                self.assertEqual(done.returncode, 2, said)
                self.assertIn("host memory", said)
                refused += 1
                continue
            self.assertEqual(refused, 0, said)  # what fits in less fits in more
            self.assertEqual(self.sorted_lines(), want)
            weights = said.split("plan: placement weights=")[1].split()[0]
            streamed += float(weights.split("/")[2]) > 0
        self.assertGreater(streamed, 0)
        self.assertGreater(refused, 0)

    # ---- directories for scratch

    def test_a_scratch_directory_that_is_not_there_is_refused(self):
        self.refused("nowhere", "No such file", scratch=self.path("nowhere"))

    def test_a_scratch_directory_that_is_a_file_is_refused(self):
        with open(self.path("file"), "w", encoding="utf-8"):
            pass
        self.refused("expected a directory", scratch=self.path("file"))

    def test_a_scratch_directory_that_cannot_be_written_is_refused(self):
        disk = self.mount(1 << 20)
        libc = ctypes.CDLL(None, use_errno=True)
        self.assertEqual(libc.mount(b"none", disk.encode(), b"tmpfs", MS_RDONLY, b""), 0)
        self.addCleanup(libc.umount2, disk.encode(), MNT_DETACH)
        self.refused(disk, "no file can be made", scratch=disk)

    def test_a_scratch_directory_that_is_too_small_is_refused_with_both_figures(self):
        disk = self.mount(1 << 18)
        self.refused("are needed on the file system of", "262144 are free", scratch=disk)
        self.assertEqual(os.listdir(disk), [])

    def test_a_scratch_directory_in_memory_is_refused_unless_asked_for(self):
        want = self.want()
        disk = self.mount(1 << 26)
        words = self.placed(scratch=disk)
        words.remove("--disk-dir-any")
        done = self.run_program(words, 2)
        self.assert_says(done, "in memory (tmpfs)", "--disk-dir")
        self.run_program(self.placed(scratch=disk))
        self.assertEqual(self.sorted_lines(), want)

    def test_a_scratch_directory_may_be_named_twice(self):
        want = self.want()
        self.run_program(self.placed(scratch=self.scratch + "," + self.scratch))
        self.assertEqual(self.sorted_lines(), want)
        self.assertEqual(os.listdir(self.scratch), [])

    # ---- the cache that weights stream from

    def test_a_cache_without_room_is_refused_before_anything_is_written(self):
        self.cache = self.mount(1 << 20)
        self.refused(self.cache, "free")
        self.assertEqual(os.listdir(self.cache), [])

    def test_a_store_that_could_not_be_finished_is_made_anew(self):
        want = self.want()

        def small_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

        self.run_program(self.placed(placement="weights=0/0/100"), 4, preexec_fn=small_files)
        self.assertEqual(self.results() if os.path.exists(self.output) else {}, {})
        self.run_program(self.placed(placement="weights=0/0/100"))
        self.assertEqual(self.sorted_lines(), want)

    # ---- what a machine does not offer

    def test_direct_io_that_is_refused_is_done_without(self):
        want = self.want()
        disk = self.mount(1 << 26)
        try:
            os.close(os.open(disk, os.O_RDWR | os.O_DIRECT | os.O_TMPFILE))
            self.skipTest("this kernel's tmpfs takes O_DIRECT")
        except OSError as e:
            self.assertEqual(e.errno, errno.EINVAL)
        self.refused("direct I/O was asked for", disk, words=["--io-direct", "on"],
                            scratch=disk)
        done = self.run_program(self.placed(scratch=disk))
        self.assert_says(done, "through the page cache")
        self.assertEqual(self.sorted_lines(), want)

    def test_io_uring_that_is_forbidden_is_done_without(self):
        if platform.machine() not in ("x86_64", "aarch64"):
            self.skipTest("the filter is not written for this machine")
        want = self.want()
        done = self.run_program(self.placed("--io", "uring"), 2, preexec_fn=forbid_io_uring)
        self.assert_says(done, "io_uring")
        done = self.run_program(self.placed(), preexec_fn=forbid_io_uring)
        self.assert_says(done, "io_uring")
        self.assertEqual(self.sorted_lines(), want)

    def test_no_locked_memory_is_done_without(self):
        want = self.want()

        def no_locking():
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
            if os.geteuid() == 0:  # root may lock whatever the limit says
                libc = ctypes.CDLL(None, use_errno=True)
                libc.prctl(24, 14, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_IPC_LOCK: gone after exec

        self.run_program(self.placed(), preexec_fn=no_locking)
        self.assertEqual(self.sorted_lines(), want)
        # By name it works, or (kernels that count rings against the limit) says what is missing.
        done = subprocess.run(self.placed("--io", "uring", "--overwrite"), preexec_fn=no_locking,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=900)
        if done.returncode != 0:
            self.assertEqual(done.returncode, 2)
            self.assert_says(done, "the locked-memory limit is too low")

    def test_few_descriptors_are_enough(self):
        want = self.want()
        limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        self.run_program(self.placed("--emulate-device", "64MiB"), preexec_fn=limit)
        self.assertEqual(self.sorted_lines(), want)

    # ---- ends in the middle

    def slow(self, *words, **how):
        """Slow enough that something can happen while it runs."""
        return self.placed("--emulate-device", "64MiB", "--emulate-link", "0.2/0.2", *words, **how)

    def started(self):
        """The program, when it has written a result (or its end, should it be quick)."""
        before = os.path.getsize(self.output) if os.path.exists(self.output) else 0
        with open(self.path("said"), "wb") as said:
            child = subprocess.Popen(self.slow(), stderr=said)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        self.wait_for(lambda: child.poll() is not None or (
            os.path.exists(self.output) and os.path.getsize(self.output) > before), seconds=150)
        return child

    def test_a_kill_leaves_nothing_on_the_disk_and_the_run_goes_on(self):
        want = self.want(24)
        kills = 0
        for _ in range(5):
            child = self.started()
            if child.poll() is not None:
                break
            child.send_signal(signal.SIGKILL)
            child.wait()
            kills += 1
            self.assertEqual(os.listdir(self.scratch), [])
        self.assertGreater(kills, 0)
        self.run_program(self.slow())
        self.assertEqual(self.sorted_lines(), want)
        self.assertEqual(os.listdir(self.scratch), [])

    def test_weights_that_cannot_be_read_any_more_end_the_run_and_results_stay(self):
        want = self.want(24)
        child = self.started()
        store, = os.listdir(self.cache)
        data = os.path.join(self.cache, store, "data.0")
        os.truncate(data, 4096)
        self.assertEqual(child.wait(120), 4)
        with open(self.path("said"), encoding="utf-8") as f:
            said = f.read()
        self.assertIn("data.0", said)
        self.assertTrue(set(self.sorted_lines()) < set(want))
        self.assertEqual(os.listdir(self.scratch), [])
        # The store is seen to be broken, not believed.
        done = self.run_program(self.slow(), 2)
        self.assert_says(done, store)
        shutil.rmtree(self.cache)
        self.run_program(self.slow())
        self.assertEqual(self.sorted_lines(), want)


if __name__ == "__main__":
    unittest.main(verbosity=2)
