#!/usr/bin/env bash
# Shards a folder of images, loads an epoch with augmentation, and compares with torch's DataLoader.
# Usage: [IMAGES=dir] [VENV=.venv] scripts/demo.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH="$(cd "${VENV:-.venv}" && pwd)/bin:$PATH"

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] || say() { printf '\n%s\n' "$*"; }

if [ -n "${IMAGES:-}" ]; then
    images="$IMAGES"
    # Two folders of the same name must not share an output.
    shards="demo/$(basename "$(realpath -- "$images")")-$(realpath -- "$images" | sha256sum | cut -c 1-8)-shards"
else
    images=demo/images
    shards=demo/images-shards
    [ -d "$images" ] || { say "Making images"; python bench/make_images.py "$images"; }
fi
mkdir -p demo

say "Writing shards: feeder shard $images --out $shards"
feeder shard "$images" --out "$shards"

say "Loading an epoch: python examples/load_epoch.py $shards"
python examples/load_epoch.py "$shards"

# The plain loader reads single files in class folders; of anything else it reads the shards, as feeder does.
kind="$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["source"]["kind"])' "$shards/manifest.json")"
cores="$(python -c 'from feeder.system.cores import cores; print(cores().usable)')"
bench=(feeder bench "$shards" --workers "$cores" --seconds 2 --repeats 3)
[ "$kind" != "class folders" ] || bench+=(--folder "$images")
say "Measuring: ${bench[*]}"
"${bench[@]}"
