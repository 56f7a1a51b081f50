"""Measures the time of `feeder shard` beside `tar`, and its memory for a million samples.

Speed: unchanged bytes, warm cache, at least 2 GB of JPEGs, in turn with `tar -cf` on the same files and fsync of its
result. Equal: the files, the file system, and that everything is on disk at the end. feeder also checks each image,
shuffles, and writes checksums and an index.
Memory: a manifest of a million rows (hard links to a few tiny JPEGs, a label, one more column), sharded in a separate
process, against the same with a thousand rows; bytes per sample, without the paths themselves.

    python -m bench.shard --images IMAGES [--gigabytes 2] [--rows 1000000] [--repeats 5] [--scratch DIR] [--json OUT]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.smoke import arguments
from feeder.tools.bench.result_file import interleave, save, spread
from feeder.tools.terminal import table

_MEMORY_CHILD = """
import json, resource, sys
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
summary = shard(sys.argv[1], sys.argv[2], ShardOptions(samples_per_shard=10_000))
print(json.dumps({"samples": summary.samples, "peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))
"""


def replicate(images: Path, folder: Path, size_bytes: int) -> tuple[int, int]:
    """Copies a folder of images as often as it takes to reach a size; returns files and bytes."""
    files = sorted(path for path in images.rglob("*") if path.is_file())
    total = count = 0
    copy = 0
    while total < size_bytes:
        for path in files:
            target = folder / f"copy-{copy:04d}" / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            total += path.stat().st_size
            count += 1
        copy += 1
    return count, total


def timed_tar(source: Path, target: Path) -> float:
    target.unlink(missing_ok=True)
    os.sync()
    start = time.perf_counter()
    subprocess.run(["tar", "-cf", str(target), "-C", str(source), "."], check=True)
    with target.open("rb") as file:
        os.fsync(file.fileno())
    return time.perf_counter() - start


def timed_shard(source: Path, target: Path) -> float:
    shutil.rmtree(target, ignore_errors=True)
    os.sync()
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "feeder", "shard", str(source), "--out", str(target), "--encode", "keep", "-q"],
        check=True,
    )
    return time.perf_counter() - start


def peak_memory(scratch: Path, rows: int) -> dict[str, int]:
    """Returns the peak memory of sharding a manifest with that many rows."""
    from tests.support.images import encode, pixels

    folder = scratch / f"rows-{rows}"
    folder.mkdir()
    links = 0
    path_bytes = 0
    with (folder / "list.csv").open("w") as manifest:
        manifest.write("path,label,note\n")
        for row in range(rows):
            if row % 50_000 == 0:  # a file has at most 65,000 hard links on ext4
                original = folder / f"original-{row}.jpg"
                original.write_bytes(encode(pixels(row, 8, 8), quality=50))
            name = f"images/{row // 1000:06d}/sample-number-{row:09d}.jpg"
            if row % 1000 == 0:
                (folder / "images" / f"{row // 1000:06d}").mkdir(parents=True)
            os.link(original, folder / name)
            links += 1
            path_bytes += len(name)
            manifest.write(f"{name},{row % 1000},n{row}\n")
    command = [sys.executable, "-c", _MEMORY_CHILD, str(folder / "list.csv"), str(scratch / f"out-{rows}")]
    child = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "."})
    found = json.loads(child.stdout)
    assert found["samples"] == rows, found
    shutil.rmtree(folder)
    shutil.rmtree(scratch / f"out-{rows}")
    return {"rows": rows, "peak_kib": found["peak_kib"], "path_bytes": path_bytes}


def main() -> None:
    options = arguments(
        __doc__, "shard", smoke={"gigabytes": 0.002, "rows": 1500, "repeats": 1},
        images=None, gigabytes=2.0, rows=1_000_000, repeats=5, scratch="",
    )  # fmt: skip
    images = Path(options.images).resolve()
    with tempfile.TemporaryDirectory(dir=options.scratch or None) as name:
        scratch = Path(name)
        source = scratch / "images"
        files, size_bytes = replicate(images, source, int(options.gigabytes * 1e9))
        print(f"{files:,} files, {size_bytes / 1e9:.2f} GB")
        rivals = {
            "tar -cf + fsync": lambda: timed_tar(source, scratch / "out.tar"),
            "feeder shard": lambda: timed_shard(source, scratch / "shards"),
        }
        interleave(rivals, 1)  # warms the cache; not counted
        seconds = interleave(rivals, options.repeats)
        shutil.rmtree(source)
        shutil.rmtree(scratch / "shards")
        (scratch / "out.tar").unlink()
        small, large = peak_memory(scratch, 1000), peak_memory(scratch, options.rows)
    ratios = [ours / theirs for theirs, ours in zip(*seconds.values(), strict=True)]
    rows = large["rows"] - small["rows"]
    extra = (large["peak_kib"] - small["peak_kib"]) * 1024 - (large["path_bytes"] - small["path_bytes"])
    speed = {name: spread(values) for name, values in seconds.items()}
    memory = {"small": small, "large": large, "bytes_per_sample_beyond_paths": extra / rows}
    lines = [["", "median s", "min", "max", "MB/s"]]
    for rival, found in speed.items():
        cells = [f"{found[k]:.2f}" for k in ("median", "min", "max")]
        lines.append([rival, *cells, f"{size_bytes / 1e6 / found['median']:.0f}"])
    print(table(lines))
    print(f"feeder / tar: {spread(ratios)['median']:.2f} ({min(ratios):.2f}-{max(ratios):.2f})")
    print(f"memory beyond the paths: {extra / rows:.0f} bytes per sample ({large['rows']:,} rows)")
    results = {"files": files, "bytes": size_bytes, "seconds": speed, "ratio": spread(ratios), "memory": memory}
    print(f"written to {save('shard', results, options.json)}")


if __name__ == "__main__":
    main()
