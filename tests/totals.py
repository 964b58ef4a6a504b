#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up the test logs of several builds: totals.py BUILDS.

Reads BUILDS/*/meson-logs/testlog*.json and BUILDS/*.failed (a build that did not come to be).  A
cmocka program counts as its tests, any other as one.  What failed is told with the lines that say
why, since its logs may be gone with the machine that made them.  Tests that took longest are named, for whoever
makes them shorter.  The last line is "N passed, N failed"; exit status 1 when anything failed or nothing ran.
"""
import glob
import json
import os
import re
import sys

RUN = re.compile(r"\[=+\] (\d+) test\(s\) run\.")
PASSED = re.compile(r"\[  PASSED  \] (\d+) test\(s\)\.")
FAILED = re.compile(r"\[  FAILED  \] (\d+) test\(s\)")
SKIPPED = re.compile(r"\[  SKIPPED \] (\d+) test\(s\)")

# Lines that say why a program failed: of cmocka, Python, sanitizers, libFuzzer, kcheck (a case, indented by three)
# and the emulated device; and the seed that plays it again.
REASON = re.compile(r"FAIL|[Ee]rror\b|ERROR|assert|SUMMARY|Base64|^\s+#[0-6] |^   [a-z]\w*: |^CUDA emulation: |\bseed \d")
REASON_FIRST, REASON_LAST, REASON_WIDTH = 8, 4, 400
LONGEST = 12


def reason(test):
    """The lines of a failed test's output that say why, the last ones where none does."""
    text = (test.get("stdout") or "") + (test.get("stderr") or "")
    lines = [line.rstrip()[:REASON_WIDTH] for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if REASON.search(line)]
    if len(telling) > REASON_FIRST + REASON_LAST:
        return telling[:REASON_FIRST] + telling[-REASON_LAST:]
    return telling or lines[-REASON_LAST:]


def first_number(pattern, text):
    match = pattern.search(text)
    return int(match.group(1)) if match else 0


def count(test):
    """(passed, failed, skipped) of one entry of a log."""
    text = (test.get("stdout") or "") + (test.get("stderr") or "")
    ok = test["result"] in ("OK", "EXPECTEDFAIL")
    if test["result"] == "SKIP":
        return 0, 0, 1
    if not RUN.search(text):
        return (1, 0, 0) if ok else (0, 1, 0)
    passed, failed = first_number(PASSED, text), first_number(FAILED, text)
    if not ok and failed == 0:
        failed = 1  # all went well until it crashed, leaked or timed out
    return passed, failed, first_number(SKIPPED, text)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sums, failures, times = [0, 0, 0], [], []
    for path in sorted(glob.glob(os.path.join(sys.argv[1], "*", "meson-logs", "testlog*.json"))):
        build = os.path.relpath(path, sys.argv[1]).split(os.sep)[0]
        here, taken = [0, 0, 0], 0
        with open(path, encoding="utf-8", errors="replace") as f:
            for test in map(json.loads, f):
                numbers = count(test)
                here = [a + b for a, b in zip(here, numbers)]
                seconds = test.get("duration", 0)
                taken += seconds
                times.append((seconds, f"{build} {test['name'].split(' / ')[-1]}"))
                if numbers[1]:
                    head = f"{build}: {test['name']}: {test['result']}"
                    failures.append("\n    ".join([head] + reason(test)))
                elif test["result"] == "SKIP":
                    print(f"skipped: {build}: {test['name']}")
        print(f"{build}: {here[0]} passed, {here[1]} failed, {here[2]} skipped, {taken:.0f} s of tests")
        sums = [a + b for a, b in zip(sums, here)]
    for path in sorted(glob.glob(os.path.join(sys.argv[1], "*.failed"))):
        with open(path, encoding="utf-8") as f:
            failures.append(f.read().strip())
        sums[1] += 1
    print("longest: " + ", ".join(f"{name} {seconds:.0f} s" for seconds, name in sorted(times)[:-LONGEST - 1:-1]))
    for failure in failures:
        print(f"FAILED: {failure}")
    if sums[0] == 0:
        print("nothing was run")
    print(f"{sums[0]} passed, {sums[1]} failed")
    sys.exit(1 if sums[1] or sums[0] == 0 else 0)


if __name__ == "__main__":
    main()
