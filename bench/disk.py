#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast weights stream from a disk, beside what the disk can do.

    python3 bench/disk.py --file FILE [--size 4G] [--build build] [--rounds 7]
                          [--configs 1M:16,4M:8] [--reserve-huge-pages] [--json OUT]

Reads one file again and again with three readers in turn: the transfers of offload/ (as they are by
default), a bare io_uring loop, and fio (io_uring, O_DIRECT, huge-page buffers; left out where it is not
installed), the latter two with every --configs REQUEST:DEPTH.  The file is written first when it is not
there; it is not removed.  Nothing of it is in the page cache: all readers pass it by.

fio takes huge pages from the system's pool.  --reserve-huge-pages lets this script raise
vm.nr_hugepages for as long as it runs (needs root); otherwise, with too small a pool, fio has ordinary
pages and is the slower for it.

Prints medians, and the share of the best of the others that ours reaches; exit status 1 when that is
below 0.95."""
import argparse, json, os, platform, shutil, statistics, subprocess, sys

NEEDED = 0.95
POOL = "/proc/sys/vm/nr_hugepages"

def size_of(text):
    units = {"K": 10, "M": 20, "G": 30}
    return int(text[:-1]) << units[text[-1]] if text[-1] in units else int(text)

class HugePages:
    """The system's pool, raised where that is allowed and put back at the end."""
    def __init__(self, want_bytes, may_raise):
        self.before = None
        want = want_bytes // (2 << 20) + 4
        try:
            have = int(open(POOL).read())
            free = next(int(l.split()[1]) for l in open("/proc/meminfo") if l.startswith("HugePages_Free"))
            if free < want and may_raise:
                open(POOL, "w").write(str(have + want - free))
                self.before = have
                free = next(int(l.split()[1]) for l in open("/proc/meminfo") if l.startswith("HugePages_Free"))
            self.enough = free >= want
        except (OSError, StopIteration):
            self.enough = False
    def __enter__(self):
        return self
    def __exit__(self, *_):
        if self.before is not None:
            open(POOL, "w").write(str(self.before))

def ours(args, reader, config=None):
    command = [f"{args.build}/bench/disk", "--reader", reader, "--file", args.file, "--size", args.size]
    if config:
        command += ["--request", config[0], "--depth", config[1]]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)

def fio(args, config, huge):
    command = [args.fio, "--name=read", f"--filename={args.file}", "--readonly", "--rw=read", "--direct=1",
               "--ioengine=io_uring", "--fixedbufs=1", "--registerfiles=1", f"--bs={config[0]}",
               f"--iodepth={config[1]}", f"--size={args.size}", "--output-format=json"]
    if huge:
        command.append("--iomem=shmhuge")
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if out.returncode != 0 and "--fixedbufs=1" in command:  # the locked-memory limit of an ordinary user
        command.remove("--fixedbufs=1")
        out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if out.returncode != 0:
        sys.exit(f"fio failed: {out.stderr.strip()}")
    job = json.loads(out.stdout[out.stdout.index("{"):])["jobs"][0]
    return dict(gb_per_s=job["read"]["bw_bytes"] / 1e9, bytes=job["read"]["io_bytes"],
                cpu_seconds=(job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3)

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--file", required=True)
    p.add_argument("--size", default="4G")
    p.add_argument("--build", default="build")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--configs", default="1M:16,4M:8")
    p.add_argument("--fio", default=shutil.which("fio"))
    p.add_argument("--reserve-huge-pages", action="store_true")
    p.add_argument("--json")
    args = p.parse_args()
    configs = [c.split(":") for c in args.configs.split(",")]
    if not os.path.exists(args.file) or os.path.getsize(args.file) < size_of(args.size):
        made = ours(args, "create")
        print(f"wrote {args.file}: {made['gb_per_s']:.2f} GB/s", file=sys.stderr)
    if not args.fio:
        print("fio is not installed: only the bare reader is compared with", file=sys.stderr)
    most = max(size_of(request) * int(depth) for request, depth in configs)
    with HugePages(most, args.reserve_huge_pages) as pool:
        if args.fio and not pool.enough:
            print("fio has ordinary pages: the pool of huge pages is too small (--reserve-huge-pages)", file=sys.stderr)
        readers = [("xfer", "default", lambda: ours(args, "xfer"))]
        for c in configs:
            readers.append(("bare", ":".join(c), lambda c=c: ours(args, "bare", c)))
            if args.fio:
                readers.append(("fio", ":".join(c), lambda c=c: fio(args, c, pool.enough)))
        samples = {r[:2]: [] for r in readers}
        for i in range(args.rounds):
            for name, config, read in readers[i % len(readers):] + readers[:i % len(readers)]:
                samples[name, config].append(read())
    report(args, samples, pool)

def report(args, samples, pool):
    rows, checks = [], set()
    for (reader, config), runs in samples.items():
        rates = [r["gb_per_s"] for r in runs]
        checks.update(r["check"] for r in runs if "check" in r)
        row = dict(reader=reader, config=config, gb_per_s=statistics.median(rates), least=min(rates), most=max(rates),
                   cpu_s_per_gb=statistics.median(r["cpu_seconds"] / r["bytes"] * 1e9 for r in runs))
        if reader == "xfer":
            row.update(depth=statistics.median(r["depth"] for r in runs), engine=runs[0]["engine"],
                       direct=runs[0]["direct"], fixed_buffers=runs[0]["fixed_buffers"],
                       huge_share=runs[0]["huge_bytes"] / runs[0]["buffer_bytes"])
        rows.append(row)
        print(f"{reader:5} {config:8} {row['gb_per_s']:6.2f} GB/s  [{row['least']:.2f}-{row['most']:.2f}]  "
              f"{row['cpu_s_per_gb']:.3f} CPU-s/GB" + (f"  queue depth {row['depth']:.1f}, huge pages "
              f"{row['huge_share']:.0%}" if reader == "xfer" else ""))
    best = max((r for r in rows if r["reader"] != "xfer"), key=lambda r: r["gb_per_s"])
    share = rows[0]["gb_per_s"] / best["gb_per_s"]
    ok = share >= NEEDED and len(checks) == 1
    print(f"{'ok  ' if ok else 'MISS'} share of the best other ({best['reader']} {best['config']}): {share:.3f} (must reach {NEEDED})")
    if len(checks) != 1:
        print("MISS the readers did not read the same bytes")
    if args.json:
        with open(args.json, "w") as f:
            json.dump(dict(machine=platform.machine(), kernel=platform.release(), bytes=size_of(args.size), rounds=args.rounds,
                           huge_pages_for_fio=pool.enough, rows=rows, best=best, share=share, needed=NEEDED,
                           samples=[dict(reader=k[0], config=k[1], runs=v) for k, v in samples.items()]), f, indent=1)
    sys.exit(0 if ok else 1)

if __name__ == "__main__":
    main()
