#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Do two versions of the program choose the same plans?

    python3 bench/plans.py BEFORE AFTER [--hardware configs/hardware/NAME.yaml]

BEFORE and AFTER are build folders.  The requests are the configurations of bench/best.py; each is planned by both with
the same profile of a machine (`bench --dry-run --json`), and placement, block, formats, pages and every line of the
ledger are compared.  Left out are the process's own memory, which is measured, and predicted times; of plans that
differ the predicted rates are printed.  Exit status 1 when a plan differs."""
import argparse
import json
import sys
import tempfile

import best
import runs


def plan(build, args, hardware):
    """What was chosen, by name, and the predicted generated tokens a second."""
    command = [runs.program(build), "bench", "--random-weights", "1", "--json", "--quiet", "--dry-run", "--hardware",
               hardware, *args]
    chosen = json.loads(runs.text_of(command))
    lines = chosen.pop("ledger")
    chosen.pop("memory")
    predicted = chosen.pop("predicted")
    for line in lines:
        if line["purpose"] != "process":
            chosen[f"{line['tier']}: {line['purpose']}"] = line["bytes"]
    return chosen, predicted["gen_tok_s"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("before")
    p.add_argument("after")
    p.add_argument("--hardware", default="configs/hardware/epyc-zen5-2vcpu.yaml")
    a = p.parse_args()
    differing = 0
    with tempfile.TemporaryDirectory(prefix="aquifer-plans-") as folder:
        for config in best.CONFIGS:
            args = [runs.shape(str(x), folder) for x in config["args"]]
            before, rate_before = plan(a.before, args, a.hardware)
            after, rate_after = plan(a.after, args, a.hardware)
            keys = [k for k in {**before, **after} if before.get(k) != after.get(k)]
            differing += bool(keys)
            print(f"{config['name']}: {'differs' if keys else 'the same'}")
            for key in keys:
                print(f"  {key}: {before.get(key)}, then {after.get(key)}")
            if keys:
                print(f"  predicted: {rate_before:.4g}, then {rate_after:.4g} tokens/s")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
