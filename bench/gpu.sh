#!/usr/bin/env bash
# Runs the tests and benchmarks that need a GPU, from a checkout, and writes what they find to a folder.
#   bench/gpu.sh OUTDIR [WHEELS] [--only PART,PART...]
#   WHEELS      a folder of wheels, installed to OUTDIR/site over what the Python has; feeder-data's may be among them
#   --only      these parts alone, each under ten minutes; results of others in OUTDIR stay. In order:
#               tests data parity kernels transfer feed-4 feed-8 feed-16 train ladder lessons
#   PYTHON      the Python to use; else .venv's, else python3 on the path
#   IMAGES      photos in class folders; else made      SECONDS_PER_RUN (5)  REPEATS (3)
# Fetches nothing from a network. Without a GPU everything is skipped, and the summary says so.
set -euo pipefail
parts=(tests data parity kernels transfer feed-4 feed-8 feed-16 train ladder lessons)
usage() {
    sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
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
cd "$(dirname "${BASH_SOURCE[0]}")/.."
say() { printf 'gpu.sh: %s\n' "$*" | tee -a "$out/status.txt"; }
[ ${#only[@]} -gt 0 ] || rm -f "$out/status.txt"
rm -f "$out/summary.txt"

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

if ! "$python" -c 'import feeder, torch; feeder.DataLoader' 2>"$out/import.log"; then
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
# Each step has its time and its log; one that fails does not keep the others from running.
step() {
    local name="$1" limit_s="$2" began=$SECONDS
    shift 2
    say "$name"
    if timeout --kill-after=10 "$limit_s" "$@" >"$out/$name.log" 2>&1; then
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
if wanted tests; then
    if "$python" -c 'import pytest' 2>/dev/null; then
        # On a GPU the kernels' own tests run there, not in the interpreter.
        [ $gpu = no ] || run_tests tests-kernels 280 tests/gpu
        mapfile -t marked < <(grep -rl 'mark\.gpu' tests --include='test_*.py' | grep -v '^tests/gpu/' | sort)
        # Each file in a process of its own, as a decoder's crash would take the others' results along.
        for file in "${marked[@]}" $([ $gpu = yes ] || echo tests/gpu); do
            run_tests "tests-$(basename "$file" .py)" 150 -m gpu "$file"
        done
    else
        say "pytest is not installed: the tests are skipped"
    fi
fi

data="$out/data" images="${IMAGES:-$out/data/images}"
seekable="$data/seekable" keep="$data/keep"
# 2,000 images, made side by side, each ten times over by hard links: so few batches as they give would be over before
# a loader is under way.
make_images() {
    local made="$data/made" number pids=()
    rm -rf "$made" "$images.part"
    mkdir -p "$made" "$images.part"
    for number in {0..7}; do
        "$python" bench/make_images.py "$made/$number" --count 250 --seed "$number" &
        pids+=($!)
    done
    for number in "${pids[@]}"; do wait "$number"; done
    local class copy
    for class in "$made"/*/*; do
        for copy in {0..9}; do
            cp -al "$class" "$images.part/$(basename "$(dirname "$class")")-$(basename "$class")-$copy"
        done
    done
    mv "$images.part" "$images"
}
prepare() {
    [ $gpu = yes ] || return 0
    mkdir -p "$data"
    if [ -z "${IMAGES:-}" ] && [ ! -d "$images" ]; then
        say "making images"
        make_images >"$out/make-images.log" 2>&1 || { failed=1 && say "making images FAILED: see make-images.log"; }
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
    bench feed-$workers 500 bench.gpu.feed --images "$images" --seekable "$seekable" --keep "$keep" \
        --workers $workers --seconds "$seconds" --repeats "$repeats"
done
bench train 400 bench.gpu.train --seekable "$seekable" --repeats "$repeats"
if [ $gpu = yes ]; then
    bench ladder 560 bench.ladder --images "$images" --shards "$seekable" --seconds "$seconds" --repeats "$repeats"
    bench lessons 400 bench.transfer
fi

say "summary in $out/summary.txt"
"$python" -m bench.gpu.summary "$out" || failed=1
exit $failed
