#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tok_unicode_table.c: tok_unicode.py > tok_unicode_table.c

Categories are those of `pip install unicodedata2==16.0.0`, scripts those of `fonttools==4.57.0`
(Unicode 16.0 both), ages those of perl 5.36 or later.  The versions are those of the tokenizers
library, whose ids a tokenizer must give: its patterns (Oniguruma) have Unicode 16.0, its
normaliser has 9.0.  To follow it to another version, compare every code point with that library,
as in `Split(Regex(r"\\p{Lu}"), "removed")` and `NFC()`."""
import subprocess
import sys

import unicodedata2
from fontTools.unicodedata import Scripts

VERSION, NFC_VERSION, BASE_VERSION = "16.0.0", "9.0", "14.0"
CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs "
              "Co Cn").split()
ASSIGNED_NFC, NEWER, NFC_ACTIVE = 0x80, 0x40, 0x20  # bits beside the category
MOVED = (0x1171e,)  # whose category changed after BASE_VERSION
SURROGATES, END = range(0xd800, 0xe000), 0x110000
NO_SCRIPT = 255


def assigned(version):
    """One bool a code point: was it assigned in this version?"""
    program = (r"no warnings; for my $c (0 .. 0x10ffff) "
               r"{ print chr($c) =~ /\p{Present_In: %s}/ ? 1 : 0 }" % version)
    text = subprocess.run(["perl", "-e", program], check=True, capture_output=True).stdout
    assert len(text) == END
    return [c == ord("1") for c in text]


def nfc_active():
    """Characters that move, change or compose with one before them: the others have class 0 and
    are Yes in NFC_Quick_Check."""
    seconds = set(range(0x1161, 0x1176)) | set(range(0x11a8, 0x11c3))  # Hangul vowels and finals
    active = set()
    for c in range(END):
        parts = unicodedata2.decomposition(chr(c)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            seconds.add(int(parts[1], 16))
        if unicodedata2.combining(chr(c)) or unicodedata2.normalize("NFC", chr(c)) != chr(c):
            active.add(c)
    return active | seconds


def script_values(codes):
    values, i = [], 0
    bounds = Scripts.RANGES[1:] + [END]
    for end, code in zip(bounds, Scripts.VALUES):
        values += [codes.index(code)] * (end - i)
        i = end
    for c in SURROGATES:
        values[c] = NO_SCRIPT
    return values


def print_rows(name, values):
    rows = [c << 8 | v for c, v in enumerate(values) if c == 0 or values[c - 1] != v]
    rows.append(END << 8)
    print(f"const uint32_t aq_unicode_{name}[] = {{")
    for i in range(0, len(rows), 8):
        print("    " + " ".join(f"0x{r:08x}," for r in rows[i:i + 8]))
    print("};")
    print(f"const uint32_t aq_unicode_{name}_count = {len(rows)};")


def main():
    assert unicodedata2.unidata_version == VERSION
    with open(Scripts.__file__, encoding="utf-8") as f:
        assert f"Scripts-{VERSION}.txt" in f.read()
    category = [CATEGORIES.index(unicodedata2.category(chr(c))) for c in range(END)]
    base, nfc = assigned(BASE_VERSION), assigned(NFC_VERSION)
    unassigned = CATEGORIES.index("Cn")
    active = nfc_active()
    for c in range(END):
        newer = (not base[c] and category[c] != unassigned) or c in MOVED
        category[c] |= NEWER * newer | ASSIGNED_NFC * nfc[c] | NFC_ACTIVE * (c in active)
    codes = sorted(set(Scripts.VALUES))
    assert len(codes) < NO_SCRIPT
    print("/* SPDX-License-Identifier: Apache-2.0")
    print(f" * Made by engine/tokenizer/unicode.py from the Unicode character database {VERSION}. */")
    print('#include "engine/tokenizer/unicode_table.h"\n')
    print("/* clang-format off */")
    print_rows("categories", category)
    print()
    print_rows("newer", [1 if v & NEWER else 0 for v in category])
    print()
    print_rows("scripts", script_values(codes))
    print("\n/* In the order of their numbers: the code of ISO 15924 and the name. */")
    print("const char *const aq_unicode_script_names[] = {")
    names = [f'"{code} {Scripts.NAMES[code]}",' for code in codes]
    for i in range(0, len(names), 3):
        print("    " + " ".join(names[i:i + 3]))
    print("    0,\n};")


if __name__ == "__main__":
    sys.exit(main())
