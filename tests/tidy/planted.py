#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The checks of floors and of architectures find what they are for: planted.py TIDY.

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
# What knows of an architecture ('row') outside its file.
ARCHITECTURES = {"engine/model/arch/arch.c": "row\n", "engine/model/arch/parts.c": "row\n",
                 "engine/model/arch/table.c": "const struct aq_arch aq_arch_row = {RowForCausalLM, fc1, model.decoder.\n",
                 "engine/left/names.c": "parts = rows = arrow(tomorrow); /* fc10, model.decode, /row/lib */\n"}
KNOWN = {
    "an architecture in a comment": ("/* as Row has it */\n", "'Row' is for"),
    "an architecture's function": ("aq_row_steps(m);\n", "'row' is for"),
    "an architecture's constant": ("ROW_BOS = 2,\n", "'ROW' is for"),
    "a shape's name": ('"row-1.3b"\n', "'row' is for"),
    "a class of another library": ('"OtherForCausalLM"\n', "'OtherForCausalLM' is for"),
    "a prefix of tensors": ('"model.decoder.x"\n', "'model.decoder.' is for"),
    "a tensor": ('".fc2.weight"\n', "'fc2' is for"),
    "the head": ('"lm_head.weight"\n', "'lm_head' is for"),
}


def findings(tidy, check, files):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        run = subprocess.run([sys.executable, tidy, root, check], capture_output=True, text=True)
        return run.returncode, run.stdout + run.stderr


def main():
    tidy, missed = sys.argv[1], 0
    planted = [("floors", what, {**CLEAN, **files}, expected) for what, (files, expected) in PLANTED.items()]
    homed = {**CLEAN, **ARCHITECTURES}
    planted += [("architectures", what, {**homed, "kernels/cpu/a.c": text}, expected)
                for what, (text, expected) in KNOWN.items()]
    planted += [("architectures", "a table without rows", CLEAN, "expected a row for each architecture")]
    for check, files in (("floors", CLEAN), ("architectures", homed)):
        status, text = findings(tidy, check, files)
        if status != 0:
            print(f"{check}: a clean tree is not clean: {text}")
            missed += 1
    for check, what, files, expected in planted:
        status, text = findings(tidy, check, files)
        lines = text.strip().split("\n")
        if status != 1 or len(lines) != 1 or expected not in lines[0]:
            print(f"{what}: expected one line with '{expected}', found {status}: {text}")
            missed += 1
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
