#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every header of ours alone: alone.py ROOT BUILD COMPILER...

A header that only works behind others breaks the first file that includes it differently.  The
public header is also compiled as strict C99 and, where there is a compiler for it, as C++.
"""
import os
import shutil
import subprocess
import sys

FOLDERS = ("base", "policy", "offload", "kernels", "engine", "bench", "tests")
# Templates, meant to be included between definitions, and the halves that vec.h chooses from.
NOT_ALONE = ("_simd.h", "/vec_avx2.h", "/vec_avx512.h")
ISA_FLAGS = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"],
    "amx": ["-mamx-tile", "-mamx-bf16"],
}


def find_headers(root):
    for folder in FOLDERS:
        for at, folders, files in os.walk(os.path.join(root, folder)):
            folders.sort()
            for name in sorted(files):
                path = os.path.relpath(os.path.join(at, name), root)
                if name.endswith(".h") and not path.endswith(NOT_ALONE):
                    yield path


def variants(header, is_x86):
    """The sets of flags under which a header must compile."""
    if header == "kernels/cpu/tiles.h":
        return [["-DAQ_TILES_EMULATED"]] + ([ISA_FLAGS["amx"]] if is_x86 else [])
    if header == "kernels/cpu/vec.h":
        return [ISA_FLAGS["avx2"], ISA_FLAGS["avx512"]] if is_x86 else []
    if header == "kernels/cpu/vec_bf16.h":
        return [ISA_FLAGS["avx512"], [*ISA_FLAGS["avx512"], "-mavx512bf16"]] if is_x86 else []
    return [[]]


def compiles(command, text):
    out = subprocess.run([*command, "-"], input=text, capture_output=True, text=True)
    if out.returncode != 0:
        print(" ".join(command))
        print(out.stderr)
    return out.returncode == 0


def main():
    root, build, compiler = sys.argv[1], sys.argv[2], sys.argv[3:]
    where = ["-I", root, "-I", build, "-I", os.path.join(build, "engine")]
    common = ["-fsyntax-only", "-Wall", "-Wextra", "-Wundef", "-Werror", *where]
    c17 = [*compiler, "-x", "c", "-std=c17", "-D_GNU_SOURCE", "-Wno-unused-function",
           "-Wno-unused-parameter", "-Wno-unused-const-variable", *common]
    headers = list(find_headers(root))
    failed = []
    is_x86 = os.uname().machine == "x86_64"
    for header in headers:
        for flags in variants(header, is_x86):
            if not compiles([*c17, *flags], f'#include "{header}"\n'):
                failed.append(" ".join([header, *flags]))
    public = '#include "engine/aquifer.h"\n'
    if not compiles([*compiler, "-x", "c", "-std=c99", "-pedantic-errors", *common], public):
        failed.append("engine/aquifer.h as C99")
    cxx = shutil.which("c++") or shutil.which("clang++")
    if not cxx:
        print("note: no C++ compiler, the public header was not tried as C++")
    elif not compiles([cxx, "-x", "c++", "-std=c++11", "-pedantic-errors", *common], public):
        failed.append("engine/aquifer.h as C++")
    print(f"{len(headers)} headers, {len(failed)} do not compile alone: {', '.join(failed)}")
    sys.exit(1 if failed or len(headers) < 10 else 0)


if __name__ == "__main__":
    main()
