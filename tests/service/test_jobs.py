"""One job's poison sample or slow recipe beside another job, whose epochs go on and are exact."""

from __future__ import annotations

import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import feeder
from feeder import transforms as T
from tests.support import ROOT, held_parts, named_functions
from tests.support.batches import check_same, copied_epoch
from tests.support.held_parts import HeldParts, held
from tests.support.images import encode, pixels
from tests.support.processes import wait_until
from tests.support.service import ServiceServer
from tests.support.warm_python import WarmPython

CROP = T.RandomResizedCrop(16)
POISON = """
import sys
import feeder
from feeder import transforms as T
from tests.support.named_functions import ended_by_white
recipe = T.Compose([T.Resize((16, 16)), T.Lambda(ended_by_white)])
dataset = feeder.ShardDataset(sys.argv[1], transform=recipe)
while True:
    try:
        list(feeder.DataLoader(dataset, batch_size=4, seed=0, service=feeder.Service(sys.argv[2], only=True)))
    except feeder.ServiceError as error:
        print(error, flush=True)
"""


def loader(root: Path, *ops: Any, **options: Any) -> Any:
    dataset = feeder.ShardDataset(root / "set", transform=T.Compose([CROP, *ops]))
    return feeder.DataLoader(dataset, batch_size=8, shuffle=True, seed=3, **options)


@pytest.fixture(scope="module")
def expected(root: Path) -> list[Any]:
    return copied_epoch(loader(root, num_workers=1))


def test_a_poison_sample_costs_its_own_job_alone(root: Path, tmp_path: Path, expected: list[Any]) -> None:
    images = [pixels(k) for k in range(8)]
    images[5] = Image.new("RGB", (24, 16), "white")
    samples = [{"__key__": str(k), "jpg": encode(image), "cls": 0} for k, image in enumerate(images)]
    feeder.write_shards(samples, str(tmp_path / "poison"))
    server = ServiceServer(tmp_path, tmp_path, "--root", str(root), "--allow-module", named_functions.__name__)
    with closing(server):
        arguments = ["-c", POISON, tmp_path / "poison", server.service]
        with WarmPython(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as other:
            wait_until(lambda: server.status()["lost"])
            one = loader(root, service=feeder.Service(server.service, only=True))
            lost = server.status()["lost"]
            while server.status()["lost"] < lost + 2:
                one.set_epoch(0)
                check_same(copied_epoch(one), expected)
            assert other.stdout is not None
            assert "can't make a part: the process that made it has died" in other.stdout.readline()
            other.kill()
        one.close()


def test_a_slow_recipe_does_not_starve_another_job(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[Any]
) -> None:
    hold = HeldParts(tmp_path / "held")
    allowed = ("--allow-module", held_parts.__name__, "--job-cpus", "1")
    with closing(ServiceServer(tmp_path, root, *allowed, cores=2, environment=hold.environment)) as server:
        options = {"service": feeder.Service(server.service, only=True)}
        one = loader(root, **options)
        monkeypatch.setenv("MASTER_ADDR", "another.host")
        monkeypatch.setenv("MASTER_PORT", "1")
        slow = loader(root, T.Lambda(held), **options)
        hold.hold()
        held_batches = iter(slow)
        hold.wait(1)
        check_same(copied_epoch(one), expected)
        jobs = server.status()["jobs"]
        assert jobs["-:another.host:1"]["parts"] == 0
        assert jobs["-:another.host:1"]["busy"] > 0
        hold.release()
        made = [tuple(each.clone() for each in batch) for batch in held_batches]
        check_same(made, copied_epoch(loader(root, T.Lambda(held), num_workers=1)))
        for each in (one, slow):
            each.close()
    hold.close()
