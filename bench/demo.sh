#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds, and continues the shipped prompts with the shipped tiny model.
# Results stay in build/demo.  More options for generate may be given: bench/demo.sh --temperature 0
set -eu
cd "$(dirname "$0")/.."

./.ci/install build
[ -f build/build.ninja ] || meson setup build
ninja -C build engine/cli/aquifer

rm -rf build/demo
mkdir -p build/demo
echo
build/engine/cli/aquifer generate --config configs/examples/demo.yaml \
    --model tests/data/tiny-opt --device cpu \
    --input configs/examples/prompts.jsonl --output build/demo/results.jsonl "$@"
echo
python3 bench/show_results.py configs/examples/prompts.jsonl build/demo/results.jsonl
