#!/usr/bin/env bash
# Prints the folder of nvcc 13.0, for PATH: of the one that is there, else of NVIDIA's packages for pip, installed to
# build/nvcc. What 13.0 makes runs with every driver from 580 on; PTX of a later one needs a later driver.
# Usage: [PYTHON=python3] scripts/nvcc.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

found="$(command -v nvcc || true)"
if [ -n "$found" ] && "$found" --version | grep -q 'release 13\.0,'; then
    dirname "$found"
    exit
fi
folder="$PWD/build/nvcc"
if [ ! -d "$folder" ]; then
    rm -rf "$folder.new"
    "${PYTHON:-python3}" -m pip install -q --disable-pip-version-check --no-deps --target "$folder.new" \
        nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 >&2
    mv "$folder.new" "$folder"
fi
echo "$folder/nvidia/cu13/bin"
