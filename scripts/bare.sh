#!/usr/bin/env bash
# Tries a wheel where there is nothing: installs it in a Debian 12 with Python but no compiler, library or network, then
# makes images, shards them, trains an epoch, benches, and opens the page of `feeder browse`. build/bare/times.json has the
# seconds that the way to a trained epoch takes, and those of the download. Needs root and debootstrap; the wheel is one for
# Python 3.11.
# Usage: [TORCH_INDEX=URL] scripts/bare.sh dist/feeder_data-*-cp311-*.whl
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'feeder: %s\n' "$*" >&2; }
stop() { say "$@" && exit 1; }
[ $# = 1 ] && [ -f "$1" ] || stop "usage: scripts/bare.sh WHEEL"
[ "$(id -u)" = 0 ] || stop "a new root needs root: sudo scripts/bare.sh $1"
command -v debootstrap >/dev/null || stop "debootstrap is missing: apt-get install debootstrap"

commit="$(git rev-parse HEAD 2>/dev/null || true)"
[ -z "$(git status --porcelain --untracked-files=no -- . ':!bench/results' 2>/dev/null)" ] || commit+="+changes"
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
started="${EPOCHREALTIME/[.,]/}"
"${PYTHON:-python3}" -m pip download -q --no-cache-dir --progress-bar off --only-binary :all: --python-version 3.11 -d "$bare/wheels" \
    -c constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$1[browse]"
download="$((${EPOCHREALTIME/[.,]/} - started)) $(du -sb "$bare/wheels" | cut -f1)"
cp "$1" "$bare/wheels/" 2>/dev/null || true
cp bench/make_images.py examples/{load_epoch,train,train_parallel}.py "$bare/trial/"

cat >"$bare/trial/try.sh" <<'EOF'
set -euo pipefail
cd /trial
export PATH=/feeder/bin:/usr/bin:/bin HOME=/trial PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels PIP_QUIET=1
for compiler in cc c++ gcc g++ clang; do
    ! command -v "$compiler" || { echo "this root has $compiler" >&2 && exit 1; }
done
[ -z "$(find / -xdev -name 'libjpeg*.so*' -not -path '/feeder/*')" ] || { echo "this root has libjpeg" >&2 && exit 1; }

# timed NAME COMMAND...: runs it, and notes its seconds for times.json.
seconds=""
timed() {
    local name="$1" started="${EPOCHREALTIME/[.,]/}"
    shift
    "$@"
    seconds+=" $name=$((${EPOCHREALTIME/[.,]/} - started))"
}
install() {
    python3 -m venv /feeder
    pip install feeder-data
}
timed install_s install
feeder --version -v
python make_images.py images --count 60 --classes 3
timed shard_s feeder shard images
timed train_s python train.py images-shards images-shards --out run --epochs 1 --image-size 64 --batch-size 20
SECONDS_TAKEN="$seconds" python - <<'END'
import os
from feeder.tools.bench.result_file import save
taken = {name: int(us) / 1e6 for name, us in (each.split("=") for each in os.environ["SECONDS_TAKEN"].split())}
us, size_bytes = map(int, os.environ["DOWNLOAD"].split())
download = {"seconds": us / 1e6, "mib": size_bytes / 2**20}
save("bare", {"images": 60, "seconds": taken | {"all": sum(taken.values())}, "download": download}, "times.json")
print(", ".join(f"{name} {value:.1f}" for name, value in taken.items()))
END
python load_epoch.py images-shards
feeder bench images-shards --folder images --workers 2 --seconds 1 --repeats 1
feeder doctor || true

pip install "feeder-data[browse]"
python - <<'END'
import fcntl, http.cookiejar, re, socket, struct, subprocess, sys, urllib.request
UP, SIOCSIFFLAGS = 1, 0x8914
fcntl.ioctl(socket.socket(), SIOCSIFFLAGS, struct.pack("16sh", b"lo", UP))  # in a network namespace of its own
with subprocess.Popen(["feeder", "browse", "images-shards"], stdout=subprocess.PIPE, text=True) as server:
    url = next(line for line in server.stdout if "open http" in line).split()[-1]
    cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
    opener = urllib.request.build_opener(cookies)
    page = opener.open(url, timeout=60).read().decode()
    files = re.findall(r'(?:href|src)="(/static/[^"]+)"', page)
    sizes = {file: len(opener.open(url.partition("/?")[0] + file, timeout=60).read()) for file in files}
    server.terminate()
assert "images-shards" in page and len(files) >= 2 and all(sizes.values()), (page, sizes)
print(f"feeder browse answered, with {', '.join(sizes)}")
END
EOF
# Namespaces of its own: what is mounted goes when it ends, and there is no network.
unshare --mount --pid --net --fork --kill-child bash -euc '
    mount -t proc proc "$1/proc" && mkdir -p "$1/dev/shm" && mount -t tmpfs tmpfs "$1/dev/shm"
    exec chroot "$1" /usr/bin/env -i FEEDER_COMMIT="$2" DOWNLOAD="$3" /bin/bash /trial/try.sh' - "$bare" "$commit" "$download" </dev/null
cp "$bare/trial/times.json" "$home/"
say "$1 works on a bare Debian 12; times are in build/bare/times.json"
