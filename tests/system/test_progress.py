"""Bars of progress: widgets in a notebook, which go with the cell that was interrupted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from feeder.dataset.shards import ShardDataset
from feeder.shard.write.index_tars import index_tars
from feeder.shard.write.set_takedown import takedown
from feeder.shard.write.sharding import shard
from feeder.system.progress import Progress
from feeder.tools.exported_images import export
from feeder.tools.parity.comparison import parity
from feeder.tools.verify import verify
from tests.support.images import encode, make_tree, pixels
from tests.support.shard_sets import kept, write_tar
from tests.support.warm_python import run_warm

# IPython's own shell with the attribute by which a kernel's is known, and the messages that its front end would get.
NOTEBOOK = """
import json, sys
import comm
from IPython.core.interactiveshell import InteractiveShell

boxes = {}

class Comm(comm.base_comm.BaseComm):
    def publish_msg(self, kind, data=None, **options):
        if kind == "comm_open" and data["state"].get("_model_name") == "HBoxModel":
            boxes[self.comm_id] = "shown"
        if kind == "comm_close" and self.comm_id in boxes:
            boxes[self.comm_id] = "closed"

comm.create_comm = Comm
shell = InteractiveShell.instance()
shell.history_manager.enabled = False
shell.kernel = None
outcomes = []
for cell in json.load(sys.stdin):
    done = shell.run_cell(cell)
    outcomes.append([type(done.error_in_exec).__name__, list(boxes.values())])
    boxes.clear()
print(json.dumps(outcomes))
"""

SHARD = """
from feeder import write_shards
from feeder.system.progress import BarProgress
write_shards([{"jpg": image} for image in images], "whole", workers=1, progress=True)
"""
INTERRUPTED = """
def advance(self, samples, size_bytes):
    raise KeyboardInterrupt
BarProgress.advance = advance
write_shards([{"jpg": image} for image in images], "part", workers=1, progress=True)
"""


def test_a_notebook_s_widget_goes_with_the_run_that_is_interrupted(tmp_path: Path) -> None:
    images = f"images = {[encode(pixels(seed)) for seed in range(3)]!r}"
    cells = [images, SHARD, INTERRUPTED]
    done = run_warm(
        ["-c", NOTEBOOK],
        input=json.dumps(cells),
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [
        ["NoneType", []],
        ["NoneType", ["closed"]],  # the result says it all
        ["KeyboardInterrupt", ["closed"]],
    ]


class Interrupted(Progress):
    """Is interrupted at the first sample."""

    is_shown = was_shown = False

    def begin(self, samples: int, size_bytes: int, done_samples: int, done_bytes: int) -> None:
        self.is_shown = self.was_shown = True

    def advance(self, samples: int, size_bytes: int) -> None:
        raise KeyboardInterrupt

    def end(self) -> None:
        self.is_shown = False


@pytest.fixture
def folder(tmp_path: Path) -> str:
    make_tree(tmp_path / "images", 1, 3)
    shard(str(tmp_path / "images"), str(tmp_path / "set"), kept())
    return str(tmp_path / "set")


@pytest.mark.parametrize("call", ["shard", "index_tars", "takedown", "export", "verify", "parity"])
def test_a_run_that_is_interrupted_ends_its_progress(folder: str, tmp_path: Path, call: str) -> None:
    progress, images = Interrupted(), str(tmp_path / "images")
    if call == "index_tars":
        write_tar(tmp_path / "a.tar", [("a.jpg", encode(pixels(0)))])
    calls = {
        "shard": lambda: shard(images, str(tmp_path / "again"), kept(workers=1), progress=progress),
        "index_tars": lambda: index_tars(str(tmp_path / "a.tar"), progress=progress),
        "takedown": lambda: takedown(folder, [ShardDataset(folder).column("key")[0]], progress=progress),
        "export": lambda: export(folder, str(tmp_path / "out"), progress=progress),
        "verify": lambda: verify(folder, progress=progress),
        "parity": lambda: parity(images, backend="pillow", progress=progress),
    }
    with pytest.raises(KeyboardInterrupt):
        calls[call]()
    assert progress.was_shown
    assert not progress.is_shown
