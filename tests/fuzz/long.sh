#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Fuzzes every target in turn, for hours:  tests/fuzz/long.sh HOURS [FOLDER]
# FOLDER (default ~/.cache/aquifer-fuzz) keeps the build, what was found to be new (corpus/NAME,
# made minimal at the end), the logs, and inputs that failed (crashes/NAME-*).  HOURS may be a
# fraction.  As many targets run at a time as there are CPUs, or AQ_FUZZ_JOBS.  Ends with a table;
# exit status 1 when something failed.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 1
root=$here/../..
targets=$(find "$here/corpus" -mindepth 1 -maxdepth 1 -type d -printf '%f\n' | sort)
limits="-timeout=20 -rss_limit_mb=2560 -error_exitcode=1"
export AQ_TEST_DATA="$root/tests/data"

# turn NAME SECONDS FOLDER: one target for a while; a line "NAME executions seconds features" for
# the table, and "NAME failed" when it did.
turn() {
    name=$1 folder=$3 log=$3/logs/$1.log
    mkdir -p "$folder/corpus/$name"
    begin=$(date +%s)
    nice "$folder/build/tests/fuzz/fuzz_$name" $limits -max_total_time="$2" -print_final_stats=1 \
        -artifact_prefix="$folder/crashes/$name-" "$folder/corpus/$name" "$here/corpus/$name" \
        >"$log" 2>&1 || {
        echo "$name failed" >>"$folder/turns"
        cp "$log" "$folder/crashes/$name-$begin.log"
    }
    seconds=$(($(date +%s) - begin))
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    features=$(grep -o ' ft: [0-9]*' "$log" | tail -n 1 | tr -dc 0-9)
    echo "$name ${executions:-0} $seconds ${features:-0}" >>"$folder/turns"
}

# shrink NAME FOLDER: the smallest set of inputs with the features of all.
shrink() {
    kept=$2/corpus/$1 least=$2/corpus/$1.least
    rm -rf "$least"
    mkdir -p "$least"
    if nice "$2/build/tests/fuzz/fuzz_$1" $limits -merge=1 "$least" "$here/corpus/$1" "$kept" \
        >"$2/logs/$1.merge.log" 2>&1; then
        rm -rf "$kept"
        mv "$least" "$kept"
    fi
}

# Of its own processes the script is the worker too.
case "${1:-}" in
turn | shrink)
    "$@"
    exit
    ;;
esac
if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    sed -n 3,8p "$0"
    exit 1
fi
folder=${2:-${XDG_CACHE_HOME:-$HOME/.cache}/aquifer-fuzz}
jobs=${AQ_FUZZ_JOBS:-$(nproc)}
mkdir -p "$folder/logs" "$folder/crashes" || exit 1
folder=$(cd "$folder" && pwd)
: >"$folder/turns"

clang=$(command -v clang-14 || command -v clang)
if [ -z "$clang" ]; then
    "$root/.ci/install" test
    clang=$(command -v clang-14 || command -v clang) || { echo "there is no clang"; exit 1; }
fi
programs=
for name in $targets; do
    programs="$programs tests/fuzz/fuzz_$name"
done
clangxx=${clang%/*}/clang++${clang##*clang}
{ [ -f "$folder/build/build.ninja" ] || CC=$clang CXX=$clangxx meson setup "$folder/build" "$root" \
    -Dfuzz=true -Disa=[] -Dtests=enabled -Dbuildtype=debugoptimized -Db_lundef=false; } \
    >"$folder/logs/build.log" 2>&1 &&
    nice ninja -j "$jobs" -C "$folder/build" $programs >>"$folder/logs/build.log" 2>&1 || {
    tail -n 15 "$folder/logs/build.log"
    echo "the targets do not build"
    exit 1
}

# Shares of ten minutes at most, so that every target has had its turn early on.
count=$(echo "$targets" | wc -l)
set -- $(awk -v h="$1" -v j="$jobs" -v n="$count" 'BEGIN {
    share = h * 3600 * j / n; rounds = int((share + 599) / 600); rounds = rounds < 1 ? 1 : rounds
    share = int(share / rounds); print rounds, share < 1 ? 1 : share }')
rounds=$1 share=$2
echo "$count targets, $jobs at a time: $rounds rounds of $share s each; new inputs go to $folder"
for round in $(seq "$rounds"); do
    echo "$targets" | xargs -P "$jobs" -I{} "$0" turn {} "$share" "$folder"
done
echo "$targets" | xargs -P "$jobs" -I{} "$0" shrink {} "$folder"

awk '
    $2 == "failed" { failed[$1]++; failures++; next }
    { runs[$1] += $2; seconds[$1] += $3; features[$1] = $4; all += $2; time += $3 }
    END {
        printf "%-16s %14s %10s %10s %8s\n", "target", "executions", "a second", "features",
            "failed"
        for (name in runs) {
            rate = runs[name] / (seconds[name] ? seconds[name] : 1)
            printf "%-16s %14d %10d %10d %8d\n", name, runs[name], rate, features[name],
                failed[name] | "sort"
        }
        close("sort")
        printf "%d executions in %.2f hours of one CPU by the clock, %d runs failed\n", all,
            time / 3600, failures
        exit failures > 0
    }' "$folder/turns"
status=$?
[ $status = 0 ] || ls -l "$folder/crashes"
exit $status
