#!/usr/bin/env bash
# Checks what the virtualenv needs from the system: Python, a C++ compiler, headers. As root on Debian or Ubuntu it
# installs what is missing; otherwise it lists what to install. Prints the path of the Python to use.
# Usage: scripts/system.sh [PYTHON]      FEEDER_NO_INSTALL=1: only say what is missing, as root too
set -euo pipefail

say() { printf 'feeder: %s\n' "$*" >&2; }

# A Python named by the user is taken or refused, never replaced by another.
wanted="${1:-}"
python=""
find_python() {
    local candidate
    python=""
    for candidate in ${wanted:-python3 python3.14 python3.13 python3.12 python3.11 python3.10}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            python="$(command -v "$candidate")"
            return
        fi
    done
}

has_header() { printf '#include <stdio.h>\n#include <%s>\n' "$1" | g++ -E -x c++ ${2:+-I"$2"} - >/dev/null 2>&1; }

# Fills `missing` (what, for people), `packages` (what to install on Debian and Ubuntu) and `lost` (formats that
# pillow-simd would be built without; no reason to stop).
missing=() packages=() lost=()
lacks() { missing+=("$1"); packages+=("${@:2}"); }
look() {
    missing=() packages=() lost=()
    local apt_python=python3 include=""
    find_python
    if [ -z "$python" ]; then
        lacks "Python 3.10 or newer${wanted:+ (PYTHON=$wanted is not)}" python3 python3-venv python3-dev
    else
        # Only Python packages of the system come in parts; Debian names the parts after the version.
        apt_python="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
        "$python" -c 'import ensurepip, venv' 2>/dev/null || lacks "Python's venv module" "$apt_python-venv"
        include="$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
        [ -f "$include/Python.h" ] || lacks "Python.h (looked in $include)" "$apt_python-dev"
    fi
    if ! command -v g++ >/dev/null || ! command -v cc >/dev/null; then
        lacks "the C++ compiler g++" g++
        # Without a compiler the headers can't be looked for; the packages cost nothing where they are there already.
        packages+=(zlib1g-dev libjpeg-dev libdeflate-dev libtiff-dev libopenjp2-7-dev pkg-config)
        return
    fi
    has_header zlib.h || lacks "zlib.h" zlib1g-dev
    has_header jpeglib.h || lacks "jpeglib.h (libjpeg-turbo)" libjpeg-dev
    # For a name it can't find, g++ prints just the name.
    [ -f "$(g++ -print-file-name=libjpeg.a)" ] || lacks "libjpeg.a (libjpeg-turbo)" libjpeg-dev
    { has_header libdeflate.h && [ -f "$(g++ -print-file-name=libdeflate.a)" ]; } || lacks "libdeflate.h or libdeflate.a" libdeflate-dev
    # pillow-simd's build looks for its header where only pkg-config says.
    if ! has_header tiffio.h || ! command -v pkg-config >/dev/null; then
        lost+=("compressed TIFF")
        packages+=(libtiff-dev pkg-config)
    fi
    # openjpeg.h lies in a folder of its version, which the compiler doesn't search.
    compgen -G '/usr/include/openjpeg-2*/openjpeg.h' >/dev/null || has_header openjpeg.h || {
        lost+=("JPEG 2000")
        packages+=(libopenjp2-7-dev)
    }
}

# Quiet unless it fails. The package lists may be missing (containers), or older than what the mirror still has.
apt_install() {
    export DEBIAN_FRONTEND=noninteractive
    local install=(apt-get install -y -q --no-install-recommends "$@") log
    log="$(mktemp)"
    if ! "${install[@]}" </dev/null >"$log" 2>&1 \
        && ! { apt-get update -q </dev/null && "${install[@]}" </dev/null; } >"$log" 2>&1; then
        cat "$log" >&2
        say "apt-get could not install $*"
    fi
    rm -f "$log"
}

look
if [ ${#packages[@]} -gt 0 ] && [ -z "${FEEDER_NO_INSTALL:-}" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing ${packages[*]}"
    apt_install "${packages[@]}"
    look
fi
if [ ${#missing[@]} -gt 0 ]; then
    say "missing on this system:"
    printf '  - %s\n' "${missing[@]}" >&2
    say "on Debian and Ubuntu:  sudo apt-get install ${packages[*]}"
    say "elsewhere: Python 3.10+ with headers, g++, zlib, and libjpeg-turbo with its static library (libjpeg.a)"
    exit 1
fi
for format in ${lost[@]+"${lost[@]}"}; do
    say "note: pillow-simd will be built without $format; sudo apt-get install ${packages[*]} adds it"
done
printf '%s\n' "$python"
