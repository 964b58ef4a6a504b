#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What nvcc made of the CUDA kernels: registers, spills, and how many bytes a thread has on their way in each loop.

    sass.py FOLDER                 compiles kernels/cuda/*.cu into FOLDER and compares with gates.json
    sass.py FOLDER --list WORD     prints the loops of kernels with WORD in their names
    sass.py FOLDER --keep          writes registers as found into gates.json

A memory-bound kernel reaches the memory's speed only where enough bytes are asked for before the first is used (Little's
law: H100 takes some 20 KB an SM).  A load is on its way from its instruction to the first one that reads its register;
the code of a loop is followed once in its order, so a loop that branches is judged by all of it; a kernel whose gate says
"straight" asks for everything before a loop, and is judged by all its code.  A generic load (LD where
LDG would do) may alias shared memory, so that no later load is moved before it.

Needs nvcc, and nvdisasm of the toolkit or of PyPI's nvidia-cuda-nvdisasm.  Exit status 77 where one of them is missing."""
import argparse, glob, json, os, re, shutil, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gates.json")
LOAD = re.compile(r"(LDG|LD)\.(\S+) +(R\d+)")


def tools():
    """Paths of nvcc and nvdisasm, or None."""
    nvcc = shutil.which("nvcc") or next(iter(glob.glob("/usr/local/cuda/bin/nvcc")), None)
    places = [p for d in sys.path if d for p in glob.glob(os.path.join(d, "nvidia", "*", "bin", "nvdisasm"))]
    beside = nvcc and os.path.join(os.path.dirname(nvcc), "nvdisasm")
    if beside and os.path.exists(beside):
        places.insert(0, beside)
    return nvcc, shutil.which("nvdisasm") or next(iter(places), None)


def compiled(nvcc, folder, source, sm):
    """(path of the cubin, what ptxas said), made anew where a source is newer."""
    name = os.path.join(folder, f"{os.path.basename(source)[:-3]}.{sm}")
    newest = max(map(os.path.getmtime, glob.glob(os.path.join(ROOT, "kernels", "cuda", "*.cu*")) +
                     [os.path.join(ROOT, "kernels", "kernels.h"), os.path.join(ROOT, "kernels", "cuda", "launch.h")]))
    if not os.path.exists(name + ".txt") or os.path.getmtime(name + ".txt") < newest:
        p = subprocess.run([nvcc, "-cubin", f"-arch=sm_{sm}", "-std=c++17", "-fmad=false", "-Xptxas", "-v", "-I", ROOT,
                            source, "-o", name + ".cubin"], capture_output=True, text=True, check=False)
        if p.returncode:
            sys.exit(p.stderr)
        with open(name + ".txt", "w", encoding="utf-8") as f:
            f.write(p.stderr)
    with open(name + ".txt", encoding="utf-8") as f:
        return name + ".cubin", f.read()


def resources(said):
    """{mangled name: (registers, bytes spilled, static shared memory)}"""
    found = {}
    for part in said.split("Compiling entry function '")[1:]:
        name = part.split("'", 1)[0]
        spilled = sum(map(int, re.findall(r"(\d+) bytes spill", part)))
        shared = re.search(r"(\d+) bytes smem", part)
        found[name] = (int(re.search(r"Used (\d+) registers", part).group(1)), spilled,
                       int(shared.group(1)) if shared else 0)
    return found


def functions(text):
    """{mangled name: its lines, labels with their colons}"""
    found, code = {}, None
    for line in text.split("\n"):
        start = re.match(r"\.text\.(\S+):$", line)
        if start:
            code = found.setdefault(start.group(1), [])
            continue
        if line.lstrip().startswith(".section"):
            code = None
        instruction = re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*?)\s*;", line)
        if code is not None and instruction:
            code.append(instruction.group(1))
        elif code is not None and re.match(r"\.L\w+:$", line):
            code.append(line)
    return found


def width(op):
    """Bytes that a load of this kind brings a thread."""
    return 16 if ".128" in op else 8 if ".64" in op else 1 if "8" in op.split(".") or ".U8" in op or ".S8" in op else \
        2 if ".U16" in op or ".S16" in op else 4


def in_flight(code):
    """(loads, bytes, whether one is generic): the most that are on their way at once, from the first line to the last.
    Copies into shared memory (LDGSTS) are waited for by DEPBAR alone: where none is, those of four turns count."""
    waiting, loads, most, generic, copies = [], 0, 0, False, 0
    for line in code:
        if line.endswith(":"):
            continue
        line = re.sub(r"^@!?U?P\w+\s+", "", line)
        load = LOAD.match(line)
        read = line.split(",", 1)[1] if load and "," in line else line
        used = {int(r) for r in re.findall(r"\bR(\d+)\b", read)}
        waiting = [w for w in waiting if not w[0] & used]
        if load:
            size, first = width(load.group(2)), int(load.group(3)[1:])
            waiting.append((set(range(first, first + max(1, size // 4))), size))
            generic |= load.group(1) == "LD"
        copies += 16 if line.startswith("LDGSTS") else 0
        loads, most = max(loads, len(waiting)), max(most, sum(w[1] for w in waiting))
    turns = 1 if any("DEPBAR" in line for line in code) else 4
    return loads, most + turns * copies, generic


def loops(code):
    """The innermost loops: (length, loads, bytes, generic)."""
    labels = {line[:-1]: i for i, line in enumerate(code) if line.endswith(":")}
    found = []
    for i, line in enumerate(code):
        jump = re.search(r"BRA[\w.]* .*`\((\.L\w+)\)", line)
        if jump and labels.get(jump.group(1), i) < i:
            found.append((labels[jump.group(1)], i))
    inner = [(a, b) for a, b in found if not any(a <= c and d <= b and (c, d) != (a, b) for c, d in found)]
    return [(b - a, *in_flight(code[a:b + 1])) for a, b in inner]


def demangled(names):
    said = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    plain = [re.sub(r"\(aq_dtype\)|void |(?<=\d)u\b|\(.*", "", line.replace("(aq_dtype)", "")) for line in said.split("\n")]
    return dict(zip(names, plain))


def look(nvcc, nvdisasm, folder, sm):
    """{kernel: {"registers", "spilled", "shared", "loops", "straight": (bytes, generic) of all its code}}"""
    found = {}
    for source in sorted(glob.glob(os.path.join(ROOT, "kernels", "cuda", "*.cu"))):
        cubin, said = compiled(nvcc, folder, source, sm)
        text = subprocess.run([nvdisasm, "-c", cubin], capture_output=True, text=True, check=True).stdout
        used, code = resources(said), functions(text)
        for mangled, name in demangled(list(used)).items():
            registers, spilled, shared = used[mangled]
            lines = code.get(mangled, [])
            found[name] = {"registers": registers, "spilled": spilled, "shared": shared, "loops": loops(lines),
                           "straight": in_flight(lines)[1:]}
    return found


def judge(gates, sm, found, version):
    """Sentences about what is worse than the gates say; registers are compared with those of the same nvcc."""
    for name, k in found.items():
        if k["spilled"] > gates.get("spills", {}).get(str(sm), {}).get(name, 0):
            yield f"sm_{sm} {name}: spills {k['spilled']} bytes"
    for gate in gates["loops"]:
        if sm not in gate["sm"]:
            continue
        names = [n for n in found if re.fullmatch(gate["kernel"], n)]
        if not names:
            yield f"sm_{sm}: no kernel is called '{gate['kernel']}'"
        for name in names:
            ways = [l[2:] for l in found[name]["loops"]] + ([found[name]["straight"]] if gate.get("straight") else [])
            best = max((way[0] for way in ways), default=0)
            if best < gate["bytes"]:
                yield f"sm_{sm} {name}: {best} bytes a thread on their way, at least {gate['bytes']} expected"
            if any(way[1] for way in ways):
                yield f"sm_{sm} {name}: a generic load{' in a loop' if not gate.get('straight') else ''}"
    for name, kept in gates["registers"].get(str(sm), {}).items() if gates["nvcc"] == version else ():
        if name in found and found[name]["registers"] > kept:
            yield f"sm_{sm} {name}: {found[name]['registers']} registers, {kept} are kept in gates.json"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--sm", default="75,90")
    p.add_argument("--list", metavar="WORD")
    p.add_argument("--keep", action="store_true")
    a = p.parse_args()
    nvcc, nvdisasm = tools()
    if not nvcc or not nvdisasm:
        print("nvcc is missing" if not nvcc else "nvdisasm is missing: pip install nvidia-cuda-nvdisasm")
        return 77
    os.makedirs(a.folder, exist_ok=True)
    with open(GATES, encoding="utf-8") as f:
        gates = json.load(f)
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    version, worse = re.search(r"release ([\d.]+)", said).group(1), []
    for sm in map(int, a.sm.split(",")):
        found = look(nvcc, nvdisasm, a.folder, sm)
        for name, k in sorted(found.items()):
            if a.list is not None and a.list in name:
                print(f"sm_{sm} {name}: {k['registers']} registers, {k['shared']} bytes of shared memory")
                for length, loads, size, generic in k["loops"]:
                    if loads:
                        print(f"    {length} instructions, {loads} loads, {size} bytes{', generic' if generic else ''}")
        if a.keep:
            gates["nvcc"] = version
            gates["registers"][str(sm)] = {name: k["registers"] for name, k in sorted(found.items())}
        worse += judge(gates, sm, found, version)
    if a.keep:
        with open(GATES, "w", encoding="utf-8") as f:
            json.dump(gates, f, indent=1)
            f.write("\n")
    print("\n".join(worse) or "all gates are held")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
