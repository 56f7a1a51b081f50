#!/usr/bin/env bash
# Runs the tests and benchmarks that need a GPU, from a checkout, and writes what they find to a folder.
#   bench/gpu.sh OUTDIR [WHEELS] [--only PART,PART...]
#   WHEELS      a folder of wheels, installed to OUTDIR/site over what the Python has; feeder-data's may be among them
#   --only      these parts alone, each under ten minutes; results of others in OUTDIR stay. In order:
#               tests tests-rest data parity kernels transfer feed-4 feed-8 feed-16 train ladder lessons
#   PYTHON      the Python to use; else .venv's, else python3 on the path
#   IMAGES      photos in class folders; else made      SECONDS_PER_RUN (5)  REPEATS (3)
# Fetches nothing from a network. Without a GPU everything is skipped, and the summary says so. Stopped by Ctrl-C or TERM
# it sums up what there is; results are saved as they come.
set -euo pipefail
parts=(tests tests-rest data parity kernels transfer feed-4 feed-8 feed-16 train ladder lessons)
usage() {
    sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}
places=() only=()
while [ $# -gt 0 ]; do
    case "$1" in
    --only)
        [ $# -ge 2 ] || usage
        IFS=, read -ra only <<<"$2"
        shift
        ;;
    -*) usage ;;
    *) places+=("$1") ;;
    esac
    shift
done
[ ${#places[@]} -ge 1 ] && [ ${#places[@]} -le 2 ] || usage
for part in "${only[@]+"${only[@]}"}"; do
    [[ " ${parts[*]} " == *" $part "* ]] || usage
done
wanted() { [ ${#only[@]} -eq 0 ] || [[ " ${only[*]} " == *" $1 "* ]]; }

mkdir -p "${places[0]}"
out="$(cd "${places[0]}" && pwd)"
wheels="${places[1]:+$(cd "${places[1]}" && pwd)}"
photos="${IMAGES:+$(cd "$IMAGES" && pwd)}"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
say() { printf 'gpu.sh: %s\n' "$*" | tee -a "$out/status.txt"; }
[ ${#only[@]} -gt 0 ] || rm -f "$out/status.txt"

python="${PYTHON:-}"
if [ -z "$python" ]; then
    python="$(command -v python3)"
    [ ! -x .venv/bin/python ] || python="$PWD/.venv/bin/python"
fi
if [ -n "$wheels" ] && ! ls -s "$wheels" | cmp -s - "$out/site/wheels.txt"; then
    rm -rf "$out/site"
    "$python" -m pip install -q --no-index --no-deps --no-compile --target "$out/site" "$wheels"/*.whl
    ls -s "$wheels" >"$out/site/wheels.txt"
    # NVIDIA's packages share a folder, and those of this Python hide these, or these hide those, unless it says so.
    [ ! -d "$out/site/nvidia" ] ||
        echo '__path__ = __import__("pkgutil").extend_path(__path__, __name__)' >"$out/site/nvidia/__init__.py"
fi
[ ! -d "$out/site" ] || export PYTHONPATH="$out/site${PYTHONPATH:+:$PYTHONPATH}"
# The benchmarks and tests come from the checkout; the native module from it too where it is built for this Python, else
# from where feeder is installed; else it is built now.
has_native() { (cd "$1" && "$python" -c 'import feeder._native') 2>/dev/null; }
if ! has_native .; then
    if has_native /; then
        run_in="$out/run"
        rm -rf "$run_in" && mkdir -p "$run_in"
        cp -r bench tests examples pyproject.toml "$run_in/"
        cd "$run_in"
    else
        say "building the native module"
        {
            cmake -S . -B "$out/build" -G Ninja -DPython_EXECUTABLE="$(command -v "$python")" -DCMAKE_BUILD_TYPE=Release &&
                cmake --build "$out/build"
        } >"$out/build.log" 2>&1 ||
            say "the native module is missing, and so are the results that need it: see $out/build.log"
    fi
fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
unset TRITON_INTERPRET

stop() {
    trap '' INT TERM
    local running
    running="$(jobs -p)"
    # shellcheck disable=SC2086
    if [ -n "$running" ]; then kill $running 2>/dev/null || true; fi
    wait
    say "stopped"
    exit 130
}
sum_up() {
    local code=$?
    say "summary in $out/summary.txt"
    "$python" -m bench.gpu.summary "$out" || code=1
    exit $code
}
trap stop INT TERM
if ! "$python" -c 'import feeder, torch; feeder.DataLoader' 2>"$out/import.log"; then
    say "feeder can't be imported by $python: $(tail -n 1 "$out/import.log")"
    exit 1
fi
rm -f "$out/import.log"
trap sum_up EXIT
"$python" -m feeder --version -v >"$out/versions.txt" 2>&1 || true
if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    gpu=yes
    nvidia-smi >"$out/nvidia-smi.txt" 2>&1 || true
    "$python" -c 'import sys; from bench.gpu.common import triton_lacks; sys.exit(triton_lacks())' 2>"$out/triton.log" ||
        say "Triton's kernels don't run, so feeder's rows fail, and ladder and lessons mean little:" \
            "$(tail -n 1 "$out/triton.log")"
else
    gpu=no
    say "no CUDA device: everything that needs one is skipped"
fi

failed=0
# Each step has its time and its log; one that fails does not keep the others from running.
step() {
    local name="$1" limit_s="$2" began=$SECONDS
    shift 2
    say "$name"
    # In the background, as bash attends to a signal only when what it waits for that way has ended.
    timeout --kill-after=10 "$limit_s" "$@" >"$out/$name.log" 2>&1 &
    if wait $!; then
        say "$name: $((SECONDS - began)) s"
    else
        failed=1
        say "$name FAILED after $((SECONDS - began)) s; the end of $out/$name.log:"
        tail -n 5 "$out/$name.log" | tee -a "$out/status.txt"
    fi
}

run_tests() { # NAME LIMIT_S SELECTION...
    rm -f "$out/$1.xml"
    step "$1" "$2" "$python" -m pytest -q -p no:cacheprovider -o addopts="-ra --strict-markers" \
        -o filterwarnings=default --junitxml="$out/$1.xml" "${@:3}"
}
# Each file in a process of its own, as a decoder's crash would take the others' results along; all in ten minutes.
run_marked_tests() {
    local file files left began=$SECONDS
    mapfile -t files < <(grep -rl 'mark\.gpu' tests --include='test_*.py' | sort)
    for file in "${files[@]}"; do
        left=$((560 - SECONDS + began))
        if [ $left -lt 10 ]; then
            failed=1
            say "tests-$(basename "$file" .py) NOT RUN: those before it took all the time"
            continue
        fi
        run_tests "tests-$(basename "$file" .py)" $((left < 200 ? left : 200)) -m gpu "$file"
    done
}
if wanted tests || wanted tests-rest; then
    if "$python" -c 'import pytest' 2>/dev/null; then
        # On a GPU the kernels' own tests run there, not in the interpreter.
        if wanted tests && [ $gpu = yes ]; then run_tests tests-kernels 560 -m "not gpu" tests/gpu; fi
        if wanted tests-rest; then run_marked_tests; fi
    else
        say "pytest is not installed: the tests are skipped"
    fi
fi

data="$out/data" images="$out/data/images"
seekable="$data/seekable" keep="$data/keep"
# 20,000 images at least, by links to fewer: of few images an epoch would be over before a loader is under way. The class
# folders then lie in folders, one a copy, which are the classes.
link_images() {
    local folders=("$@") folder copies count number
    count="$(find -L "${folders[@]}" -type f | wc -l)"
    [ "$count" -gt 0 ] || return 1
    rm -rf "$images.part" && mkdir -p "$images.part" || return 1
    copies=$(((19999 + count) / count))
    for folder in "${folders[@]}"; do
        for ((number = 0; number < copies; number++)); do
            cp -as "$folder" "$images.part/$(basename "$folder")-$number" || return 1
        done
    done
    mv "$images.part" "$images"
}
make_images() {
    local made="$data/made" number pids=()
    rm -rf "$made"
    mkdir -p "$made"
    for number in {0..7}; do
        "$python" bench/make_images.py "$made/$number" --count 250 --seed "$number" &
        pids+=($!)
    done
    # Where the caller looks at the status, nothing in here ends by itself when it fails.
    for number in "${pids[@]}"; do wait "$number" || return 1; done
    link_images "$made"/*
}
prepare() {
    [ $gpu = yes ] || return 0
    mkdir -p "$data"
    if [ ! -d "$images" ]; then
        say "making images"
        if [ -n "$photos" ]; then set -- link_images "$photos"; else set -- make_images; fi
        if ! "$@" >"$out/make-images.log" 2>&1; then
            failed=1
            say "making images FAILED: see $out/make-images.log"
            return 0
        fi
    fi
    [ -e "$seekable/index.bin" ] || step shard-seekable 280 "$python" -m feeder shard "$images" --out "$seekable" -q
    [ -e "$keep/index.bin" ] ||
        step shard-keep 200 "$python" -m feeder shard "$images" --out "$keep" --encode keep --dali-index -q
}
needed=no
for part in data parity transfer feed-4 feed-8 feed-16 train ladder; do
    if wanted $part; then needed=yes; fi
done
[ $needed = no ] || prepare

# Pixels on the GPU beside Pillow's; the report is the JSON that it prints.
parity() {
    "$python" -m feeder parity "$seekable" --backend dali --device cuda --fidelity "$1" --images 100 --json \
        >"$out/parity-$1.json"
}
if wanted parity && [ $gpu = yes ]; then
    export -f parity
    export python seekable out
    for fidelity in fast exact; do
        step parity-$fidelity 150 bash -c "parity $fidelity"
    done
fi
seconds="${SECONDS_PER_RUN:-5}" repeats="${REPEATS:-3}"
bench() { # PART LIMIT_S ARGUMENTS...
    wanted "$1" || return 0
    rm -f "$out/gpu-$1.json"
    step "gpu-$1" "$2" "$python" -m "${@:3}" --json "$out/gpu-$1.json"
}
bench kernels 200 bench.gpu.kernels
bench transfer 120 bench.gpu.transfer --seekable "$seekable"
for workers in 4 8 16; do
    bench feed-$workers 560 bench.gpu.feed --images "$images" --seekable "$seekable" --keep "$keep" \
        --workers $workers --seconds "$seconds" --repeats "$repeats"
done
bench train 400 bench.gpu.train --seekable "$seekable" --repeats "$repeats"
if [ $gpu = yes ]; then
    # Larger batches than 1,024, of float32 from torch's workers, would take much of a machine's shared memory.
    bench ladder 560 bench.ladder --images "$images" --shards "$seekable" --seconds "$seconds" --repeats "$repeats" \
        --maximum 1024
    bench lessons 400 bench.transfer
fi

exit $failed
