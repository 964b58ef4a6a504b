#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds and runs every suite; the last line is "N passed, N failed".
#     tests/run.sh         all of the below, more than half an hour on two cores
#     tests/run.sh quick   whether the program works on this machine, within five minutes: a sample
#                          of every kind but measurements, built for release only
#   release     all suites, warnings are errors
#   sanitized   all but form, headers, measurements and pages, under AddressSanitizer and UBSan
#   threads     the suites that start threads, under ThreadSanitizer
#   fuzz        each fuzz target for some seconds under libFuzzer (where clang is)
# The next build is made at the lowest priority while tests run: some of them sleep, and the last
# ones leave cores idle.  Build folders are kept in build-tests, so that a second run is short.
set -u
cd "$(dirname "$0")/.." || exit 1
case "$*" in
"" | quick) ;;
*)
    sed -n '3,6s/^# \{0,1\}//p' tests/run.sh >&2
    exit 1
    ;;
esac
root=$PWD builds=$PWD/build-tests start=$(date +%s)
jobs=$(nproc 2>/dev/null || echo 2)
mkdir -p "$builds"
# Logs of an earlier run must not be counted again.
rm -f "$builds"/*/meson-logs/testlog*.json "$builds"/*.failed

say() {
    echo "== $1: $2, at $(($(date +%s) - start)) s"
}

# build NAME TARGETS SETUP-ARGUMENTS...: configures once, compiles the targets, or all; a failure is
# a failed test.
build() {
    name=$1 targets=$2
    shift 2
    say "$name" "building"
    log=$builds/$name.log
    if { [ -f "$builds/$name/build.ninja" ] || meson setup "$builds/$name" -Dtests=enabled "$@"; } \
        >"$log" 2>&1 && $nice ninja -j "$jobs" -C "$builds/$name" $targets >>"$log" 2>&1; then
        return 0
    fi
    grep -n -m 20 -E 'error|ERROR|FAILED' "$log"
    tail -n 15 "$log"
    echo "$name does not build; the whole log is $log" | tee "$builds/$name.failed"
    return 1
}

# check NAME TEST-ARGUMENTS...: runs suites of what was built; failures are counted from the logs at
# the end.
check() {
    name=$1
    shift
    [ -f "$builds/$name/build.ninja" ] && [ ! -f "$builds/$name.failed" ] || return 0
    say "$name" "testing"
    meson test -C "$builds/$name" --no-rebuild --print-errorlogs --timeout-multiplier 4 "$@" ||
        echo "$name: there are failures"
}

# For sanitizers: traces need lines, not variables, which compilers and linkers take long for.
sanitized="-Doptimization=2 -Ddebug=false -Dc_args=-g1 -Dcpp_args=-g1 -Db_lundef=false"
build_sanitized() {
    build sanitized "" -Dwerror=true $sanitized -Db_sanitize=address,undefined
}

# What starts threads: pools, io engines, lanes, transfers, the engine over them, the writer and the
# job around it; no more is built.
threads="base completions io xfer xfer_swarm disk disk_lane device engine placement host_products
trace writer session interrupt pack nodes"
build_threads() {
    programs=
    for name in $threads; do
        programs="$programs tests/test_$name"
    done
    build threads "$programs" -Dwerror=true $sanitized -Db_sanitize=thread
}

# No fuzz target computes: the vector kernels, slow to compile instrumented, stay out.
clang=$(command -v clang-14 || command -v clang)
build_fuzz() {
    if [ -z "$clang" ]; then
        echo "== fuzz: skipped, there is no clang"
        return 0
    fi
    (
        export CC="$clang" CXX="$(dirname "$clang")/$(basename "$clang" | sed 's/clang/clang++/')"
        build fuzz fuzz-targets -Dfuzz=true -Disa=[] $sanitized
    )
}

# Tests of each kind and their programs: what computes, what is kept, what is read and written, and
# tokens beside those of other libraries.
quick="base file json units policy kv_policy checker seating engine host_products kv trace io xfer
disk_lane store sample tokenizer tok_families jinja request result generate resume options
reference"
quick_e2e="golden program families quantised"
quick_scripts="e2e-chat e2e-resume e2e-score"
check_quick() {
    programs=engine/cli/aquifer
    names=$quick_scripts
    for name in $quick; do
        programs="$programs tests/test_$name" names="$names $name"
    done
    for name in $quick_e2e; do
        programs="$programs tests/test_e2e_$name" names="$names e2e-$name"
    done
    build quick "$programs" && check quick $names
}

if ! ./.ci/install "${1:-test}"; then
    echo "what the tests need could not be installed" >"$builds/install.failed"
fi
nice=
if [ "$*" = quick ]; then
    check_quick
    say quick "done"
    python3 "$root/tests/totals.py" "$builds"
    exit
fi
build release "" -Dwerror=true
nice="nice -n 19"
build_sanitized &
check release
wait
{ build_threads; build_fuzz; } &
check sanitized --setup asan --no-suite tidy --no-suite headers --no-suite timed \
    --no-suite said
wait
check threads --setup tsan $threads
check fuzz --suite fuzz
say all "done"
python3 "$root/tests/totals.py" "$builds"
