#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes a folder that starts on a machine with a GPU and nothing else: no packages, no compiler, no
# network.
#
#     meson setup build -Dcuda=enabled -Dgpu_arch=90 && ninja -C build
#     sh bench/gpu_bundle.sh [BUILD [FOLDER [MODULE]]]
#
# BUILD (build) has been built; FOLDER (BUILD/bundle) is made anew; MODULE, the CUDA backend, is
# BUILD/kernels/aquifer_cuda.so.  The folder gets program, module, the tests that a GPU runs,
# the tiny model, the suite's scripts and every shared library they need.  The C library is to be
# there, of this machine's version or later; so is cuBLASLt, which is 500 MB and comes with the
# toolkit or a PyTorch wheel (docs/gpu.md).
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
folder=${2:-$build/bundle}
module=${3:-$build/kernels/aquifer_cuda.so}

for tool in patchelf ldd; do
    if ! command -v $tool >/dev/null; then
        echo "gpu_bundle: $tool is missing: apt-get install patchelf libc-bin" >&2
        exit 1
    fi
done
tests=$build/tests
programs="$build/engine/cli/aquifer $tests/kcheck/kcheck_gpu $tests/cuda_emu/test_e2e_gpu"
for file in $programs "$module"; do
    if [ ! -f "$file" ]; then
        echo "gpu_bundle: there is no '$file': build it (docs/gpu.md; the module needs nvcc)" >&2
        exit 1
    fi
done

rm -rf "$folder"
mkdir -p "$folder/lib" "$folder/bench" "$folder/tests/data"
cp $programs "$folder"
cp "$module" "$folder/aquifer_cuda.so"
cp -r tests/data/tiny-opt "$folder/tests/data"
cp bench/gpu_suite.py bench/gpu_lines.py bench/runs.py "$folder/bench"
cp LICENSE "$folder"

# What libc, its loader and the driver bring stays theirs; cuBLASLt is found by the program.
for file in $programs "$module"; do
    ldd "$file" | awk '$2 == "=>" && $3 ~ "^/" { print $3 }'
done | sort -u | while read -r library; do
    case "${library##*/}" in
    libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.*) ;;
    ld-linux* | libcuda.so.* | libcublasLt.so.*) ;;
    *) cp -L "$library" "$folder/lib" ;;
    esac
done

# RPATH, which what a library needs is looked for by too; RUNPATH is not.
cd "$folder"
for file in aquifer kcheck_gpu test_e2e_gpu aquifer_cuda.so; do
    patchelf --force-rpath --set-rpath '$ORIGIN/lib' "$file"
done
for file in lib/*; do
    patchelf --force-rpath --set-rpath '$ORIGIN' "$file"
done
strip --strip-unneeded lib/* aquifer kcheck_gpu test_e2e_gpu
echo "gpu_bundle: $folder: $(du -sh . | cut -f1)"
