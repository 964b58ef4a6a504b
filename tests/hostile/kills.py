#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random points, start again, 20 times over: the results equal those of a run that nobody
disturbed, each record once, in any order of finishing.

    kills.py AQUIFER MODEL [KILLS] [SEED]"""
import json, os, random, signal, subprocess, sys, tempfile, time

aquifer, model = sys.argv[1], sys.argv[2]
kills = int(sys.argv[3]) if len(sys.argv) > 3 else 20
seed = int(sys.argv[4]) if len(sys.argv) > 4 else int(time.time())
print(f"seed {seed}")
draw = random.Random(seed)
words = "the of and a to in he was it his that she her with had as for you not at on but be him".split()


def records(count):
    for i in range(count):
        r = {"id": f"r{i}", "prompt": " ".join(draw.choice(words) for _ in range(draw.randint(1, 40))),
             "max_tokens": draw.randint(1, 40), "temperature": draw.choice([0, 0.9])}
        if i % 7 == 3:
            r["n"], r["temperature"] = 2, 0.7
        if i % 11 == 5:
            r["max_tokens"] = -1  # an error record
        yield r


def command(where, output, extra):
    return [aquifer, "generate", "--device", "cpu", "--model", model, "--input", os.path.join(where, "in.jsonl"),
            "--output", output, "--quiet", "--micro-batch", "4", *extra]


def lines(path):
    with open(path, encoding="utf-8") as f:
        return sorted(f)


def check(ok, what):
    if not ok:
        print(f"FAILED: {what} (seed {seed})")
        sys.exit(1)


def disturb(words, output, kills, whole):
    """Runs and kills until the work is done; returns the kills."""
    killed = 0
    while killed < kills:
        run = subprocess.Popen(words)
        try:
            # Most kills fall into the middle; some at the very start, when the files are just being made.
            status = run.wait(timeout=draw.uniform(0, max(0.2, 1.5 * whole / 10 * draw.choice([0.3, 1, 3]))))
            check(status in (0, 3), f"a resumed run ends with status 0 or 3, not {status}")
            return killed
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGKILL)
            run.wait()
            killed += 1
    status = subprocess.run(words).returncode
    check(status in (0, 3), f"the last run ends with status 0 or 3, not {status}")
    return killed


def one_mode(where, extra):
    name = "-".join(extra).strip("-") or "plain"
    want, got = os.path.join(where, name + ".want"), os.path.join(where, name + ".got")
    start = time.monotonic()
    check(subprocess.run(command(where, want, extra)).returncode == 3, "the undisturbed run ends with status 3")
    whole = time.monotonic() - start
    killed = 0
    for attempt in range(100):  # a run that ends before all kills are spent is compared, and another begins
        output = f"{got}{attempt}"
        killed += disturb(command(where, output, extra), output, kills - killed, whole)
        check(lines(want) == lines(output), f"{name}: results after {killed} kills equal the undisturbed ones")
        if "--ordered" in extra:
            check(open(want, "rb").read() == open(output, "rb").read(), "ordered results are the same bytes")
        if killed >= kills:
            break
    print(f"{name}: {killed} kills in {attempt + 1} runs of {len(lines(want))} results, equal")
    check(killed >= kills, f"{kills} kills were made")


with tempfile.TemporaryDirectory() as d:
    with open(os.path.join(d, "in.jsonl"), "w", encoding="utf-8") as f:
        for r in records(120):
            f.write(json.dumps(r) + "\n")
    one_mode(d, [])
    one_mode(d, ["--ordered"])
