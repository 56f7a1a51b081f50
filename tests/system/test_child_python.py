"""Processes that feeder starts, from a folder whose files have the names of modules that they import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet as parquet

from tests.support.images import encode, pixels
from tests.support.loader_data import write_shards
from tests.support.remote import Bucket

_SCRIPT = """
import contextlib, sys
import feeder, mine
from feeder import transforms as T

def main(folder, url):
    from feeder.errors import BackendError
    from feeder.loader.fast.service_directory import Directory
    from feeder.loader.service_options import Service
    from feeder.tools.bench.bench_run import Contestant
    from feeder.tools.cli import main
    from feeder.tools.doctor.gpu_waits import _need_gpu

    for path in (folder, url):  # by a server of workers, and by a fetcher
        dataset = feeder.ShardDataset(path, T.Compose([T.RandomResizedCrop(8), T.Lambda(mine.inverted)]))
        assert len(list(feeder.DataLoader(dataset, 4, num_workers=1))) == 2

    for data in (feeder.ShardDataset(folder, T.RandomResizedCrop(8)), range(8)):  # by multiprocessing
        for method in ("spawn", "forkserver"):
            options = {"collate_fn": mine.counted, "num_workers": 1, "multiprocessing_context": method}
            assert list(feeder.DataLoader(data, 4, **options)) == [4, 4]

    assert main(["shard", f"{folder}/list.parquet", "--out", f"{folder}/of-parquet", "-q"]) == 0

    directory = Directory(Service("name@127.0.0.1:1"))
    while "ray is missing" not in directory.problem:  # as a ray.py beside the script says
        directory.look()
    directory.close()

    with Contestant() as contestant:
        pass
    assert contestant._process.returncode == 0

    with contextlib.suppress(BackendError):
        _need_gpu()

if __name__ == "__main__":
    main(*sys.argv[1:])
"""
_MINE = """
def inverted(images):
    return 255 - images

def counted(samples):
    return len(samples)
"""


def test_no_process_runs_files_of_the_current_folder(bucket: Bucket, tmp_path: Path) -> None:
    """Those beside the script are found."""
    (tmp_path / "script").mkdir()
    (tmp_path / "script/train.py").write_text(_SCRIPT)
    (tmp_path / "script/mine.py").write_text(_MINE)
    (tmp_path / "script/ray.py").write_text("raise ModuleNotFoundError")
    (tmp_path / "here").mkdir()
    for name in [*sys.stdlib_module_names, "mine", "numpy", "obstore", "pyarrow", "torch"]:
        (tmp_path / f"here/{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})")
    folder = write_shards(tmp_path / "set", 8)
    bucket.upload(folder, "set")
    images = [encode(pixels(number)) for number in range(3)]
    parquet.write_table(pyarrow.table({"image": images, "label": [0, 1, 0]}), folder / "list.parquet")

    command = [sys.executable, tmp_path / "script/train.py", folder, f"{bucket.url}/set"]
    done = subprocess.run([*map(str, command)], cwd=tmp_path / "here", capture_output=True, text=True, check=False)
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
    assert done.returncode == 0, done.stderr
