#!/usr/bin/env bash
# Runs the tests and benchmarks that need a GPU, from a checkout, and writes what they find to a folder.
#   bench/gpu.sh OUTDIR [WHEELS]
#   WHEELS      a folder of wheels (feeder-data's too) to make an environment from, in OUTDIR/venv; without it the
#               Python in $PYTHON, .venv or the path is used, in which feeder or its requirements are installed
#   IMAGES=dir  photos in class folders; without it, made here     SECONDS_PER_RUN=10   REPEATS=3
# Fetches nothing from a network. Without a GPU everything is skipped, and the summary says so.
set -euo pipefail
if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
mkdir -p "$1"
out="$(cd "$1" && pwd)"
wheels="${2:+$(cd "$2" && pwd)}"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'gpu.sh: %s\n' "$*" | tee -a "$out/status.txt"; }
rm -f "$out"/gpu-*.json "$out"/parity-*.json "$out"/*.log "$out"/tests.xml "$out/status.txt" "$out/summary.txt"

python="${PYTHON:-}"
if [ -n "$wheels" ]; then
    "${python:-python3}" -m venv "$out/venv"
    python="$out/venv/bin/python"
    "$python" -m pip install -q --no-index --find-links "$wheels" "feeder-data[dali-cuda13,gpu]" pytest pytest-timeout
elif [ -z "$python" ]; then
    python="$(command -v python3)"
    [ ! -x .venv/bin/python ] || python="$PWD/.venv/bin/python"
fi
# The benchmarks and tests come from the checkout; the native module from it too where it is built, else from where
# feeder is installed.
if [ -e feeder/_native.pyi ] && ! compgen -G 'feeder/_native.*.so' >/dev/null; then
    installed="$(cd / && "$python" -c 'import feeder, os; print(os.path.dirname(feeder.__file__))' 2>/dev/null || true)"
    if [ -n "$installed" ]; then
        run_in="$out/run"
        rm -rf "$run_in" && mkdir -p "$run_in"
        cp -r bench tests examples pyproject.toml "$run_in/"
        cd "$run_in"
    fi
fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
unset TRITON_INTERPRET

if ! "$python" -c 'import feeder, torch' 2>"$out/import.log"; then
    say "feeder can't be imported by $python: $(tail -n 1 "$out/import.log")"
    exit 1
fi
rm -f "$out/import.log"
"$python" -m feeder --version -v >"$out/versions.txt" 2>&1 || true
if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    gpu=yes
    nvidia-smi >"$out/nvidia-smi.txt" 2>&1 || true
else
    gpu=no
    say "no CUDA device: everything that needs one is skipped"
fi

failed=0
# Each step has its time; one that fails does not keep the others from running.
step() {
    local name="$1" limit_s="$2"
    shift 2
    say "$name"
    if ! timeout "$limit_s" "$@" >"$out/$name.log" 2>&1; then
        failed=1
        say "$name FAILED; the end of $out/$name.log:"
        tail -n 5 "$out/$name.log" | tee -a "$out/status.txt"
    fi
}

if "$python" -c 'import pytest' 2>/dev/null; then
    # On a GPU the kernels' tests run there, not in the interpreter.
    select=(-m gpu)
    [ $gpu = yes ] && select=()
    step gpu-tests 1800 "$python" -m pytest -q -p no:cacheprovider -o addopts="-ra --strict-markers" \
        --junitxml="$out/tests.xml" "${select[@]}" tests/gpu tests/test_decode_dali.py tests/test_device.py \
        tests/test_loader_dali.py
else
    say "pytest is not installed: the tests are skipped"
fi

seekable="$out/data/seekable" keep="$out/data/keep" images="${IMAGES:-$out/data/images}"
if [ $gpu = yes ]; then
    mkdir -p "$out/data"
    [ -n "${IMAGES:-}" ] || [ -d "$images" ] || step make-images 1800 "$python" bench/make_images.py "$images" --count 2000
    step shard-seekable 1800 "$python" -m feeder shard "$images" --out "$seekable" -q
    step shard-keep 1800 "$python" -m feeder shard "$images" --out "$keep" --encode keep --dali-index -q
fi
# Pixels on the GPU beside Pillow's; the report is the JSON that it prints.
parity() {
    "$python" -m feeder parity "$seekable" --backend dali --device cuda --fidelity "$1" --json >"$out/parity-$1.json"
}
if [ $gpu = yes ]; then
    for fidelity in fast exact; do
        say "parity, $fidelity"
        parity $fidelity 2>"$out/parity-$fidelity.log" || { failed=1; say "parity, $fidelity: NOT PASSED"; }
    done
fi
seconds="${SECONDS_PER_RUN:-10}" repeats="${REPEATS:-3}"
step gpu-kernels 900 "$python" -m bench.gpu.kernels --json "$out/gpu-kernels.json"
step gpu-transfer 900 "$python" -m bench.gpu.transfer --seekable "$seekable" --json "$out/gpu-transfer.json"
step gpu-feed 7200 "$python" -m bench.gpu.feed --images "$images" --seekable "$seekable" --keep "$keep" \
    --seconds "$seconds" --repeats "$repeats" --json "$out/gpu-feed.json"
step gpu-train 3600 "$python" -m bench.gpu.train --seekable "$seekable" --repeats "$repeats" --json "$out/gpu-train.json"

if [ $gpu = yes ]; then
    step gpu-ladder 3600 "$python" -m bench.ladder --images "$images" --shards "$seekable" --seconds "$seconds" \
        --repeats "$repeats" --json "$out/gpu-ladder.json"
    step gpu-lessons 900 "$python" -m bench.transfer --json "$out/gpu-lessons.json"
fi

say "summary in $out/summary.txt"
"$python" -m bench.gpu.summary "$out"
exit $failed
