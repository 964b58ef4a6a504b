#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files as a C table: embed.py OUTPUT.c NAME FILE...

Defines aq_embedded_NAME and aq_embedded_NAME_count (engine/embedded.h): each file's name without its
suffix, and its text, in the order given.
"""
import os
import sys


def c_string(data):
    out = []
    for byte in data:
        if byte in (0x22, 0x5c):
            out.append("\\" + chr(byte))
        elif 0x20 <= byte < 0x7f:
            out.append(chr(byte))
        else:
            out.append(f"\\{byte:03o}")
    return '"' + "".join(out) + '"'


def main():
    output, name, files = sys.argv[1], sys.argv[2], sys.argv[3:]
    stem = {os.path.splitext(os.path.basename(f))[0]: f for f in files}
    lines = ["/* SPDX-License-Identifier: Apache-2.0 */", '#include "engine/embedded.h"', "",
             f"const struct aq_embedded aq_embedded_{name}[] = {{"]
    for key in stem:
        with open(stem[key], "rb") as f:
            data = f.read()
        lines.append(f"    {{{c_string(key.encode())}, {len(data)},")
        lines += ["     " + c_string(line) for line in data.splitlines(keepends=True)] or ['     ""']
        lines[-1] += "},"
    lines += ["};", f"const uint32_t aq_embedded_{name}_count = {len(stem)};", ""]
    with open(output, "w", encoding="ascii") as f:
        f.write("\n".join(lines))


if __name__ == "__main__":
    main()
