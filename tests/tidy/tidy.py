#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks of form that no compiler makes: tidy.py ROOT CHECK [ARGUMENTS].

Exit status 0: clean, 1: findings (one a line, "file:line: what"), 77: cannot be checked here.
"""
import os
import re
import shutil
import subprocess
import sys

LIBRARY = ("base", "policy", "offload", "kernels", "engine")
SOURCES = LIBRARY + ("bench", "examples", "tests")
MAY_INCLUDE = {
    "base": {"base"},
    "policy": {"policy", "base"},
    "offload": {"offload", "base"},
    "kernels": {"kernels", "base"},
    "engine": {"engine", "policy", "offload", "kernels", "base"},
    "bench": set(SOURCES),
    "examples": {"engine"},
    "tests": set(SOURCES),
}
GENERATED = {"config.h", "commit.h"}
LINE_MAX = 100
FUNCTION_AIM, FUNCTION_MAX = 70, 100
FILE_AIM, FILE_MAX = 800, 1000
SKIP = 77


class Tree:
    """The files of the checkout (or of an unpacked archive), and their texts."""

    def __init__(self, root):
        self.root = root
        self.texts = {}
        self.files = sorted(self.list_files())

    def list_files(self):
        git = ["git", "-C", self.root, "ls-files", "-co", "--exclude-standard", "-z"]
        try:
            out = subprocess.run(git, capture_output=True, check=True).stdout
            names = [n for n in out.decode().split("\0") if n]
        except (OSError, subprocess.CalledProcessError):
            names = self.walk()
        return [n for n in names if os.path.isfile(os.path.join(self.root, n))]

    def walk(self):
        for at, folders, files in os.walk(self.root):
            folders[:] = [f for f in folders if f != ".git" and not
                          os.path.exists(os.path.join(at, f, "meson-private"))]
            for name in files:
                yield os.path.relpath(os.path.join(at, name), self.root)

    def text(self, name):
        if name not in self.texts:
            with open(os.path.join(self.root, name), encoding="utf-8", errors="replace",
                      newline="") as f:
                self.texts[name] = f.read()
        return self.texts[name]

    def lines(self, name):
        return self.text(name).split("\n")

    def c_files(self, folders=SOURCES):
        return [n for n in self.files if n.split("/")[0] in folders and
                n.endswith((".c", ".h", ".cu", ".cuh"))]


def strip_c(text):
    """The text with comments and the insides of strings blanked, line ends kept."""
    pattern = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)

    def blank(match):
        word = match.group(0)
        if word[0] in "\"'":
            return word[0] + " " * (len(word) - 2) + word[0]
        return re.sub(r"[^\n]", " ", word)

    return pattern.sub(blank, text)


def numbered(tree, name, stripped):
    text = strip_c(tree.text(name)) if stripped else tree.text(name)
    return enumerate(text.split("\n"), 1)


# ---- checks: each yields (file, line, what) ------------------------------------------------


def check_includes(tree):
    """Dependencies point down, and the three in the middle never meet."""
    for name in tree.c_files():
        folder = name.split("/")[0]
        for number, target in quoted_includes(tree, name):
            if "/" not in target:
                yield name, number, f'"{target}": expected the path from the top folder'
            elif target.split("/")[0] not in MAY_INCLUDE[folder]:
                yield name, number, f"{folder}/ may not include {target}"
            elif not os.path.exists(os.path.join(tree.root, target)):
                yield name, number, f"{target} does not exist"


QUOTED = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def read_floors(tree):
    """engine/floors.txt: {folder: (floor, its public headers)}."""
    floors = {}
    for line in tree.lines("engine/floors.txt"):
        match = re.match(r"^(\d+) (\S+):(.*)$", line)
        if match:
            floors[match.group(2)] = int(match.group(1)), set(match.group(3).split())
    return floors


def room_of(name):
    """Of engine/ROOM/a/b.h the folder and the rest; files beside the folders are of '.'."""
    parts = name.split("/")[1:]
    return (parts[0], "/".join(parts[1:])) if len(parts) > 1 else (".", parts[0])


def quoted_includes(tree, name):
    for number, line in enumerate(tree.lines(name), 1):
        match = QUOTED.match(line)
        if match and match.group(1) not in GENERATED:
            yield number, match.group(1)


def check_floors(tree):
    """Folders of engine/ include downwards, and only what is public (engine/floors.txt)."""
    table, floors, used = "engine/floors.txt", read_floors(tree), set()
    for name in tree.c_files(("engine",)):
        room, _ = room_of(name)
        if room not in floors:
            yield name, 1, f"the folder '{room}' has no floor in {table}"
            continue
        for number, target in quoted_includes(tree, name):
            if not target.startswith("engine/"):
                continue
            other, header = room_of(target)
            if other == room or other not in floors:
                continue
            used.add((other, header))
            if floors[other][0] >= floors[room][0]:
                yield name, number, f"{room} (floor {floors[room][0]}) may not include {target} " \
                                    f"(floor {floors[other][0]}): {table}"
            elif header not in floors[other][1]:
                yield name, number, f"{target} is private to {other}: {table}"
    for room, (_, public) in floors.items():
        for header in sorted(public):
            path = f"engine/{header}" if room == "." else f"engine/{room}/{header}"
            if path not in tree.files:
                yield table, 1, f"{room}: {path} does not exist"
            elif (room, header) not in used:
                yield table, 1, f"{room}: nobody else includes {header}; it is private"
    yield from circles(tree)


def circles(tree):
    """Headers that include each other: each circle once, from its first name."""
    graph = {name: [t for _, t in quoted_includes(tree, name)]
             for name in tree.c_files(LIBRARY) if name.endswith((".h", ".cuh"))}
    done = set()

    def walk(name, path):
        if name in path:
            around = path[path.index(name):]
            if name == min(around):
                yield name, 1, "headers include each other: " + " -> ".join(around + [name])
            return
        if name in done or name not in graph:
            return
        for target in graph[name]:
            yield from walk(target, path + [name])
        done.add(name)

    found = set()
    for name in sorted(graph):
        for finding in walk(name, []):
            if finding not in found:
                found.add(finding)
                yield finding


def check_architectures(tree):
    """An architecture is known in engine/model/arch alone, by the names of its rows; elsewhere the
    library asks its row, and shapes are files of configs/models."""
    home = "engine/model/arch/"
    rows = [row for name in tree.c_files(("engine",)) if name.startswith(home)
            for row in re.findall(r"const struct aq_arch aq_arch_(\w+) =", tree.text(name))]
    if not rows:
        yield home, 1, "expected a row for each architecture, found none"
        return
    known = re.compile(r"(?<![a-z0-9])(?:" + "|".join(rows) + r")(?![a-z/])"
                       r"|\w*ForCausalLM|model\.decoder\.|\bfc[12]\b|embed_tokens|lm_head", re.I)
    for name in tree.c_files(LIBRARY):
        if name.startswith(home):
            continue
        for number, line in numbered(tree, name, False):
            match = known.search(line)
            if match:
                yield name, number, f"'{match.group(0)}' is for {home} alone"


def check_boundary(tree):
    """Program and examples use the public header alone, and that header stands on its own."""
    any_include = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')
    for name in tree.c_files(("engine", "examples")):
        for number, line in enumerate(tree.lines(name), 1):
            match = any_include.match(line)
            if not match:
                continue
            if name.startswith(("engine/cli/", "examples/")) and match.group(1) == '"' and \
                    match.group(2) != "engine/aquifer.h":
                yield name, number, "only engine/aquifer.h may be included here of ours"
            if name == "engine/aquifer.h" and match.group(2) not in ("stddef.h", "stdint.h"):
                yield name, number, "the public header may include only stddef.h and stdint.h"


def check_purity(tree):
    """policy/ decides without looking: no files, threads or clocks.  Kernels never allocate."""
    impure = re.compile(r'^\s*#\s*include\s+[<"]((?:sys/.*|unistd|fcntl|pthread|time|signal|dirent'
                        r'|sched|base/clock|base/threads|base/log)(?:\.h)?)[>"]')
    allocation = re.compile(r"\b(malloc|calloc|realloc|aligned_alloc|mmap|alloca|strdup)\s*\(")
    for name in tree.c_files(("policy",)):
        for number, line in enumerate(tree.lines(name), 1):
            match = impure.match(line)
            if match:
                yield name, number, f"policy/ is pure: it may not include {match.group(1)}"
    for name in tree.c_files(("kernels",)):
        if name == "kernels/cpu/exec.c":
            continue
        for number, line in numbered(tree, name, True):
            match = allocation.search(line)
            if match:
                yield name, number, f"kernels never allocate: {match.group(1)}"


BANNED = re.compile(
    r"(?<![\w.>])(printf|vprintf|puts|putchar|perror|exit|_exit|quick_exit|abort|system|popen"
    r"|signal|sigaction|setlocale|rand|srand|random|srandom|strtok|strcpy|strcat|sprintf|vsprintf"
    r"|gets|localtime|gmtime|asctime|ctime|strerror_r|putenv|setenv)\s*\(|\b(stdout|stderr)\b")


def check_calls(tree):
    """Below the program nothing prints, exits or keeps hidden state."""
    for name in tree.c_files(LIBRARY):
        if name.startswith("engine/cli/"):
            continue
        for number, line in numbered(tree, name, True):
            match = BANNED.search(line)
            if match and not line.lstrip().startswith("#"):
                yield name, number, f"{match.group(1) or match.group(2)} is for the program alone"


def check_lines(tree):
    """Width, blanks and line ends."""
    for name in tree.files:
        if name.startswith("tests/data/") or name.startswith("tests/fuzz/corpus/"):
            continue
        is_c = name in set(tree.c_files())
        if not is_c and not name.endswith((".py", ".sh")) and name.split("/")[0] != ".ci":
            continue
        text = tree.text(name)
        if text and not text.endswith("\n"):
            yield name, text.count("\n") + 1, "no newline at the end"
        for number, line in enumerate(text.split("\n"), 1):
            if len(line) > LINE_MAX and not name.endswith(".py"):
                yield name, number, f"{len(line)} columns, at most {LINE_MAX}"
            if line != line.rstrip():
                yield name, number, "blanks or a carriage return at the end of the line"
            if "\t" in line:
                yield name, number, "a tab"


def check_licence(tree):
    """Every source says under which licence it stands, in its first three lines."""
    for name in tree.files:
        if name.startswith("tests/data/") or name.startswith("tests/fuzz/corpus/"):
            continue
        if name in set(tree.c_files()) or name.endswith((".py", ".sh")) or \
                name.split("/")[0] == ".ci":
            head = tree.lines(name)[:3]
            if not any("SPDX-License-Identifier: Apache-2.0" in line for line in head):
                yield name, 1, "no SPDX-License-Identifier: Apache-2.0"


def functions(text):
    """(first line, last line, lines) of each function: clang-format puts both braces in column
    one."""
    lines = strip_c(text).split("\n")
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line.startswith("}") and start:
            yield start, number, lines[start - 1:number]
            start = None


def check_functions(tree):
    """A function fits a screen; goto only goes forward, to clean up."""
    label = re.compile(r"^\s*(\w+):\s*$")
    jump = re.compile(r"\bgoto\s+(\w+)\s*;")
    for name in tree.c_files():
        for first, last, lines in functions(tree.text(name)):
            length = last - first + 1
            if length > FUNCTION_MAX:
                yield name, first, f"a function of {length} lines, at most {FUNCTION_MAX}"
            elif length > FUNCTION_AIM:
                print(f"note: {name}:{first}: {length} lines, {FUNCTION_AIM} are the aim")
            seen = set()
            for number, line in enumerate(lines, first):
                match = label.match(line)
                if match:
                    seen.add(match.group(1))
                match = jump.search(line)
                if match and match.group(1) in seen:
                    yield name, number, f"goto {match.group(1)} goes back"
        count = len(tree.lines(name)) - 1
        if count > FILE_MAX:
            yield name, 1, f"{count} lines, at most {FILE_MAX}"
        elif count > FILE_AIM:
            print(f"note: {name}: {count} lines, {FILE_AIM} are the aim")


def check_style(tree):
    """What clang-format does not see: comments, typedefs, header guards (but for *_simd.h,
    which are templates and meant to be included again)."""
    guards = {}
    for name in tree.c_files():
        is_c = name.endswith((".c", ".h"))
        in_text = re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"',
                         lambda m: re.sub(r"[^\n]", " ", m.group(0)), tree.text(name), flags=re.S)
        for number, line in enumerate(in_text.split("\n"), 1):
            if is_c and "//" in line:
                yield name, number, "// is scratch: write /* */"
            if is_c and re.search(r"\btypedef\s+(struct|union|enum)\b", line):
                yield name, number, "structs, unions and enums keep their tag: no typedef"
        if name.endswith(".h"):
            match = re.search(r"^#ifndef (AQ_\w+_H)\n#define \1$", tree.text(name), re.M)
            if not match and not name.endswith("_simd.h"):
                yield name, 1, "expected an include guard AQ_..._H"
            elif match and guards.setdefault(match.group(1), name) != name:
                yield name, 1, f"has the guard of {guards[match.group(1)]}"


def check_places(tree):
    """Nothing in the tree depends on, or tells of, the machine it was written on."""
    place = re.compile(r"(?<![\w.~$}])/(?:work|root|home/\w+)/|(?<![\w/.-])shared/\w")
    for name in tree.files:
        if name.startswith("tests/data/") or name.startswith("tests/fuzz/corpus/") or \
                name == "tests/tidy/tidy.py" or not name.endswith(
                    (".c", ".h", ".cu", ".cuh", ".py", ".sh", ".md", ".build", ".yaml", ".txt",
                     ".jsonl")) and name.split("/")[0] != ".ci":
            continue
        for number, line in enumerate(tree.lines(name), 1):
            match = place.search(line)
            if match:
                yield name, number, f"names a place outside the tree: {match.group(0)}"


def is_of_row(name, patterns, rows):
    """Whether a pattern of the build, as 'cpu/@0@_ref.c', names the file for a row of a list."""
    for pattern in patterns:
        match = re.search("(?:^|/)" + re.sub(r"@\w+@", r"(\\w+)", re.escape(pattern)) + "$", name)
        if match and match.group(1) in rows:
            return True
    return False


def check_sources(tree):
    """No dead files: every .c is built, every header included, every profile and shape built in."""
    builds = "\n".join(tree.text(n) for n in tree.files if n.endswith("meson.build"))
    fuzz = set(re.findall(r"^\s*\['(\w+)'", builds, re.M))
    rows = set(re.findall(r"^\s*'(\w+)',$", builds, re.M))
    patterns = re.findall(r"'([^']*@0@[^']*)'\.format", builds)
    includes = set()
    for name in tree.c_files() + [n for n in tree.files if n.endswith((".cc", ".c.in"))]:
        includes.update(re.findall(r'#\s*include\s+"([^"]+)"', tree.text(name)))
    for name in tree.c_files():
        base = os.path.basename(name)
        if name.endswith(".c"):
            listed = re.search(r"['/]" + re.escape(base) + "'", builds)
            if not listed and not (name.startswith("tests/fuzz/") and base[:-2] in fuzz) and \
                    name not in includes and not is_of_row(name, patterns, rows):
                yield name, 1, "is in no meson.build"
        elif name.endswith(".h") and name not in includes and name != "engine/aquifer.h" and \
                not is_of_row(name, includes, rows):
            yield name, 1, "is included by nobody"
    for name in tree.files:
        if re.match(r"configs/(hardware|models)/.*\.yaml$", name) and f"'../{name}'" not in builds:
            yield name, 1, "is not in engine/meson.build"


def check_format(tree):
    """clang-format 14 (Debian 12's) changes nothing; other versions disagree among themselves."""
    tool = shutil.which("clang-format-14") or shutil.which("clang-format")
    version = subprocess.run([tool, "--version"], capture_output=True, text=True).stdout \
        if tool else ""
    if " version 14." not in version:
        print("skipped: needs clang-format 14")
        sys.exit(SKIP)
    names = tree.c_files()
    out = subprocess.run([tool, "--dry-run", "--ferror-limit=1", *names], cwd=tree.root,
                         capture_output=True, text=True)
    for line in out.stderr.split("\n"):
        match = re.match(r"(.*?):(\d+):\d+: (warning|error): (.*)", line)
        if match:
            yield match.group(1), int(match.group(2)), "not as clang-format writes it"
    if out.returncode != 0 and not out.stderr:
        yield ".clang-format", 1, "clang-format failed"


def check_globals(tree, *archives):
    """The library has no writable data: nothing is shared between two engines by accident."""
    if not shutil.which("nm"):
        print("skipped: needs nm")
        sys.exit(SKIP)
    writable = re.compile(r"^(\*COM\*|\.(data|bss|tdata|tbss)(\..*)?)$")
    # Where a C++ object catches exceptions, the compiler keeps such pointers; nobody writes them.
    of_exceptions = re.compile(r"^\.data\.rel\.local\.DW\.ref\.(__gxx_personality_v0|_ZTI\w+)$")
    found = 0
    for archive in archives:
        in_cxx = False
        out = subprocess.run(["nm", "--format=sysv", "--defined-only", archive],
                             capture_output=True, text=True)
        if out.returncode != 0:
            yield archive, 1, f"nm failed: {out.stderr.strip()}"
        for line in out.stdout.split("\n"):
            if line.startswith("Symbols from "):
                in_cxx = line.endswith(".cc.o]:")
            fields = [field.strip() for field in line.split("|")]
            found += len(fields) == 7
            if len(fields) == 7 and writable.match(fields[6]) and \
                    not fields[6].startswith(".data.rel.ro") and \
                    not (in_cxx and of_exceptions.match(fields[6])):
                yield os.path.basename(archive), 1, f"{fields[0]} is writable ({fields[6]})"
    if not found:
        yield "nm", 1, "no symbol was seen at all"


def symbols(archive):
    """(member, defined, undefined) of each object in an archive."""
    out = subprocess.run(["nm", "-g", "--format=posix", archive], capture_output=True, text=True)
    member, defined, undefined = None, set(), set()
    for line in out.stdout.split("\n") + ["[]:"]:
        match = re.match(r"^.*\[(?:.*/)?([^/\]]*)\]:$", line)
        if match:
            if member:
                yield member, defined, undefined
            member, defined, undefined = match.group(1), set(), set()
            continue
        fields = line.split()
        if len(fields) >= 2:
            (undefined if fields[1] in "Uw" else defined).add(fields[0])


def groups(graph):
    """Tarjan's strongly connected components of more than one node."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


# Files that call each other on purpose.
TOGETHER = {
    # One product in two files: plain values, and codes that are unpacked on the way.
    ("kernels/cpu/codes_avx512bf16.c", "kernels/cpu/gemm_avx512bf16.c"),
}


def check_links(tree, *archives):
    """Files call downwards: no two files call each other, however indirectly, and no folder of
    engine/ calls one above it."""
    if not shutil.which("nm"):
        print("skipped: needs nm")
        sys.exit(SKIP)
    source = {name.split("/", 1)[1].replace("/", "_") + ".o": name for name in tree.c_files(LIBRARY)
              if name.endswith(".c")}
    needs, home = {}, {}
    for archive in archives:
        for member, defined, undefined in symbols(archive):
            name = source.get(member)
            if name:
                needs[name] = undefined
                home.update((symbol, name) for symbol in defined)
    if len(needs) < 100 and len(archives) > 1:
        yield "nm", 1, f"only {len(needs)} files of the library were seen"
    graph = {name: sorted({home[s] for s in needed if s in home} - {name})
             for name, needed in needs.items()}
    for names in groups(graph):
        if tuple(names) not in TOGETHER:
            yield names[0], 1, "files call each other: " + ", ".join(names)
    floors = read_floors(tree)
    for name, others in graph.items():
        for other in others:
            if name.startswith("engine/") and other.startswith("engine/"):
                room, above = room_of(name)[0], room_of(other)[0]
                if room != above and floors[above][0] >= floors[room][0]:
                    yield name, 1, f"{room} may not call {other} (engine/floors.txt)"


def check_exports(tree, library):
    """The shared library shows the functions of aquifer.h: all of them, and nothing else."""
    if not shutil.which("nm"):
        print("skipped: needs nm")
        sys.exit(SKIP)
    out = subprocess.run(["nm", "--dynamic", "--defined-only", "--format=posix", library],
                         capture_output=True, text=True, check=True).stdout
    shown = {line.split()[0] for line in out.splitlines()}
    header = strip_c(tree.text("engine/aquifer.h"))
    declared = set(re.findall(r"^\w[\w *]*\b(aquifer_\w+)\(", header, re.M))
    for name in sorted(shown - declared):
        yield os.path.basename(library), 1, f"{name} is shown, and not in engine/aquifer.h"
    for name in sorted(declared - shown):
        yield "engine/aquifer.h", 1, f"{name} is declared, and {os.path.basename(library)} lacks it"


CHECKS = {name[6:]: function for name, function in list(globals().items())
          if name.startswith("check_")}


def main():
    if len(sys.argv) < 3 or sys.argv[2] not in CHECKS:
        sys.exit(f"usage: tidy.py ROOT {'|'.join(CHECKS)} [ARGUMENTS]")
    tree = Tree(sys.argv[1])
    if len(tree.c_files()) < 10:
        sys.exit(f"{sys.argv[1]}: expected a source tree, found {len(tree.c_files())} C files")
    findings = list(CHECKS[sys.argv[2]](tree, *sys.argv[3:]))
    for name, line, what in findings:
        print(f"{name}:{line}: {what}")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
