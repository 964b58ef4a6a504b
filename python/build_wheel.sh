#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes a Python wheel that needs nothing but Python and the C and C++ libraries:
#
#     sh python/build_wheel.sh [BUILD [FOLDER]]
#
# BUILD is a build folder in which everything is built; without one, packaging/build.sh builds.
# FOLDER (the current one) gets the wheel.
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-}
folder=${2:-.}

if [ -z "$build" ]; then
    sh "$source/packaging/build.sh"
    build=$source/build-package
fi
python3 -B "$source/python/build_wheel.py" "$build" "$folder"
