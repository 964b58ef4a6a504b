#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Where an engine's memory and threads lie on a kernel with two memory nodes, in a virtual machine:
# the policies of its large maps and their pages on each node, with --numa off and auto, and whether
# the tokens are the same.
#
#   tests/numa_vm.sh VMLINUZ BUILD    a kernel (of apt-get download linux-image-...), a build folder
#
# Needs qemu-system-x86_64, busybox (static) and cpio.  Instructions are interpreted, so the model
# is small and nothing here says how fast anything is.
set -eu
kernel=$1 build=$2 source=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
for folder in bin proc sys dev tmp lib lib64 app; do
    mkdir -p "$root/$folder"
done
cp "$(command -v busybox)" "$root/bin/"
cp "$build/engine/cli/aquifer" "$build/tests/test_numa" "$root/app/"
cp -r "$source/configs/examples/prompts.jsonl" "$source/tests/data/tiny-opt" "$root/app/"
for program in "$root/app/aquifer" "$root/app/test_numa"; do
    for lib in $(ldd "$program" | grep -o '/[^ ]*'); do
        cp -L "$lib" "$root/lib/"
    done
done
cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
cat > "$root/init" <<'END'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin LD_LIBRARY_PATH=/lib HOME=/tmp XDG_CACHE_HOME=/tmp
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev; mount -t tmpfs t /tmp
cd /app
./test_numa 2>&1 | grep -E "OK|FAILED|SKIPPED"
./aquifer info | grep numa
for numa in off auto; do
    echo "--numa $numa"
    ./aquifer bench --shape opt-125m --random-weights 0 --prompt-len 4 --gen-len 2000 \
        --micro-batch 12 --micro-batches 1 --num-prompts 12 --repeats 1 --warmup 0 \
        --host-memory 2GiB --weight-format bf16 --numa $numa > /dev/null 2>&1 &
    process=$!
    sleep 70
    for task in /proc/$process/task/*; do
        echo "  a thread on CPUs $(sed -n 's/Cpus_allowed_list:.//p' $task/status)"
    done
    awk '{
        n[0] = n[1] = anon = 0
        for (i = 3; i <= NF; i++) {
            split($i, x, "=")
            if (x[1] == "anon") anon = x[2]
            if (x[1] == "N0") n[0] = x[2]
            if (x[1] == "N1") n[1] = x[2]
        }
        if (anon >= 512) { maps[$2]++; on0[$2] += n[0]; on1[$2] += n[1] }
    } END {
        for (p in maps)
            printf "  policy %s: %d maps, %d MiB on node 0, %d MiB on node 1\n",
                   p, maps[p], on0[p] / 256, on1[p] / 256
    }' /proc/$process/numa_maps
    kill $process
    wait $process
    ./aquifer generate --model tiny-opt --input prompts.jsonl --output /tmp/$numa.jsonl \
        --numa $numa --quiet
done
sed -i 's/.*"text"/"text"/' /tmp/off.jsonl /tmp/auto.jsonl
cmp /tmp/off.jsonl /tmp/auto.jsonl && echo "the tokens are the same"
poweroff -f
END
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) > "$work/initrd"
qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2,sockets=2,cores=1 -m 6G \
    -object memory-backend-ram,size=3G,id=m0 -object memory-backend-ram,size=3G,id=m1 \
    -numa node,nodeid=0,cpus=0,memdev=m0 -numa node,nodeid=1,cpus=1,memdev=m1 \
    -kernel "$kernel" -initrd "$work/initrd" -append "console=ttyS0 quiet panic=1" \
    -nographic -no-reboot
