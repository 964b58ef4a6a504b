#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds what packages are made of, in build-package: installs what is missing (Debian), configures
# without tests and compiles.  A second call compiles what has changed.
set -eu
cd "$(dirname "$0")/.."

./.ci/install package
[ -f build-package/build.ninja ] ||
    meson setup build-package --buildtype release -Dtests=disabled >&2
ninja -C build-package >&2
