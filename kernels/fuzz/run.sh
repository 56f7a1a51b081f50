#!/bin/sh
# A bounded fuzz run under AddressSanitizer and UndefinedBehaviorSanitizer.
#
#   kernels/fuzz/run.sh SECONDS [TARGET...]
#
# gives every target (all of them, unless named) its share of SECONDS and ends non-zero at the first finding. CXX and CC
# choose the clang; PYTHON an interpreter with Pillow and numpy, for the starting corpus; FUZZ_DIR where everything goes.
set -eu
seconds=${1:?usage: kernels/fuzz/run.sh SECONDS [TARGET...]}
shift
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
dir=${FUZZ_DIR:-$root/build/fuzz}
find_tool() {
    for name in "$@"; do
        command -v "$name" && return 0
    done
    echo "none of: $*; install clang, or set CC and CXX" >&2
    return 1
}
CC=${CC:-$(find_tool clang clang-19 clang-18 clang-17 clang-16 clang-15 clang-14)}
CXX=${CXX:-$(find_tool clang++ clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14)}
[ $# -gt 0 ] || set -- augment baseline cuda decode packed part png transcode

cmake -S "$root" -B "$dir/build" -DCMAKE_C_COMPILER="$CC" -DCMAKE_CXX_COMPILER="$CXX" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DFEEDER_PYTHON=OFF -DFEEDER_FUZZ=ON -DFEEDER_SANITIZE=ON >/dev/null
cmake --build "$dir/build" -j 2 >/dev/null
share=$((seconds / $#))
[ "$share" -gt 0 ] || share=1
for target in "$@"; do
    mkdir -p "$dir/corpus_$target" "$dir/findings"
    [ -n "$(ls -A "$dir/corpus_$target")" ] || "${PYTHON:-python3}" "$here/make_corpus.py" "$dir/corpus_$target"
    if [ "$target" = cuda ]; then
        # The tests' fixtures and all that was found before, which are longer than what fuzzing makes.
        rm -rf "$dir/fixtures"
        (cd "$root" && "${PYTHON:-python3}" -m tests.support.jpeg_corpus "$dir/fixtures")
        echo "fuzz_$target: $(ls "$dir/fixtures" | wc -l) fixtures"
        "$dir/build/kernels/fuzz/fuzz_$target" -runs=0 -max_len=1000000 -timeout=60 -rss_limit_mb=2048 \
            -artifact_prefix="$dir/findings/$target-" -verbosity=0 "$dir/fixtures" "$dir/corpus_$target"
    fi
    echo "fuzz_$target: $share s"
    # One process, bounded in time and memory; an input that takes a minute, of which a busy machine may take seconds
    # away, is a finding too.
    "$dir/build/kernels/fuzz/fuzz_$target" -max_total_time="$share" -max_len=2048 -timeout=60 -rss_limit_mb=2048 \
        -artifact_prefix="$dir/findings/$target-" -print_final_stats=1 -verbosity=0 "$dir/corpus_$target"
done
