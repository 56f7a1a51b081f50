#!/usr/bin/env bash
# Makes the virtualenv, or brings it up to date. Finished steps are not repeated: each leaves a key of everything that it
# depends on in $VENV/.feeder, so a second call takes a fraction of a second.
# Usage: [VENV=.venv] [PYTHON=python3] [TORCH_INDEX=URL] scripts/env.sh run|test
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

level="${1:-test}"
case "$level" in
    run) extras="" ;;
    test) extras="[dev,dev-gil,dali-cuda13,gpu]" ;;
    *) echo "usage: scripts/env.sh run|test" >&2 && exit 2 ;;
esac
mkdir -p "${VENV:=.venv}"
venv="$(cd "$VENV" && pwd)"
state="$venv/.feeder"

say() { printf 'feeder: %s\n' "$*" >&2; }

# Two makes at once take turns. The lock is the folder itself, so nothing is left behind.
exec 9<"$venv"
if command -v flock >/dev/null && ! flock -n 9; then
    say "waiting for another make that works on $venv"
    flock 9
fi

key() { sha256sum | cut -d ' ' -f 1; }
done_already() { [ "$(cat "$state/$1" 2>/dev/null)" = "$2" ]; }
finish() { printf '%s\n' "$2" >"$state/$1.new" && mv "$state/$1.new" "$state/$1"; }

instructions() { grep -qw avx2 /proc/cpuinfo 2>/dev/null && echo avx2 || echo sse4; }
# git's list, so that build outputs and editors' backups don't count; plain find outside of a checkout.
sources() { git ls-files -co --exclude-standard -- kernels CMakeLists.txt 2>/dev/null || find kernels CMakeLists.txt -type f; }

# Their names: an editable install notes where each module lies, and is made again when one is moved.
modules() { find feeder/ -name '*.py' | LC_ALL=C sort; }

# With a "t" at the end if it is a free-threaded build.
version_of() {
    "$1" -c 'import sys, sysconfig; print("%d.%d.%d" % sys.version_info[:3] + "t" * (sysconfig.get_config_var("Py_GIL_DISABLED") or 0))' \
        2>/dev/null || true
}
free_threaded() { [ "${has_python%t}" != "$has_python" ]; }
simd="$(sed -n 's/^pillow-simd==\([^ ;]*\).*/\1/p' constraints.txt)"
make_keys() {
    has_python="$([ ! -x "$venv/bin/python" ] || version_of "$venv/bin/python")"
    packages_key="$has_python $(cat constraints.txt pyproject.toml scripts/env.sh | key) ${TORCH_INDEX:-}"
    python_tag="${has_python%.*}" python_tag="cp${python_tag/./}"
    # With an nvcc that was not there before, the CUDA kernels are built, too.
    native_key="$(sources | LC_ALL=C sort | xargs -d '\n' sha256sum -- 2>/dev/null | key) $(modules | key) $(nvcc --version 2>/dev/null | tail -n 1 || true) $packages_key"
    simd_key="pillow-simd $simd $(instructions) $packages_key"
}
make_keys

right_python() { [ -n "$has_python" ] && { [ -z "${PYTHON:-}" ] || [ "$(version_of "$PYTHON")" = "$has_python" ]; }; }
packages_done() { done_already packages-test "$packages_key" || { [ "$level" = run ] && done_already packages-run "$packages_key"; }; }
if [ ! -e "$state/busy" ] && right_python && packages_done \
    && done_already native "$native_key" && done_already pillow-simd "$simd_key"; then
    exit 0
fi

python="$(scripts/system.sh "${PYTHON:-}")"

# pip can't be trusted to repair what a kill left half-installed, so an interrupted environment starts over. Only one
# made here, though: a virtualenv or folder of the user's own is never cleared.
if [ ! -e "$state/ours" ] && [ -e "$venv/pyvenv.cfg" ]; then
    say "using the virtualenv $venv as it is"
    mkdir -p "$state"
elif [ ! -e "$state/ours" ] && [ -n "$(ls -A "$venv")" ]; then
    say "$venv is neither empty nor a virtualenv: name another folder with VENV=..."
    exit 1
else
    if [ -e "$state/busy" ] || ! right_python; then
        say "making the virtualenv $venv with $("$python" -V)"
        mkdir -p "$state"
        touch "$state/ours" "$state/busy"
        rm -f "$state"/{native,packages-*,pillow-simd}
        find "$venv" -mindepth 1 -maxdepth 1 ! -name .feeder ! -name wheels -exec rm -rf {} +
        "$python" -m venv "$venv"
        make_keys
    fi
fi
busy() { [ ! -e "$state/ours" ] || touch "$state/busy"; }
busy

# -c alone would not reach the environments that pip builds source packages in; newer pips read the second one there.
export PIP_CONSTRAINT="$PWD/constraints.txt" PIP_BUILD_CONSTRAINT="$PWD/constraints.txt"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
[ -t 1 ] && [ "${CI:-}" != true ] && quiet=() || quiet=(-q --progress-bar off)
pip() { "$venv/bin/python" -m pip "$@" </dev/null; }
install() { pip install ${quiet[@]+"${quiet[@]}"} "$@"; }
# pip 26 refuses constraints for environments to build in where it makes none.
install_in_place() { (unset PIP_BUILD_CONSTRAINT && install --no-build-isolation "$@"); }

# By uv, in a quarter of pip's time, from the index that pip is told to use. Where uv can't, pip does it.
install_many() {
    local index
    index="${PIP_INDEX_URL:-$(pip config get global.index-url 2>/dev/null || true)}"
    UV_CONSTRAINT="$PIP_CONSTRAINT" "$venv/bin/python" -m uv pip install --python "$venv/bin/python" \
        --no-build-isolation ${quiet[@]+-q} ${index:+--default-index "$index"} "$@" </dev/null ||
        { say "uv could not install this; pip tries" && install_in_place "$@"; }
    # By all cores at once, and also where PYTHONDONTWRITEBYTECODE keeps imports from it.
    "$venv/bin/python" -m compileall -qq -j 0 "$venv"/lib/python*/site-packages || true
}

# A line every 20 seconds, as pip says nothing while it compiles. In short sleeps, so that nothing outlives the build.
compiling() {
    local second most
    most="$(sources | grep -c '\.cc$')"
    touch "$state/compiling"
    for ((second = 1; ; second++)); do
        sleep 1
        ((second % 20)) || say "compiled $(find build -name '*.o' -newer "$state/compiling" | wc -l) of at most $most files in $second s"
    done
}

# -msse4 is in its build files, so x86 only. The wheels of both stay here: the tests look at each alone.
make_simd_wheel() {
    rm -rf "$wheels" "$wheels.new"
    # pip's own cache doesn't know the compiler's flags and would hand back a wheel built with others.
    CC="cc$([ "$(instructions)" = avx2 ] && echo ' -mavx2')" \
        pip wheel -q --progress-bar off --no-cache-dir --no-deps --no-binary pillow-simd -w "$wheels.new" "pillow-simd==$simd"
    pip download -q --progress-bar off --no-deps --only-binary pillow -d "$wheels.new" pillow
    mv "$wheels.new" "$wheels"
}
wants_simd="" simd_wheel=""
wheels="$venv/wheels/$(instructions)"
if ! done_already pillow-simd "$simd_key" && [ "$(uname -m)" = x86_64 ]; then
    wants_simd=1
    if ! compgen -G "$wheels/pillow_simd-$simd-$python_tag-*.whl" >/dev/null; then
        say "compiling pillow-simd for $(instructions) beside the rest"
        make_simd_wheel 9>&- &
        simd_wheel=$!
    fi
fi

if ! packages_done; then
    # Alone and before its dependents, so that nothing else can pull in another build of it.
    say "installing torch (a large download, the first time)"
    install --no-compile ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch
    install cmake nanobind ninja scikit-build-core uv
fi
if ! done_already native "$native_key"; then
    # A compile error is no reason to start over: a failed build leaves the environment as it was.
    rm -f "$state/busy"
    say "building feeder$(command -v ccache >/dev/null && echo ' with ccache')"
    compiling 9>&- &
    trap "kill $! 2>/dev/null || true" EXIT
    # Without build isolation cmake and nanobind stay in place, so that only a changed kernel is compiled again.
    CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" install_in_place --no-deps -e .
    kill $! 2>/dev/null || true
    trap - EXIT
    finish native "$native_key"
    busy
fi
if ! packages_done; then
    if free_threaded; then
        extras="${extras/dev-gil,/}"
        extras="${extras/,gpu/}"
    fi
    say "installing what feeder needs${extras:+ with $extras}"
    install_many -e ".$extras"
    if [ "$level" != run ]; then
        # Triton comes with a torch for CUDA, too, and brings the GIL back.
        ! free_threaded || pip uninstall -q -y triton
        install --no-deps fastai  # why without: pyproject.toml
        rm -rf "$venv/torchvision"
        install --no-deps --target "$venv/torchvision" torchvision
    fi
fi

# The last step, as it overwrites files of pillow.
if [ -n "$wants_simd" ]; then
    [ -z "$simd_wheel" ] || wait "$simd_wheel"
    install --no-deps --force-reinstall "$wheels"/pillow_simd-"$simd"-*.whl
fi
finish pillow-simd "$simd_key"
finish "packages-$level" "$packages_key"
rm -f "$state/busy"
say "the virtualenv $venv is ready"
