# SPDX-License-Identifier: Apache-2.0
"""Makes the wheel of a build folder: build_wheel.py BUILD FOLDER prints its path.

The wheel has the package, and in aquifer/lib the program, the shared library, the CUDA backend where
it was built, and every library they need but those that each Python of the platform has beside it
(PEP 600).  Libraries that are taken along get names of their own, so that they neither replace nor are
replaced by others that are loaded into the same Python.  What `meson install` puts below share/ is
the wheel's data.  It is also the backend of `pip wheel python/` (PEP 517).  Needs Python 3.11.
"""
import base64
import contextlib
import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
# Of the platform: PEP 600 has wheels rely on them, in versions that the tag stands for; and what
# belongs to a driver or a toolkit.
OF_THE_PLATFORM = re.compile(
    r"(ld-linux|lib(c|m|dl|rt|pthread|resolv|util|stdc\+\+|gcc_s|cuda|cublasLt)\.so)")
TIME = (1980, 1, 1, 0, 0, 0)  # of every file: the same build gives the same wheel


def fail(text):
    sys.exit(f"build_wheel: {text}")


def output_of(*words, **how):
    try:
        return subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, **how).stdout
    except FileNotFoundError:
        return fail(f"{words[0]} is missing: .ci/install package installs it")
    except subprocess.CalledProcessError as e:
        return fail(f"{' '.join(words[:3])}: " + e.stdout.strip().rpartition("\n")[2])


def installed(build, folder):
    """What `meson install` gives: the folder that stands for the prefix."""
    import json
    output_of("meson", "install", "-C", build, "--no-rebuild",
              env={**os.environ, "DESTDIR": os.path.join(folder, "installed")})
    options = json.loads(output_of("meson", "introspect", build, "--buildoptions"))
    prefix = next(o["value"] for o in options if o["name"] == "prefix")
    return os.path.join(folder, "installed", prefix.lstrip("/"))


def find(folder, name):
    """Paths of files of this name."""
    return [os.path.join(at, name) for at, _, names in os.walk(folder) if name in names]


def needed_by(files):
    """{soname: path} of the libraries that these files load, and those load, of which the wheel
    takes a copy."""
    found = {}
    for file in files:
        for line in output_of("ldd", file).splitlines():
            name, _, rest = line.strip().partition(" => ")
            if not rest or OF_THE_PLATFORM.match(name):
                continue
            path = rest.split(" (")[0]
            if not os.path.isabs(path):
                fail(f"{os.path.basename(file)} needs {name}, which is not found")
            found[name] = path
    return found


def bundle(files, lib):
    """Copies files and what they need into lib, where they find each other."""
    needs = needed_by(files.values())
    names = {soname: soname.replace("lib", "libaquifer-", 1) for soname in needs}
    copies = {**files, **{names[soname]: path for soname, path in needs.items()}}
    os.makedirs(lib)
    for name, path in copies.items():
        copy = os.path.join(lib, name)
        shutil.copyfile(path, copy)
        os.chmod(copy, 0o755)
        output_of("strip", "--strip-unneeded", copy)
        # One call a kind of change: patchelf 0.14 mixes up their arguments.
        renamed = [word for soname in output_of("patchelf", "--print-needed", copy).split()
                   if soname in names for word in ("--replace-needed", soname, names[soname])]
        if renamed:
            output_of("patchelf", *renamed, copy)
        if name in names.values():
            output_of("patchelf", "--set-soname", name, copy)
        output_of("patchelf", "--set-rpath", "$ORIGIN", copy)
    return needs, [os.path.join(lib, name) for name in copies]


def platform_tag(files):
    """The oldest C library that has every symbol these files ask for."""
    asked = [tuple(map(int, v.split("."))) for file in files for v in
             re.findall(r"\bGLIBC_(\d+\.\d+)", output_of("readelf", "--version-info", file))]
    if not asked:
        fail("no file asks for a version of the GNU C library, which wheels are made for")
    major, minor = max(asked)
    return f"manylinux_{major}_{minor}_{platform.machine()}"


def licences(needs, folder):
    """LICENSE, and of each library that is taken along Debian's copyright file and where its source
    is."""
    os.makedirs(folder)
    shutil.copy(os.path.join(ROOT, "LICENSE"), folder)
    lines = []
    for soname, path in sorted(needs.items()):
        if not shutil.which("dpkg-query"):
            fail(f"the licence of {soname} is looked up in Debian's packages: build there")
        owner = None
        for name in (path, os.path.realpath(path), os.path.realpath(path).removeprefix("/usr"),
                     "/usr" + path):
            done = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True,
                                  check=False)
            if done.returncode == 0:
                owner = done.stdout.split(":")[0]
                break
        copyright_file = f"/usr/share/doc/{owner}/copyright"
        if not owner or not os.path.exists(copyright_file):
            fail(f"{path} has no copyright file of a Debian package")
        shutil.copy(copyright_file, os.path.join(folder, f"{owner}.txt"))
        source = output_of("dpkg-query", "-W", "-f", "${source:Package} ${source:Version}\n",
                           owner).splitlines()[0]
        lines.append(f"{soname}: package {owner} of Debian, licence in {owner}.txt; source: "
                     f"package {source}, at https://sources.debian.org\n")
    with open(os.path.join(folder, "LIBRARIES.txt"), "w", encoding="utf-8") as f:
        f.write("Libraries in aquifer/lib that others wrote, unchanged but for their names:\n\n")
        f.writelines(lines)


def write(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def metadata(folder, version, tag):
    """The files of dist-info, from pyproject.toml."""
    with open(os.path.join(HERE, "pyproject.toml"), "rb") as f:
        project = tomllib.load(f)["project"]
    with open(os.path.join(HERE, project["readme"]), encoding="utf-8") as f:
        readme = f.read()
    extras = project["optional-dependencies"]
    write(os.path.join(folder, "METADATA"), "\n".join([
        "Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {version}",
        f"Summary: {project['description']}", f"License: {project['license']}",
        "Keywords: " + ",".join(project["keywords"]),
        *(f"Classifier: {c}" for c in project["classifiers"]),
        f"Requires-Python: {project['requires-python']}",
        *(f"Provides-Extra: {extra}" for extra in extras),
        *(f"Requires-Dist: {package}; extra == '{extra}'" for extra, packages in extras.items()
          for package in packages),
        "Description-Content-Type: text/markdown", "", readme]))
    write(os.path.join(folder, "WHEEL"), "Wheel-Version: 1.0\nGenerator: aquifer build_wheel\n"
          f"Root-Is-Purelib: false\nTag: {tag}\n")
    write(os.path.join(folder, "entry_points.txt"), "[console_scripts]\n" + "".join(
        f"{name} = {function}\n" for name, function in project["scripts"].items()))


def pack(tree, wheel, info):
    """The tree as a zip file, with hashes of all files in RECORD (PEP 427)."""
    names = sorted(os.path.relpath(os.path.join(at, n), tree)
                   for at, _, found in os.walk(tree) for n in found)
    # What tells what the wheel is stands at its end.
    names.sort(key=lambda name: name.startswith(info))
    record = io.StringIO()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            path = os.path.join(tree, name)
            with open(path, "rb") as f:
                content = f.read()
            entry = zipfile.ZipInfo(name, TIME)
            entry.external_attr = (os.stat(path).st_mode | 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            record.write(f"{name},sha256={digest.decode()},{len(content)}\n")
        entry = zipfile.ZipInfo(f"{info}/RECORD", TIME)
        entry.external_attr = 0o100644 << 16
        archive.writestr(entry, record.getvalue() + f"{info}/RECORD,,\n")


def make(build, folder):
    """The wheel's path."""
    if not os.path.exists(os.path.join(build, "build.ninja")):
        fail(f"'{build}' is no build folder")
    with tempfile.TemporaryDirectory() as work:
        prefix, tree = installed(build, work), os.path.join(work, "tree")
        with open(os.path.join(ROOT, "meson.build"), encoding="utf-8") as f:
            version = re.search(r"^  version: '(.*)',$", f.read(), re.M).group(1)
        info = f"aquifer-{version}.dist-info"
        shutil.copytree(os.path.join(HERE, "aquifer"), os.path.join(tree, "aquifer"),
                        ignore=shutil.ignore_patterns("__pycache__", "lib"))
        files = {"aquifer": os.path.join(prefix, "bin", "aquifer"),
                 "libaquifer.so.0": find(prefix, "libaquifer.so.0")[0]}
        files.update({"aquifer_cuda.so": path for path in find(prefix, "aquifer_cuda.so")})
        needs, bundled = bundle(files, os.path.join(tree, "aquifer", "lib"))
        licences(needs, os.path.join(tree, info, "licenses"))
        data = os.path.join(tree, f"aquifer-{version}.data", "data", "share")
        shutil.copytree(os.path.join(prefix, "share"), data, ignore=shutil.ignore_patterns("doc"))
        tag = "py3-none-" + platform_tag(bundled)
        metadata(os.path.join(tree, info), version, tag)
        os.makedirs(folder, exist_ok=True)
        wheel = os.path.join(folder, f"aquifer-{version}-{tag}.whl")
        pack(tree, wheel, info)
    return wheel


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """For pip and build (PEP 517); the setting "build" names a build folder."""
    folder = (config_settings or {}).get("build")
    if not folder:
        subprocess.run(["sh", os.path.join(ROOT, "packaging", "build.sh")], check=True)
        folder = os.path.join(ROOT, "build-package")
    with contextlib.chdir(HERE):
        return os.path.basename(make(os.path.abspath(folder), wheel_directory))


def build_sdist(sdist_directory, config_settings=None):
    """Sources are the repository's, not the package's."""
    raise NotImplementedError("a source distribution is the repository itself")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: build_wheel.py BUILD FOLDER")
    print(make(*sys.argv[1:]))
