# SPDX-License-Identifier: Apache-2.0
"""The program that the wheel carries: `aquifer`, and `python -m aquifer`."""
from __future__ import annotations

import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Becomes the program, with the words of the command line."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "aquifer")
    if not os.path.exists(program):
        sys.exit("aquifer: this Python package carries no program, as its wheel does; the one that "
                 "was installed or built beside it runs by itself, without Python")
    os.execv(program, ["aquifer", *sys.argv[1:]])


if __name__ == "__main__":
    main()
