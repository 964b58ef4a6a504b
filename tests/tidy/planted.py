#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The checks of floors find what they are for: planted.py TIDY.

Makes small trees, each with one violation of a kind, and one without; exit status 1 tells which was missed."""
import os
import subprocess
import sys
import tempfile

FLOORS = """2 upper: face.h
1 left: open.h
1 right:
0 .: root.h
"""
CLEAN = {
    "engine/floors.txt": FLOORS,
    "engine/root.h": "",
    "engine/top.c": '#include "engine/root.h"\n',
    "engine/upper/face.h": "",
    "engine/upper/a.c": '#include "engine/left/open.h"\n#include "engine/root.h"\n#include "base/b.h"\n',
    "engine/left/open.h": '#include "engine/left/own.h"\n',
    "engine/left/own.h": "",
    "engine/left/a.c": '#include "engine/root.h"\n',
    "engine/right/a.c": "",
    "base/b.h": "",
    "base/b.c": '#include "base/b.h"\n',
    "engine/cli/a.c": '#include "engine/upper/face.h"\n',
}
CLEAN["engine/floors.txt"] = "3 cli:\n" + FLOORS
PLANTED = {
    "a folder above": ({"engine/left/a.c": '#include "engine/upper/face.h"\n'}, "may not include engine/upper/face.h"),
    "a folder beside": ({"engine/right/a.c": '#include "engine/left/open.h"\n'}, "may not include engine/left/open.h"),
    "a folder from the root": ({"engine/top.c": '#include "engine/left/open.h"\n'}, "may not include engine/left/open.h"),
    "a private header": ({"engine/upper/a.c": '#include "engine/left/own.h"\n#include "engine/left/open.h"\n'},
                         "engine/left/own.h is private to left"),
    "a folder without a floor": ({"engine/new/a.c": ""}, "the folder 'new' has no floor"),
    "a public header that is gone": ({"engine/floors.txt": CLEAN["engine/floors.txt"].replace("open.h", "open.h lost.h")},
                                     "engine/left/lost.h does not exist"),
    "a public header that nobody uses": ({"engine/floors.txt": CLEAN["engine/floors.txt"].replace("open.h", "open.h own.h")},
                                         "nobody else includes own.h"),
    "a circle within a folder": ({"engine/left/own.h": '#include "engine/left/open.h"\n'},
                                 "engine/left/open.h -> engine/left/own.h -> engine/left/open.h"),
    "a circle beneath": ({"base/b.h": '#include "base/c.h"\n', "base/c.h": '#include "base/b.h"\n'},
                         "base/b.h -> base/c.h -> base/b.h"),
}


def findings(tidy, files):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        run = subprocess.run([sys.executable, tidy, root, "floors"], capture_output=True, text=True)
        return run.returncode, run.stdout + run.stderr


def main():
    tidy, missed = sys.argv[1], 0
    status, text = findings(tidy, CLEAN)
    if status != 0:
        print(f"a clean tree is not clean: {text}")
        missed += 1
    for what, (files, expected) in PLANTED.items():
        status, text = findings(tidy, {**CLEAN, **files})
        lines = text.strip().split("\n")
        if status != 1 or len(lines) != 1 or expected not in lines[0]:
            print(f"{what}: expected one line with '{expected}', found {status}: {text}")
            missed += 1
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
