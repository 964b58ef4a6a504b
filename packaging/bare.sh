#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What a stranger does, each in a Debian 12 of its own with nothing installed, and how long that
# takes:
#
#     sh packaging/bare.sh FOLDER WAY...
#
#     demo    README's first command, in a clone
#     quick   README's second, the sample             tests   README's second, whole
#     wheel   pip install, and ten lines of Python    deb     apt install, and a batch file
#     docker  the RUN steps of the Dockerfile, one after the other
#     build   both packages, by their commands, in a clone
#
# wheel and deb install what FOLDER/packages has: what build left there, or copies.  Needs root,
# debootstrap and Debian's packages; the roots are FOLDER/WAY, from FOLDER/base, which debootstrap
# makes.  Sources and proxies of apt, and certificates, are this machine's.
set -eu
cd "$(dirname "$0")/.."
if [ $# -lt 2 ]; then
    sed -n '3,17s/^# \{0,1\}//p' "$0" >&2
    exit 1
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift

if [ ! -d "$folder/base" ]; then
    debootstrap --variant=minbase bookworm "$folder/base.part" >"$folder/debootstrap.log" ||
        { tail -n 3 "$folder/debootstrap.log" >&2; exit 1; }
    mv "$folder/base.part" "$folder/base"
fi

# The network as this machine has it, in the root "$1".
borrow() {
    cp -L /etc/resolv.conf "$1/etc/resolv.conf"
    for file in /etc/apt/sources.list.d/debian.sources /etc/apt/apt.conf.d/*proxy* \
        /etc/apt/auth.conf /etc/ssl/certs/ca-certificates.crt /etc/pip.conf; do
        [ -f "$file" ] || continue
        mkdir -p "$1$(dirname "$file")"
        cp -L "$file" "$1$file"
    done
    [ ! -f "$1/etc/apt/sources.list.d/debian.sources" ] || rm -f "$1/etc/apt/sources.list"
}

# The files of the last commit, as a clone has them.
clone() {
    mkdir -p "$1/srv/aquifer"
    git archive HEAD | tar -x -C "$1/srv/aquifer"
}

# The commands of "$2", in the root "$1".
inside() {
    unshare -m sh -c 'mount --rbind /proc "$1/proc"; mount --rbind /dev "$1/dev"
        exec chroot "$1" env HOME=/srv PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
            sh -euxc "cd /srv; $2"' sh "$1" "$2"
}

# The RUN steps of the Dockerfile, a line each; both stages are one root here.
docker_steps() {
    sed -e ':a' -e '/\\$/N; s/\\\n//; ta' Dockerfile | sed -n 's/^RUN //p'
}

commands_of() {
    case $1 in
    demo) echo "cd aquifer; ./bench/demo.sh" ;;
    quick) echo "cd aquifer; ./tests/run.sh quick" ;;
    tests) echo "cd aquifer; ./tests/run.sh" ;;
    build) echo "sh aquifer/packaging/deb.sh '' /srv; sh aquifer/python/build_wheel.sh '' /srv" ;;
    docker) docker_steps ;;
    deb) cat <<'END' ;;
apt-get update; apt-get install -y --no-install-recommends ./*.deb
cat >prompts.jsonl <<'RECORDS'
{"id": "storm", "prompt": "It was a dark and stormy night, and"}
{"id": "lane", "prompt": "The old house stood at the end of the lane.", "max_tokens": 24}
RECORDS
aquifer generate --model /usr/share/aquifer/tiny-opt --input prompts.jsonl --output results.jsonl
cat results.jsonl
END
    wheel) cat <<'END' ;;
apt-get update; apt-get install -y --no-install-recommends python3-venv
python3 -m venv env
env/bin/pip install --no-index ./*.whl
env/bin/python ten.py
env/bin/aquifer --version
END
    *) return 1 ;;
    esac
}

# Seconds of processor time between two outputs of `times`, of the commands that were run.
processor_s() {
    awk 'FNR == 2 { gsub(/[ms]/, " "); s = $1 * 60 + $2 + $3 * 60 + $4; if (FILENAME == ARGV[1])
        before = s } END { printf "%.0f", s - before }' "$1" "$2"
}

for way; do
    if ! commands=$(commands_of "$way"); then
        echo "bare: there is no way '$way'" >&2
        exit 1
    fi
    root=$folder/$way
    rm -rf "$root"
    cp -a "$folder/base" "$root"
    borrow "$root"
    case $way in
    deb | wheel)
        cp "$folder/packages/"* "$root/srv"
        # The page's own lines.
        sed -n '/^import sys$/,/^```$/p' docs/install.md | sed '$d' >"$root/srv/ten.py"
        ;;
    *) clone "$root" ;;
    esac
    start=$(date +%s) status=0
    times >"$folder/before"
    inside "$root" "$commands" >"$folder/$way.log" 2>&1 || status=$?
    times >"$folder/after"
    echo "$way: $(($(date +%s) - start)) s, $(processor_s "$folder/before" "$folder/after") s of" \
        "processor time, exit status $status; $folder/$way.log"
    [ $status = 0 ] || exit $status
    if [ "$way" = build ]; then
        mkdir -p "$folder/packages"
        cp "$root"/srv/*.deb "$root"/srv/*.whl "$folder/packages"
    fi
done
