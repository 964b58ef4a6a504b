#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The gates of sass.py see what they are for: loops with too little on its way, generic loads, stacks, more registers."""
import unittest

import sass

# Four rows ahead; one row after the other; the same by generic loads.
AHEAD = """.text.ahead:
.L_x_1:
        /*0010*/                   LDG.E.128 R4, desc[UR6][R2.64] ;
        /*0020*/                   LDG.E.128 R8, desc[UR6][R2.64+0x10] ;
        /*0030*/                   LDG.E.128 R12, desc[UR6][R2.64+0x20] ;
        /*0040*/                   LDG.E.128 R16, desc[UR6][R2.64+0x30] ;
        /*0050*/                   FFMA R20, R4, R8, R20 ;
        /*0060*/              @!P0 BRA `(.L_x_1) ;
        /*0070*/                   EXIT ;
"""
ONE = """.text.one:
.L_x_2:
        /*0010*/                   LDG.E.64 R4, desc[UR6][R2.64] ;
        /*0020*/                   FFMA R20, R4, R5, R20 ;
        /*0030*/                   LDG.E.64 R4, desc[UR6][R2.64+0x8] ;
        /*0040*/                   FFMA R20, R4, R5, R20 ;
        /*0050*/               @P0 BRA `(.L_x_2) ;
"""
INFO = """ //----- nvinfo : EIATTR_REGCOUNT
 .align 4
        /*0000*/  .byte 0x04, 0x2f
        /*0002*/  .short (.L_1 - .L_0)
 .align 4
.L_0:
        /*0004*/  .word index@(ahead)
        /*0008*/  .word 0x00000030


 //----- nvinfo : EIATTR_MIN_STACK_SIZE
 .align 4
.L_95:
        /*0240*/  .byte 0x04, 0x12
        /*0242*/  .short (.L_97 - .L_96)
 .align 4
.L_96:
        /*0244*/  .word index@(ahead)
        /*0248*/  .word 0x00000008
 .section .nv.shared.ahead,"aw",@nobits
 .align 16
 .zero 1024
"""
GATES = {"loops": [{"kernel": "ahead|one", "sm": [90], "bytes": 64}], "nvcc": "1", "kept": {"90": {"ahead": [40, 64]}}}


def said(text, name, stack=0, registers=40, version="1"):
    kernel = {"registers": registers, "stack": stack, "loops": sass.loops(sass.functions(text)[name])}
    return " ".join(sass.judge(GATES, 90, {name: kernel}, version))


class Planted(unittest.TestCase):
    def test_what_is_well_is_held(self):
        self.assertEqual(sass.loops(sass.functions(AHEAD)["ahead"]), [(6, 4, 64, False)])
        self.assertEqual(said(AHEAD, "ahead"), "")

    def test_one_load_at_a_time_is_seen(self):
        self.assertEqual(sass.loops(sass.functions(ONE)["one"])[0][1:], (1, 8, False))
        self.assertIn("8 bytes a thread on their way, at least 64 expected", said(ONE, "one"))

    def test_generic_loads_are_seen(self):
        self.assertIn("a generic load in a loop", said(AHEAD.replace("LDG.E.128 R12", "LD.E.128 R12"), "ahead"))

    def test_copies_are_waited_for_by_a_barrier_alone(self):
        copy = ONE.replace("LDG.E.64 R4, desc[UR6][R2.64]", "LDGSTS.E.BYPASS.128 [R4], desc[UR6][R2.64]", 1)
        copy = copy.replace("LDG.E.64 R4, desc[UR6][R2.64+0x8]", "IADD3 R2, R2, R5, RZ")
        self.assertEqual(sass.loops(sass.functions(copy)["one"])[0][2], 64)
        waits = copy.replace("IADD3 R2, R2, R5, RZ", "DEPBAR.LE SB0, 0x1")
        self.assertEqual(sass.loops(sass.functions(waits)["one"])[0][2], 16)

    def test_a_kernel_without_a_loop_is_judged_by_all_its_code(self):
        unrolled = AHEAD.replace("ahead:", "unrolled:").replace(".L_x_1:\n", "").replace("@!P0 BRA `(.L_x_1)", "NOP")
        kernel = {"registers": 40, "stack": 0, "loops": [], "straight": sass.in_flight(
            sass.functions(unrolled)["unrolled"])[1:]}
        gates = {"loops": [{"kernel": "unrolled", "sm": [90], "bytes": 64, "straight": True}], "nvcc": "1", "kept": {}}
        self.assertEqual(list(sass.judge(gates, 90, {"unrolled": kernel}, "1")), [])
        gates["loops"][0]["bytes"] = 80
        self.assertIn("64 bytes a thread", " ".join(sass.judge(gates, 90, {"unrolled": kernel}, "1")))

    def test_stacks_registers_and_other_loops_are_seen(self):
        self.assertEqual(sass.resources(INFO), {"ahead": (48, 8, 1024)})
        self.assertIn("8 bytes of stack", said(AHEAD, "ahead", 8))
        allowed = {**GATES, "stacks": {"90": {"ahead": 8}}}
        kernel = {"registers": 40, "loops": sass.loops(sass.functions(AHEAD)["ahead"])}
        self.assertEqual(list(sass.judge(allowed, 90, {"ahead": {**kernel, "stack": 8}}, "1")), [])
        self.assertIn("12 bytes of stack", " ".join(sass.judge(allowed, 90, {"ahead": {**kernel, "stack": 12}}, "1")))
        self.assertIn("48 registers, 40 are kept", said(AHEAD, "ahead", 0, 48))
        self.assertEqual(said(AHEAD, "ahead", 0, 48, "2"), "")
        two = {**GATES, "kept": {"90": {"ahead": [40, 64, 16]}}}
        loops = kernel["loops"] + [(9, 1, 8, False)]
        self.assertIn("its loops have [64, 8] bytes on their way, [64, 16] are kept",
                      " ".join(sass.judge(two, 90, {"ahead": {**kernel, "stack": 0, "loops": loops}}, "1")))

    def test_code_that_is_planted_waits_for_each_load(self):
        code = sass.functions(AHEAD)["ahead"] + ["LDGSTS.E.BYPASS.128 [R9], desc[UR6][R2.64]"]
        self.assertEqual(sass.in_flight(list(sass.one_at_a_time(code)))[:2], (1, 16))

    def test_a_kernel_that_is_gone_is_named(self):
        self.assertIn("no kernel is called 'ahead|one'", " ".join(sass.judge(GATES, 90, {}, "1")))


if __name__ == "__main__":
    unittest.main()
