#!/usr/bin/env bash
# Runs the tests and benchmarks that need a GPU, from a checkout, and writes what they find to a folder.
#   bench/gpu.sh OUTDIR [WHEELS] [--only PART,PART...]
#   bench/gpu.sh OUTDIR [WHEELS] --quick 1|2 [--dry-run]
#   WHEELS      a folder of wheels and of packed site-packages (.tar.xz), installed to OUTDIR/site over what the Python
#               has; feeder-data's may be among them
#   --only      only these parts, in the order of --help's list; results of others in OUTDIR stay
#   --quick     the most that five minutes show: 1 without DALI, 2 with it and what 1 left in OUTDIR; ends with results.tar
#   --dry-run   --quick on the CPU, by the kernels' emulator: shows that the steps run, and nothing of their speed
#   PYTHON      the Python to use; else .venv's, else python3 on the path
#   IMAGES      photos in class folders; else made      SECONDS_PER_RUN (5)  REPEATS (3)
# Downloads nothing. Without a GPU everything is skipped, and the summary says so. Results are saved as they come; after
# Ctrl-C or TERM the summary is made of those so far.
#
# Needs, beside an NVIDIA GPU and its driver:
#   in the Python  torch for CUDA, triton, NVIDIA DALI and Pillow; pytest for the tests, nvidia-ml-py for the GPU's
#                  utilisation: pip install '.[dali-cuda13,gpu,nvml]' pytest
#   for Triton     gcc and Python.h (python3-dev); else its kernels don't run, and feeder's rows fail
#   for sanitizer  compute-sanitizer, of the CUDA toolkit, on the path; else that part is skipped
#   for feeder     nothing where it is installed or the checkout is built; else cmake, ninja, nanobind and a C++20 compiler
# Or an image of the Dockerfile, which has all but pytest: see bench/README.md.
set -euo pipefail
parts=(tests tests-rest sanitizer data parity kernels cuda transfer feed-4 feed-8 feed-16 train ladder lessons)
# Seconds after which a part's steps are ended; their results so far are kept.
declare -A limit_s=(
    [tests]=560 [tests-rest]=560 [sanitizer]=560 [data]=480 [parity]=560 [kernels]=200 [cuda]=360 [transfer]=120 [feed-4]=560
    [feed-8]=560 [feed-16]=560 [train]=400 [ladder]=560 [lessons]=400
)
declare -A what=(
    [tests]="the kernels' tests, on the GPU" [tests-rest]="all other tests that need a GPU"
    [sanitizer]="memory errors and races in the fused kernels and the JPEG decoder"
    [data]="two shard sets, and photos to make them from" [parity]="pixels beside Pillow's, and views, masks, boxes and keypoints"
    [cuda]="feeder's own JPEG decoder: first whether it is right, then images/s beside plain DALI"
    [kernels]="the fused kernels beside a plain copy" [transfer]="copies to the GPU, and how much of them is hidden"
    [feed-4]="images/s with 4 workers beside plain DALI and torch" [feed-8]="with 8" [feed-16]="with 16"
    [train]="ResNet-50 beside one resident batch" [ladder]="from a naive loop to a busy GPU, step by step"
    [lessons]="when a GPU pays, what a copy and a wait cost"
)
# Parts that have goals, and then the others, by importance when time is short.
first=(data kernels transfer feed-4 train) later=(cuda parity tests-rest sanitizer feed-8 feed-16 tests ladder lessons)
usage() { sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
wrong() {
    usage >&2
    printf '%s\n' "PARTs: ${parts[*]}" "More: bench/gpu.sh --help" >&2
    exit 2
}
minutes() { # PART...: at most
    local part sum=0
    for part in "$@"; do sum=$((sum + limit_s[$part])); done
    echo $(((sum + 59) / 60))
}
joined() { local IFS=,; echo "$*"; }
help() {
    local part
    usage
    sed -n '14,22s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    echo
    echo "Parts, in the order in which they run, and how long at most, $(minutes "${parts[@]}") min in all:"
    for part in "${parts[@]}"; do printf '  %-11s %2d min  %s\n' "$part" "$(minutes "$part")" "${what[$part]}"; done
    echo "Building feeder and making photos come on top."
    echo "All but tests, tests-rest, sanitizer, kernels and lessons need data, made once."
    echo
    echo "With 30 minutes: --only $(joined "${first[@]}"), $(minutes "${first[@]}") min at most."
    echo "Then, each as far as time goes: ${later[*]}."
}
places=() only=() quick=
while [ $# -gt 0 ]; do
    case "$1" in
    --only)
        [ $# -ge 2 ] || wrong
        IFS=, read -ra only <<<"$2"
        shift
        ;;
    --quick)
        [[ "${2:-}" == [12] ]] || wrong
        quick="$2"
        shift
        ;;
    --dry-run) export GPU_DRY_RUN=1 ;;
    -h | --help)
        help
        exit 0
        ;;
    -*) wrong ;;
    *) places+=("$1") ;;
    esac
    shift
done
[ ${#places[@]} -ge 1 ] && [ ${#places[@]} -le 2 ] || wrong
[ -n "$quick" ] || [ -z "${GPU_DRY_RUN:-}" ] || wrong
for part in "${only[@]+"${only[@]}"}"; do
    [[ " ${parts[*]} " == *" $part "* ]] || wrong
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
if [ -n "$wheels" ]; then
    mkdir -p "$out/site"
    for file in "$wheels"/*.whl "$wheels"/*.tar.xz; do
        installed="$out/site/$(basename "$file").installed"
        [ -e "$file" ] && ! cmp -s <(ls -s "$file") "$installed" || continue
        case "$file" in
        *.whl) "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$out/site" "$file" ;;
        *) tar -xf "$file" -C "$out/site" ;;
        esac
        ls -s "$file" >"$installed"
    done
    # NVIDIA's packages share a folder, and those of this Python hide these, or these hide those, unless it says so.
    [ ! -d "$out/site/nvidia" ] ||
        echo '__path__ = __import__("pkgutil").extend_path(__path__, __name__)' >"$out/site/nvidia/__init__.py"
fi
[ ! -d "$out/site" ] || export PYTHONPATH="$out/site${PYTHONPATH:+:$PYTHONPATH}"
unset FEEDER_COMMIT
# A checkout that was copied without its history has no commit to name.
commit="$(git rev-parse HEAD 2>/dev/null || true)"
[ -z "$(git status --porcelain --untracked-files=no -- . ':!bench/results' 2>/dev/null)" ] || commit+="+changes"
say "commit ${commit:-unknown}"
# The benchmarks and tests come from the checkout; the native module from it too where it is built for this Python, else
# from where feeder is installed; else it is built now.
has_native() { (cd "$1" && "$python" -c 'import feeder._native') 2>/dev/null; }
if ! has_native .; then
    if has_native /; then
        installed="$(cd / && "$python" -c 'import feeder, os; print(os.path.dirname(feeder.__file__))')"
        # An installed feeder knows no commit; it is the checkout's if its files are.
        if diff -rq --exclude=__pycache__ --exclude='_native*' feeder "$installed" >"$out/differs.txt"; then
            rm -f "$out/differs.txt"
            export FEEDER_COMMIT="$commit"
        else
            say "measured is the feeder that is installed, which is not this checkout's: see $out/differs.txt"
        fi
        run_in="$out/run"
        rm -rf "$run_in" && mkdir -p "$run_in"
        # Tests read files of kernels, but take from the installed feeder what was built.
        tar -c --exclude=__pycache__ --exclude='*.so' --exclude='*.fatbin' bench tests examples kernels pyproject.toml |
            tar -x -C "$run_in"
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
if [ -n "${GPU_DRY_RUN:-}" ]; then
    gpu=yes
    say "a dry run, on the CPU"
elif "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    gpu=yes
    nvidia-smi >"$out/nvidia-smi.txt" 2>&1 || true
    "$python" -c 'import sys; from bench.gpu.common import triton_lacks; sys.exit(triton_lacks())' 2>"$out/triton.log" ||
        say "Triton's kernels don't run, so feeder's rows fail, and ladder and lessons mean little:" \
            "$(tail -n 1 "$out/triton.log")"
    [ -s "$out/triton.log" ] || rm -f "$out/triton.log"
    # In ladder the batches that 16 of torch's workers have ready take 20 GiB, in feed-16 5 GiB.
    shm_mib="$(df -Pm /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }' || true)"
    [ "${shm_mib:-0}" -ge 24000 ] ||
        say "/dev/shm has ${shm_mib:-0} MiB free, of which torch's workers may need 24,000:" \
            "mount -o remount,size=48g /dev/shm, or docker run --ipc=host"
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
    # In the background, as bash handles a signal only after a foreground command has ended.
    timeout --kill-after=10 "$limit_s" "$@" >"$out/$name.log" 2>&1 &
    if wait $!; then
        say "$name: $((SECONDS - began)) s"
    else
        failed=1
        say "$name FAILED after $((SECONDS - began)) s; the end of $out/$name.log:"
        tail -n 5 "$out/$name.log" | tee -a "$out/status.txt"
    fi
}

# What --quick takes in all, the start included.
quick_s=(0 280 250)
quick_step() { # NAME LIMIT_S COMMAND...: step, within what is left of the time
    local left=$((quick_s[quick] - SECONDS))
    if [ $left -lt 5 ]; then
        failed=1
        say "$1 NOT RUN: those before it took all the time"
        return
    fi
    "${quick_by:-step}" "$1" $((left < $2 ? left : $2)) "${@:3}"
}
run_tests() { # NAME LIMIT_S SELECTION...
    rm -f "$out/$1.xml" "$out/$1.json"
    step "$1" "$2" "$python" -m pytest -q -p no:cacheprovider -o addopts="-ra --strict-markers" \
        -o filterwarnings=default --junitxml="$out/$1.xml" "${@:3}"
    # Tests that took their process along, or all of its time, are not to be missing.
    [ -s "$out/$1.xml" ] ||
        echo "<testsuite tests='1' errors='1'><testcase classname='$1' name='all'><error/></testcase></testsuite>" \
            >"$out/$1.xml"
}
# Each file in a separate process, as a decoder's crash would lose the others' results; all in ten minutes.
run_marked_tests() {
    local file files left began=$SECONDS
    mapfile -t files < <(grep -rl 'mark\.gpu' tests --include='test_*.py' | sort)
    for file in "${files[@]}"; do
        left=$((limit_s[tests-rest] - SECONDS + began))
        if [ $left -lt 10 ]; then
            failed=1
            say "tests-$(basename "$file" .py) NOT RUN: those before it took all the time"
            continue
        fi
        run_tests "tests-$(basename "$file" .py)" $((left < 200 ? left : 200)) -m gpu "$file"
    done
}
quickly() { # by importance
    local data="$out/quick" photos="$photos" workers=16 seconds=3 plain=0.7 steps=60 batches=40 kind
    [ -z "${GPU_DRY_RUN:-}" ] || workers=1 seconds=0.1 plain=0.1 steps=1 batches=2
    if [ -z "$photos" ]; then
        photos="$data/images"
        [ -d "$photos" ] || quick_step make-images 60 "$python" bench/make_images.py "$photos" --count 250
    fi
    for kind in seekable $([ "$quick" = 1 ] && echo packed || echo keep); do
        [ -e "$data/$kind/index.bin" ] || quick_step "shard-$kind" 30 "$python" -m feeder shard "$photos" \
            --out "$data/$kind" -q $([ $kind = seekable ] || echo --encode $kind)
    done
    measured() { # STEP LIMIT_S SET...
        local what="$1" limit="$2"
        shift 2
        quick_step "gpu-quick-$what" "$limit" "$python" -m bench.gpu.quick "$what" --json "$out/gpu-quick-$what.json" \
            --workers $workers --seekable "$data/seekable" "$@"
    }
    train() { # NAME LIMIT_S BACKENDS
        quick_step "$1" "$2" "$python" -m bench.gpu.train --json "$out/$1.json" \
            --workers $workers --seekable "$data/seekable" --steps $steps --repeats 1 --backends "$3"
    }
    if [ "$quick" = 1 ]; then
        quick_by=run_tests quick_step tests-quick-cuda 60 -m gpu tests/gpu/test_cuda_decoder.py
        measured decoder 45 --packed "$data/packed" --batches $batches
        measured rates 130 --packed "$data/packed" --images "$photos" --seconds $seconds
        train gpu-quick-train 60 cuda,cpu
    else
        measured plain 90 --keep "$data/keep" --seconds $plain
        measured dali 120 --keep "$data/keep" --seconds $seconds
        quick_by=run_tests quick_step tests-quick-dali 45 -m gpu tests/scenarios/test_dali_backend.py \
            tests/decoders/test_dali_gpu.py -k "decoded_on_the_gpu or pixels_are_those or redone_on_the_cpu"
        train gpu-quick-train-dali 45 dali
    fi
}
if [ -n "$quick" ]; then
    quickly
    trap - EXIT
    (sum_up) || failed=1
    (cd "$out" && find . -maxdepth 1 -type f ! -name 'results.tar' -size -4096k -print0 | tar -cf results.tar --null -T -)
    exit $failed
fi
if wanted tests || wanted tests-rest; then
    if "$python" -c 'import pytest' 2>/dev/null; then
        # On a GPU the kernels' own tests run there, not in the interpreter.
        if wanted tests && [ $gpu = yes ]; then run_tests tests-kernels "${limit_s[tests]}" -m "not gpu" tests/gpu; fi
        if wanted tests-rest; then run_marked_tests; fi
    else
        say "pytest is not installed: the tests are skipped"
    fi
fi

# One allocation for each tensor, as what is beyond a tensor's end would else be in another one's memory.
sanitize() { # NAME TOOL TESTS FILE ...
    # shellcheck disable=SC2086
    step "$1-${2%% *}" $((limit_s[sanitizer] / 4)) env PYTORCH_NO_CUDA_MEMORY_CACHING=1 \
        compute-sanitizer --error-exitcode 9 --tool $2 "$python" -m pytest -q -p no:cacheprovider -o addopts= -k "$3" "${@:4}"
}
if wanted sanitizer && [ $gpu = yes ]; then
    if command -v compute-sanitizer >/dev/null; then
        for tool in "memcheck --report-api-errors no" racecheck; do
            sanitize sanitizer "$tool" triton tests/gpu/test_normalize.py tests/gpu/test_resize.py
            sanitize sanitizer-cuda "$tool" "all_kinds or damage" tests/gpu/test_cuda_decoder.py
        done
    else
        say "compute-sanitizer is not on the path: sanitizer is skipped"
    fi
fi

data="$out/data" images="$out/data/images"
seekable="$data/seekable" keep="$data/keep" packed="$data/packed"
# 60,000 images at least, by links to fewer. Between epochs loaders drain and fill again, which takes a batch's time or
# two, and plain DALI's reader does not: of ImageNet that is nothing, of a few thousand images some percent. The class
# folders then lie in folders, one a copy, which are the classes.
link_images() {
    local folders=("$@") folder copies count number
    count="$(find -L "${folders[@]}" -type f | wc -l)"
    [ "$count" -gt 0 ] || return 1
    rm -rf "$images.part" && mkdir -p "$images.part" || return 1
    copies=$(((59999 + count) / count))
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
    # If the caller tests the status, set -e has no effect in here.
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
    [ -e "$seekable/index.bin" ] ||
        step shard-seekable $((limit_s[data] * 2 / 5)) "$python" -m feeder shard "$images" --out "$seekable" -q
    [ -e "$keep/index.bin" ] ||
        step shard-keep $((limit_s[data] / 5)) "$python" -m feeder shard "$images" --out "$keep" --encode keep -q
    ! wanted cuda || [ -e "$packed/index.bin" ] ||
        step shard-packed $((limit_s[data] * 2 / 5)) "$python" -m feeder shard "$images" --out "$packed" --encode packed -q
}
needed=no
for part in data parity cuda transfer feed-4 feed-8 feed-16 train ladder; do
    if wanted $part; then needed=yes; fi
done
[ $needed = no ] || prepare

# Pixels beside Pillow's, and views, masks, boxes and keypoints; the report is the JSON that it prints.
parity() { # SHARDS FIDELITY BACKEND DEVICE
    "$python" -m feeder parity "$1" --backend "$3" --device "$4" --fidelity "$2" --images 100 --json
}
parity_step() { # NAME SHARDS FIDELITY BACKEND DEVICE
    step "$1" $((limit_s[parity] / 9)) bash -c 'parity "$1" "$2" "$3" "$4" >"$5"' - "${@:2}" "$out/$1.json"
}
if wanted parity && [ $gpu = yes ]; then
    export -f parity
    export python
    for fidelity in fast exact; do
        for shards in "$seekable" "$keep"; do
            parity_step "parity-$(basename "$shards")-$fidelity" "$shards" $fidelity dali cuda
        done
    done
    for shards in "$seekable" "$packed"; do
        parity_step "parity-$(basename "$shards")-cuda" "$shards" fast cuda cuda
    done
    for backend in cpu dali pillow; do
        parity_step "parity-cpu-$backend" "$seekable" fast $backend cpu
    done
fi
seconds="${SECONDS_PER_RUN:-5}" repeats="${REPEATS:-3}"
bench() { # PART MODULE ARGUMENTS...
    wanted "$1" || return 0
    rm -f "$out/gpu-$1.json"
    step "gpu-$1" "${limit_s[$1]}" "$python" -m "${@:2}" --json "$out/gpu-$1.json"
}
bench kernels bench.gpu.kernels
# The kernels of kernels/cuda: their tests, those of pixels and damage under the sanitizer, and then their speed.
if wanted cuda && [ $gpu = yes ]; then
    if "$python" -c 'import pytest' 2>/dev/null; then
        run_tests tests-cuda $((limit_s[cuda] / 4)) -m gpu tests/gpu/test_cuda_decoder.py
    else
        say "pytest is not installed: the tests are skipped"
    fi
fi
if wanted cuda; then
    rm -f "$out/gpu-cuda.json"
    step gpu-cuda $((limit_s[cuda] * 3 / 4)) "$python" -m bench.gpu.cuda --json "$out/gpu-cuda.json" --seekable "$seekable" \
        --packed "$packed" --keep "$keep" --workers 16 --seconds "$seconds" --repeats "$repeats"
fi
bench transfer bench.gpu.transfer --seekable "$seekable"
for workers in 4 8 16; do
    bench feed-$workers bench.gpu.feed --images "$images" --seekable "$seekable" --keep "$keep" \
        --workers $workers --seconds "$seconds" --repeats "$repeats"
done
bench train bench.gpu.train --seekable "$seekable" --repeats "$repeats"
if [ $gpu = yes ]; then
    # Larger batches than 1,024, of float32 from torch's workers, would take much of a machine's shared memory.
    bench ladder bench.ladder --images "$images" --shards "$seekable" --seconds "$seconds" --repeats "$repeats" \
        --right-batch-size 1024
    bench lessons bench.transfer
fi

exit $failed
