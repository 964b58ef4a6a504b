#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Do two versions of the program choose the same plans?

    python3 bench/plans.py BEFORE AFTER [--hardware configs/hardware/NAME.yaml]

BEFORE and AFTER are build folders.  The requests are the configurations of bench/best.py; each is planned by both with
the same profile of a machine (`bench --dry-run --json`), and placement, block, formats, pages and every line of the
ledger are compared.  Left out are the process's own memory, which is measured, and predicted times.  Exit status 1 when
a plan differs."""
import argparse
import json
import sys

import best
import runs


def plan(build, config, hardware):
    command = [runs.program(build), "bench", "--random-weights", "1", "--json", "--quiet", "--dry-run", "--hardware",
               hardware, *map(str, config["args"])]
    chosen = json.loads(runs.text_of(command))
    lines = chosen.pop("ledger")
    for measured in ("memory", "predicted"):
        chosen.pop(measured)
    for line in lines:
        if line["purpose"] != "process":
            chosen[f"{line['tier']}: {line['purpose']}"] = line["bytes"]
    return chosen


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("before")
    p.add_argument("after")
    p.add_argument("--hardware", default="configs/hardware/epyc-zen5-2vcpu.yaml")
    a = p.parse_args()
    differing = 0
    for config in best.CONFIGS:
        before, after = plan(a.before, config, a.hardware), plan(a.after, config, a.hardware)
        keys = [k for k in {**before, **after} if before.get(k) != after.get(k)]
        differing += bool(keys)
        print(f"{config['name']}: {'differs' if keys else 'the same'}")
        for key in keys:
            print(f"  {key}: {before.get(key)}, then {after.get(key)}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
