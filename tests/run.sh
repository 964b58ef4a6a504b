#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds and runs every suite; the last line is "N passed, N failed".
#   release     all suites, warnings are errors
#   sanitized   all but form and headers, under AddressSanitizer and UBSan
#   threads     the suites that start threads, under ThreadSanitizer
#   fuzz        each fuzz target for some seconds under libFuzzer (where clang is)
# Build folders are kept in build-tests, so that a second run is short.
set -u
cd "$(dirname "$0")/.." || exit 1
root=$PWD builds=$PWD/build-tests
jobs=$(nproc 2>/dev/null || echo 2)
mkdir -p "$builds"
# Logs of an earlier run must not be counted again.
rm -f "$builds"/*/meson-logs/testlog*.json "$builds"/*.failed

# build NAME SETUP-ARGUMENTS...: configures once, compiles $targets, or all; a failure is a failed
# test.
targets=
build() {
    name=$1
    shift
    echo "== $name: building"
    log=$builds/$name.log
    if { [ -f "$builds/$name/build.ninja" ] || meson setup "$builds/$name" "$@"; } >"$log" 2>&1 &&
        ninja -j "$jobs" -C "$builds/$name" $targets >>"$log" 2>&1; then
        return 0
    fi
    grep -n -m 20 -E 'error|ERROR|FAILED' "$log"
    tail -n 15 "$log"
    echo "$name does not build; the whole log is $log" | tee "$builds/$name.failed"
    return 1
}

# check NAME TEST-ARGUMENTS...: runs suites; failures are counted from the logs at the end.
check() {
    name=$1
    shift
    echo "== $name: testing"
    meson test -C "$builds/$name" --no-rebuild --print-errorlogs "$@" ||
        echo "$name: there are failures"
}

if ! ./.ci/install test; then
    echo "what the tests need could not be installed" >"$builds/install.failed"
fi
if build release -Dwerror=true -Dtests=enabled; then
    check release
fi
if build sanitized -Dwerror=true -Dtests=enabled -Dbuildtype=debugoptimized \
    -Db_sanitize=address,undefined -Db_lundef=false; then
    check sanitized --setup asan --no-suite tidy --no-suite headers
fi
# What starts threads: pools, io engines, lanes, transfers, the engine over them, the writer and the
# job around it; no more is built.
threads="base completions io xfer xfer_swarm disk disk_lane device engine placement host_products
trace writer session interrupt pack"
for name in $threads; do
    targets="$targets tests/test_$name"
done
if build threads -Dwerror=true -Dtests=enabled -Dbuildtype=debugoptimized \
    -Db_sanitize=thread -Db_lundef=false; then
    check threads --setup tsan $threads
fi
targets=
clang=$(command -v clang-14 || command -v clang)
if [ -z "$clang" ]; then
    echo "== fuzz: skipped, there is no clang"
elif (
    export CC="$clang" CXX="$(dirname "$clang")/$(basename "$clang" | sed 's/clang/clang++/')"
    # No fuzz target computes: the vector kernels, slow to compile instrumented, stay out.
    build fuzz -Dfuzz=true -Disa=[] -Dtests=enabled -Dbuildtype=debugoptimized -Db_lundef=false
); then
    check fuzz --suite fuzz
fi
python3 "$root/tests/totals.py" "$builds"
