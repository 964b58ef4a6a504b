# SPDX-License-Identifier: Apache-2.0
"""A case with the program in a folder of its own, and the emulated module beside it, as a user's would be.

Environment: AQ_PROGRAM, AQ_CUDA_MODULE."""
import os, shutil, tempfile, unittest


class GpuCase(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.program = shutil.copy(os.environ["AQ_PROGRAM"], self.dir.name)
        self.module = shutil.copy(os.environ["AQ_CUDA_MODULE"], self.path("aquifer_cuda.so"))

    def path(self, name):
        return os.path.join(self.dir.name, name)
