#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""In a sanitized build: a program that a script starts, with the script's environment, ends where a
sanitizer finds something, and in a status that no test expects.

    sanitizers.py PROGRAM"""
import subprocess
import sys

FOUND = {"overflow": "runtime error: signed integer overflow",
         "beyond": "AddressSanitizer: heap-buffer-overflow",
         "leak": "LeakSanitizer: detected memory leaks",
         **{array: "AddressSanitizer: heap-buffer-overflow" for array in ("x", "w", "bias", "y")}}

for what in ("nothing", *FOUND):
    done = subprocess.run([sys.argv[1], what], capture_output=True, text=True)
    status = 99 if what in FOUND else 0
    if done.returncode != status or FOUND.get(what, "") not in done.stderr:
        sys.exit(f"{what}: expected status {status}, found {done.returncode}: {done.stderr}")
    if what == "overflow" and done.stdout:
        sys.exit(f"overflow: the program went on: {done.stdout}")
