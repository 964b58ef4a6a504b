#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What nvcc made of the CUDA kernels: registers, spills, and how many bytes a thread has on their way in each loop.

    sass.py FILE...                the kernels in aquifer_cuda.so, or in objects of nvcc, compared with gates.json
    sass.py FILE... --list WORD    prints the loops of kernels with WORD in their names
    sass.py FILE... --keep         writes registers and loops as found into gates.json
    sass.py FILE... --planted      also shows that each gate sees it when its kernels get worse

A memory-bound kernel reaches the memory's speed only where enough bytes are asked for before the first is used (Little's
law: H100 takes some 20 KB an SM).  A load is on its way from its instruction to the first one that reads its register;
the code of a loop is followed once in its order, so a loop that branches is judged by all of it; a kernel whose gate says
"straight" asks for everything before a loop, and is judged by all its code.  A generic load (LD where
LDG would do) may alias shared memory, so that no later load is moved before it.

gates.json says what the best loop of a kernel must have, and keeps what all of them had with one nvcc: with the same one,
no loop may have less.

Needs nvdisasm of the toolkit or of PyPI's nvidia-cuda-nvdisasm.  Exit status 77 where it is missing."""
import argparse, glob, itertools, json, os, re, shutil, struct, subprocess, sys, tempfile
from concurrent.futures import ThreadPoolExecutor

GATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gates.json")
LOAD = re.compile(r"(LDG|LD)\.(\S+) +(R\d+)")


def disassembler():
    """Path of nvdisasm, or None."""
    places = [p for d in sys.path if d for p in glob.glob(os.path.join(d, "nvidia", "*", "bin", "nvdisasm"))]
    return shutil.which("nvdisasm") or next(iter(glob.glob("/usr/local/cuda/bin/nvdisasm") + places), None)


def cubins(path):
    """[(compute capability times 10, bytes of an ELF file)]: code of machines in the fatbinaries of a file.  A fatbinary
    is a header (magic, version, size of the header, size of what follows) and entries, each with a header of its own
    (kind: 2 is code of a machine; sizes of header and contents; at 28 bytes the machine)."""
    with open(path, "rb") as f:
        data = f.read()
    found, at = [], data.find(b"\x50\xed\x55\xba")
    while at >= 0:
        version, header, size = struct.unpack_from("<HHQ", data, at + 4)
        entry, end = at + header, at + header + size
        while version == 1 and entry < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, entry)
            if kind == 2:
                if data[entry + header:entry + header + 4] != b"\x7fELF":
                    sys.exit(f"{path}: its code is compressed; build with nvcc's default for code of machines")
                sm = struct.unpack_from("<I", data, entry + 28)[0]
                found.append((sm, data[entry + header:entry + header + size]))
            entry += header + size
        at = data.find(b"\x50\xed\x55\xba", end if version == 1 else at + 4)
    return found


def compiler(path):
    """The version of the ptxas that made a file's code."""
    with open(path, "rb") as f:
        said = re.search(rb"Cuda compilation tools, release ([\d.]+)", f.read())
    return said.group(1).decode() if said else "unknown"


def disassembled(nvdisasm, cubin):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(cubin)
        f.flush()
        return subprocess.run([nvdisasm, f.name], capture_output=True, text=True, check=True).stdout


def resources(text):
    """{mangled name: (registers, bytes of stack, static shared memory)}"""
    numbers = {}
    for what, name, number in re.findall(r"nvinfo : EIATTR_(\w+)\n(?:.*\n){1,6}?.*index@\((\S+)\)\n.*\.word\s+(0x\w+)", text):
        numbers.setdefault(name, {})[what] = int(number, 16)
    shared = {name: int(size) for name, size in re.findall(r"\.section\s+\.nv\.shared\.(\S+?),.*\n(?:.*\n)*?.*\.zero\s+(\d+)", text)}
    return {name: (n["REGCOUNT"], n.get("MIN_STACK_SIZE", 0), shared.get(name, 0))
            for name, n in numbers.items() if "REGCOUNT" in n}


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
        size, first = (width(load.group(2)), int(load.group(3)[1:])) if load else (0, 0)
        into = set(range(first, first + max(1, size // 4))) if load else set()
        waiting = [w for w in waiting if not w[0] & (used | into)]
        if load:
            waiting.append((into, size))
            generic |= load.group(1) == "LD"
        copies += 16 if line.startswith("LDGSTS") else 0
        loads, most = max(loads, len(waiting)), max(most, sum(w[1] for w in waiting))
    turns = 1 if any("DEPBAR" in line for line in code) else 4
    return loads, most + turns * copies, generic


def spans(code):
    """The innermost loops: (first line, last line)."""
    labels = {line[:-1]: i for i, line in enumerate(code) if line.endswith(":")}
    found = []
    for i, line in enumerate(code):
        jump = re.search(r"BRA[\w.]* .*`\((\.L\w+)\)", line)
        if jump and labels.get(jump.group(1), i) < i:
            found.append((labels[jump.group(1)], i))
    return [(a, b) for a, b in found if not any(a <= c and d <= b and (c, d) != (a, b) for c, d in found)]


def loops(code):
    """The innermost loops: (length, loads, bytes, generic)."""
    return [(b - a, *in_flight(code[a:b + 1])) for a, b in spans(code)]


def demangled(names):
    said = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    plain = [re.sub(r"\(aq_dtype\)|void |(?<=\d)u\b|\(.*", "", line.replace("(aq_dtype)", "")) for line in said.split("\n")]
    return dict(zip(names, plain))


def kernels(text):
    """{mangled name: {"registers", "stack", "shared", "code"}} of a disassembled cubin."""
    code = functions(text)
    return {name: {"registers": r[0], "stack": r[1], "shared": r[2], "code": code[name]}
            for name, r in resources(text).items() if name in code}


def judged(kernel):
    """The same with what its code has on its way: "loops", and "straight": (bytes, generic) of all of it."""
    return {**kernel, "loops": loops(kernel["code"]), "straight": in_flight(kernel["code"])[1:]}


def look(nvdisasm, paths):
    """{sm: {kernel: as judged() says}}"""
    work = [c for path in paths for c in cubins(path)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        texts = list(pool.map(lambda c: disassembled(nvdisasm, c[1]), work))
    found = {}
    for (sm, _), text in zip(work, texts):
        here, of_sm = kernels(text), found.setdefault(sm, {})
        of_sm.update({name: judged(here[mangled]) for mangled, name in demangled(list(here)).items() if mangled})
    return found


def kept(kernel):
    """What gates.json keeps of a kernel: registers, then the bytes of each loop that loads, most first."""
    return [kernel["registers"]] + sorted((size for _, _, size, _ in kernel["loops"] if size), reverse=True)


def judge(gates, sm, found, version):
    """Sentences about what is worse than the gates say; what is kept is compared with that of the same nvcc."""
    for name, k in found.items():
        if k["stack"] > gates.get("stacks", {}).get(str(sm), {}).get(name, 0):
            yield f"sm_{sm} {name}: {k['stack']} bytes of stack"
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
    for name, was in gates["kept"].get(str(sm), {}).items() if gates["nvcc"] == version else ():
        now = kept(found[name]) if name in found else was
        if now[0] > was[0]:
            yield f"sm_{sm} {name}: {now[0]} registers, {was[0]} are kept in gates.json"
        if any(n < w for n, w in itertools.zip_longest(now[1:], was[1:], fillvalue=0)):
            yield f"sm_{sm} {name}: its loops have {now[1:]} bytes on their way, {was[1:]} are kept in gates.json"


def one_at_a_time(code):
    """The same code, if each load were waited for before the next, and no copy ran on its own."""
    for line in code:
        copy = re.sub(r"LDGSTS\S*", "LDG.E.128 R4,", line)
        load = LOAD.search(copy)
        yield from [copy, f"MOV R3, {load.group(3)}"] if load else [line]


def unseen(gates, sm, found):
    """Sentences about gates that say nothing when one of their kernels is planted with what they are for."""
    for gate in gates["loops"]:
        alone = {"loops": [gate], "nvcc": "", "kept": {}, "stacks": gates["stacks"]}
        for name in [n for n in sorted(found) if sm in gate["sm"] and re.fullmatch(gate["kernel"], n)][:1]:
            code = found[name]["code"]
            slow = {**found[name], "code": list(one_at_a_time(code))}
            generic = {**found[name], "code": [re.sub(r"\bLDG\.", "LD.", re.sub(r"LDGSTS\S*", "LDG.E R4,", l)) for l in code]}
            stack = {**found[name], "stack": found[name]["stack"] + 8}
            for worse, word in (slow, "on their way"), (generic, "a generic load"), (stack, "bytes of stack"):
                said = [s for s in judge(alone, sm, {name: judged(worse)}, "") if word in s]
                if not said:
                    yield f"sm_{sm} {name}: its gate does not see '{word}'"
    alone = {"loops": [], "nvcc": "", "kept": gates["kept"]}
    for name, was in gates["kept"].get(str(sm), {}).items():
        loops = [(1, 1, size, False) for size in was[1:]]
        same = {"registers": was[0], "stack": 0, "loops": loops}
        worse = {"registers": {**same, "registers": was[0] + 1}}
        if loops:
            worse |= {"its loops": {**same, "loops": [*loops[:-1], (1, 1, was[-1] - 1, False)]}}
            worse |= {"its loops have": {**same, "loops": loops[:-1]}}
        for word, now in worse.items():
            if not any(word in s for s in judge(alone, sm, {name: now}, "")):
                yield f"sm_{sm} {name}: what is kept of it is not seen: {word}"


def write(gates):
    """One line a gate, a stack and a kernel."""
    def rows(of):
        return ",\n".join(f"  {json.dumps(name)}: {json.dumps(of[name])}" for name in sorted(of))
    parts = ['"loops": [\n' + ",\n".join(" " + json.dumps(g) for g in gates["loops"]) + "\n]",
             '"stacks": ' + json.dumps(gates["stacks"]), '"nvcc": ' + json.dumps(gates["nvcc"]),
             '"kept": {\n' + ",\n".join(f' "{sm}": {{\n{rows(of)}\n }}' for sm, of in gates["kept"].items()) + "\n}"]
    with open(GATES, "w", encoding="utf-8") as f:
        f.write("{\n" + ",\n".join(parts) + "\n}\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("file", nargs="+")
    p.add_argument("--list", metavar="WORD")
    p.add_argument("--keep", action="store_true")
    p.add_argument("--planted", action="store_true")
    a = p.parse_args()
    nvdisasm = disassembler()
    if not nvdisasm:
        print("nvdisasm is missing: pip install nvidia-cuda-nvdisasm")
        return 77
    with open(GATES, encoding="utf-8") as f:
        gates = json.load(f)
    version, worse = compiler(a.file[0]), []
    found = look(nvdisasm, a.file)
    if not found:
        sys.exit(f"{a.file[0]}: no code of a GPU in it")
    for sm, here in sorted(found.items()):
        for name, k in sorted(here.items()):
            if a.list is not None and a.list in name:
                print(f"sm_{sm} {name}: {k['registers']} registers, {k['shared']} bytes of shared memory")
                for length, loads, size, generic in k["loops"]:
                    if size:
                        print(f"    {length} instructions, {loads} loads, {size} bytes{', generic' if generic else ''}")
    if a.keep:
        gates["nvcc"] = version
        gates["kept"] = {str(sm): {name: kept(k) for name, k in here.items()} for sm, here in sorted(found.items())}
        write(gates)
    for sm, here in sorted(found.items()):
        worse += judge(gates, sm, here, version)
        worse += unseen(gates, sm, here) if a.planted else []
    print("\n".join(worse) or f"all gates are held, of sm_{', sm_'.join(map(str, sorted(found)))}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
