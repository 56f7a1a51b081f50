"""Runs bench/switch_scripts as they are and with their edits: ``... with_torchvision switched_scripts.py FOLDER``.

FOLDER/results.json has, for each script and variant, the counts of labels and the loader's path.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.switch_rival import AS_IT_IS, EDITS, SHARDS, load
from bench.switch_scripts.training import parse, train
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from tests.support.images import encode, pixels

SCRIPTS = tuple(script for script in EDITS if script != "timm_train")  # timm is no package of the tests
_CLASSES = 4
_SAMPLES = 16


def main(folder: Path) -> None:
    files, shards = folder / "files", folder / "shards"
    for number in range(_SAMPLES):
        path = files / f"class{number % _CLASSES}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(pixels(number, 90, 70)))
    shard(str(files), str(shards), ShardOptions(encode=EncodeOptions("seekable")))

    results = {}
    for script in SCRIPTS:
        for variant in (AS_IT_IS, *EDITS[script]):
            data = shards if variant == SHARDS else files
            args = parse(None, [str(data), "--size", "56", "--batch-size", "4", "--workers", "0"])
            loader = load(script, variant, folder).make_loader(args)
            seen = train(args, loader)
            results[f"{script}, {variant}"] = {
                "labels": sorted(seen.items()),
                "path": getattr(loader, "path", None),
            }
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
