#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench/gpu_bundle.sh makes starts where nothing is but the C library: its programs run in an empty root, with
the emulated module as the CUDA backend.

    bundle.py SOURCE BUILD MODULE

Skipped where patchelf is missing or a root cannot be changed."""
import json, os, shutil, subprocess, sys, tempfile, unittest

SOURCE, BUILD, MODULE = sys.argv[1:4]
LIBC = ("libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2")
# Its own mounts, in which the root gets what a machine has: /proc, /dev and /sys.
INSIDE = """set -e
for d in proc dev sys; do mount --rbind /$d "$ROOT/$d"; done
exec chroot "$ROOT" "$@"
"""


def enter(root, *command, **more):
    words = ["unshare", *(["-r"] if os.getuid() else []), "-m", "sh", "-c", INSIDE, "sh", *command]
    env = {"ROOT": root, "PATH": os.environ["PATH"], **more}
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=300, check=False)


class Bundle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not shutil.which("patchelf"):
            raise unittest.SkipTest("patchelf is not installed")
        cls.dir = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.dir.cleanup)
        cls.root = os.path.join(cls.dir.name, "root")
        for d in ("proc", "dev", "sys", "tmp", "lib64", "bundle"):
            os.makedirs(os.path.join(cls.root, d))
        made = subprocess.run(["sh", os.path.join(SOURCE, "bench", "gpu_bundle.sh"), BUILD,
                               os.path.join(cls.root, "bundle"), MODULE], capture_output=True, text=True, check=False)
        if made.returncode:
            raise AssertionError(made.stderr)
        for line in subprocess.run(["ldd", os.path.join(BUILD, "engine", "cli", "aquifer")], capture_output=True, text=True,
                                   check=True).stdout.split("\n"):
            path = next((w for w in line.split() if w.startswith("/") and os.path.basename(w) in LIBC), None)
            if path:
                shutil.copy(path, os.path.join(cls.root, "lib64"))
        if enter(cls.root, "/lib64/ld-linux-x86-64.so.2", "--help").returncode:
            raise unittest.SkipTest("no root can be changed here")

    def run_inside(self, *command, **more):
        # Debian's loader looks below /lib; a root with nothing else has its library beside the loader.
        done = enter(self.root, *command, LD_LIBRARY_PATH="/lib64", **more)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        return done.stdout

    def test_the_program_finds_its_gpu(self):
        backends = json.loads(self.run_inside("/bundle/aquifer", "info", "--json"))["backends"]
        self.assertEqual({b["name"]: b["usable"] for b in backends}, {"cpu": True, "cuda": True})

    def test_golden_tokens_come_out(self):
        with open(os.path.join(SOURCE, "tests", "data", "tiny-opt", "golden", "greedy.jsonl"), encoding="utf-8") as f:
            golden = json.loads(f.readline())
        with open(os.path.join(self.root, "tmp", "in.jsonl"), "w", encoding="utf-8") as f:
            f.write(json.dumps({"id": 1, "prompt": golden["prompt_ids"]}) + "\n")
        self.run_inside("/bundle/aquifer", "generate", "--model", "/bundle/tests/data/tiny-opt", "--input", "/tmp/in.jsonl",
                        "--output", "/tmp/out.jsonl", "--device", "cuda", "--compute", "f32", "--kv-format", "f32",
                        "--max-tokens", "4", "--ignore-eos", "--cache-dir", "/tmp")
        with open(os.path.join(self.root, "tmp", "out.jsonl"), encoding="utf-8") as f:
            self.assertEqual(json.loads(f.readline())["tokens"], golden["tokens"][:4])

    def test_kernels_are_checked(self):
        said = self.run_inside("/bundle/kcheck_gpu", "--sample", "400", AQ_CUDA_MODULE="/bundle/aquifer_cuda.so")
        self.assertIn("all within their limits", said)

    def test_nothing_is_looked_for_elsewhere(self):
        for name in ("aquifer", "kcheck_gpu", "test_e2e_gpu", "aquifer_cuda.so"):
            said = self.run_inside("/lib64/ld-linux-x86-64.so.2", "--list", f"/bundle/{name}")
            self.assertNotIn("not found", said)
            if name != "aquifer_cuda.so":
                self.assertIn("/bundle/lib/", said)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
