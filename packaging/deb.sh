#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes a Debian package, aquifer_VERSION_ARCHITECTURE.deb:
#
#     sh packaging/deb.sh [BUILD [FOLDER]]
#
# BUILD is a build folder in which everything is built, with any prefix; without one,
# packaging/build.sh builds.  FOLDER (the current one) gets the package.  It has what
# `meson install` gives, below /usr, and the Python package, and depends on the libraries that
# dpkg-shlibdeps names: it fits the release of Debian it was made on.
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-}
folder=${2:-.}

for tool in dpkg-deb meson; do
    if ! command -v $tool >/dev/null && [ -n "$build" ]; then
        echo "deb: $tool is missing: apt-get install dpkg meson" >&2
        exit 1
    fi
done
if [ -z "$build" ]; then
    sh "$source/packaging/build.sh"
    build=$source/build-package
fi
if ! command -v dpkg-shlibdeps >/dev/null; then
    echo "deb: dpkg-shlibdeps is missing: apt-get install dpkg-dev" >&2
    exit 1
fi
if [ ! -f "$build/build.ninja" ]; then
    echo "deb: '$build' is no build folder" >&2
    exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
version=$(sed -n "s/^  version: '\([^']*\)',$/\1/p" "$source/meson.build")
architecture=$(dpkg --print-architecture)

if ! DESTDIR=$work/installed meson install -C "$build" --no-rebuild >"$work/log" 2>&1; then
    tail -n 3 "$work/log" >&2
    exit 1
fi
prefix=$(meson introspect "$build" --buildoptions | python3 -c \
    'import json, sys; print(*(o["value"] for o in json.load(sys.stdin) if o["name"] == "prefix"))')
mkdir -p "$root/DEBIAN" "$root/usr/lib/python3/dist-packages"
cp -a "$work/installed$prefix/." "$root/usr"
cp -r "$source/python/aquifer" "$root/usr/lib/python3/dist-packages"
rm -rf "$root/usr/lib/python3/dist-packages/aquifer/__pycache__"

# What has another place or form on Debian.
sed -i 's|^prefix=.*|prefix=/usr|' "$(find "$root/usr" -name aquifer.pc)"
mkdir -p "$root/usr/share/zsh/vendor-completions"
mv "$root/usr/share/zsh/site-functions/_aquifer" "$root/usr/share/zsh/vendor-completions"
rmdir "$root/usr/share/zsh/site-functions"
gzip -9n "$root"/usr/share/man/man1/*.1
{
    echo "Aquifer is licensed under the Apache License, version 2.0, whose text is in"
    echo "/usr/share/common-licenses/Apache-2.0."
} >"$root/usr/share/doc/aquifer/copyright"
rm "$root/usr/share/doc/aquifer/LICENSE"
strip --strip-unneeded "$root/usr/bin/aquifer" "$(find "$root/usr" -name 'libaquifer.so.*.*')"
strip --strip-debug "$(find "$root/usr" -name libaquifer.a)"

# dpkg-shlibdeps reads debian/control, and wants to be told of the libraries' own folders.
mkdir "$work/debian"
printf 'Source: aquifer\n\nPackage: aquifer\nArchitecture: any\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O -xaquifer "$root/usr/bin/aquifer" \
    "$(find "$root/usr" -name 'libaquifer.so.*.*')" 2>"$work/log" ||
    { cat "$work/log" >&2; exit 1; })
depends=${depends#shlibs:Depends=}
cat >"$root/DEBIAN/control" <<EOF
Package: aquifer
Version: $version
Architecture: $architecture
Section: science
Priority: optional
Maintainer: ${DEBFULLNAME:-Aquifer} <${DEBEMAIL:-root@localhost}>
Installed-Size: $(du -sk "$root/usr" | cut -f1)
Depends: $depends
Suggests: python3 (>= 3.9), man-db, bash-completion, gcc, pkg-config
Description: large batches of prompts through language models
 Runs large batches of prompts through language models that need not fit
 the accelerator or even the memory, and writes every answer to a file.
 The program aquifer, the library libaquifer with its header, and the
 Python package aquifer.
EOF
echo "activate-noawait ldconfig" >"$root/DEBIAN/triggers"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
chmod -R u+rwX,go+rX,go-w "$root"

mkdir -p "$folder"
package=$folder/aquifer_${version}_$architecture.deb
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
echo "$package"
