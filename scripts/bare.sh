#!/usr/bin/env bash
# Tries a wheel where there is nothing: installs it in a Debian 12 with Python but no compiler, library or network, then
# makes images, shards and loads them, and benches. Needs root and debootstrap; the wheel is one for Python 3.11.
# Usage: [TORCH_INDEX=URL] scripts/bare.sh dist/feeder_data-*-cp311-*.whl
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'feeder: %s\n' "$*" >&2; }
stop() { say "$@" && exit 1; }
[ $# = 1 ] && [ -f "$1" ] || stop "usage: scripts/bare.sh WHEEL"
[ "$(id -u)" = 0 ] || stop "a new root needs root: sudo scripts/bare.sh $1"
command -v debootstrap >/dev/null || stop "debootstrap is missing: apt-get install debootstrap"

home="$PWD/build/bare" bare="$PWD/build/bare/root"
mkdir -p "$home"
if [ ! -e "$home/made" ]; then
    say "making a bare Debian 12 in $bare"
    rm -rf "$bare"
    debootstrap --variant=minbase --include=python3,python3-venv bookworm "$bare" >"$home/log"
    touch "$home/made"
fi
say "downloading what $1 depends on"
rm -rf "$bare"/{wheels,feeder,trial}
mkdir "$bare/wheels" "$bare/trial"
"${PYTHON:-python3}" -m pip download -q --progress-bar off --only-binary :all: --python-version 3.11 -d "$bare/wheels" \
    -c constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$1"
cp "$1" "$bare/wheels/" 2>/dev/null || true
cp bench/make_images.py examples/load_epoch.py "$bare/trial/"

cat >"$bare/trial/try.sh" <<'EOF'
set -euo pipefail
cd /trial
export PATH=/feeder/bin:/usr/bin:/bin HOME=/trial
for compiler in cc c++ gcc g++ clang; do
    ! command -v "$compiler" || { echo "this root has $compiler" >&2 && exit 1; }
done
[ -z "$(find / -xdev -name 'libjpeg*.so*' -not -path '/feeder/*')" ] || { echo "this root has libjpeg" >&2 && exit 1; }
started=$SECONDS
python3 -m venv /feeder
pip install -q --no-index --find-links /wheels feeder-data
echo "installed in $((SECONDS - started)) s"
feeder --version -v
python make_images.py images --count 60 --classes 3
feeder shard images
python load_epoch.py images-shards
feeder bench images-shards --folder images --workers 2 --seconds 1 --repeats 1
feeder doctor || true
echo "$((SECONDS - started)) s in all"
EOF
# Namespaces of its own: what is mounted goes when it ends, and there is no network.
unshare --mount --pid --net --fork bash -euc '
    mount -t proc proc "$1/proc" && mkdir -p "$1/dev/shm" && mount -t tmpfs tmpfs "$1/dev/shm"
    exec env -i chroot "$1" /bin/bash /trial/try.sh' - "$bare" </dev/null
say "$1 works on a bare Debian 12"
