"""Batches of an input service are those of local workers."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

import feeder
from feeder import transforms as T
from feeder.system.process_usage import process_tree
from tests.support.batches import check_same, copied_epoch
from tests.support.loader_data import write_tree
from tests.support.processes import wait_until
from tests.support.service import ServiceServer

CROP = [T.RandomResizedCrop(16), T.RandomHorizontalFlip()]
FLOAT = [T.ToDtype(torch.float32, scale=True), T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))]
COUNTS = ("batches", "samples", "parts", "encoded_bytes", "clipped", "slow", "skipped", "substitutions", "padded")


def loader(dataset: Any, **options: Any) -> Any:
    return feeder.DataLoader(dataset, batch_size=24, shuffle=True, seed=5, **options)


def check_equal(dataset: Any, server: ServiceServer, **options: Any) -> None:
    """Fails unless two epochs by the service alone, and their counts, are those of a local worker."""
    local = loader(dataset, num_workers=1, **options)
    only = loader(dataset, num_workers=1, service=feeder.Service(server.service, only=True), **options)
    before = server.parts()
    for _ in range(2):
        check_same(copied_epoch(only), copied_epoch(local))
        assert only.state_dict() == local.state_dict()
    # A server counts the answers that it sends. If it was silent for a second, as on a busy machine, the relay ended
    # the connection of an answer, and asks for the part again. A loader counts a part once, as it takes the answer.
    assert server.parts() - before >= local.stats()["parts"] > 0
    assert {name: only.stats()[name] for name in COUNTS} == {name: local.stats()[name] for name in COUNTS}
    for one in (local, only):
        one.close()


@pytest.mark.parametrize(
    "ops",
    [
        CROP,
        CROP + FLOAT,
        [*CROP, T.ColorJitter(0.3, 0.3), *FLOAT],
        [T.Resize((16, 16)), T.ToDtype(torch.bfloat16, scale=True)],
    ],
)
@pytest.mark.parametrize("name", ["set", "packed"])
def test_recipes(root: Path, server: ServiceServer, ops: list[Any], name: str) -> None:
    check_equal(feeder.ShardDataset(root / name, transform=T.Compose(ops)), server)


@pytest.mark.parametrize("backend", ["cpu", "pillow"])
def test_on_a_device_the_rest_of_the_recipe_is_done_there(root: Path, server: ServiceServer, backend: str) -> None:
    dataset = feeder.ShardDataset(root / "set", transform=T.Compose([*CROP, *FLOAT]))
    check_equal(dataset, server, device="cpu", backend=backend)


def test_views_and_fields(root: Path, server: ServiceServer) -> None:
    views = T.Views([T.Compose([T.RandomResizedCrop(16), *FLOAT]), T.Compose([T.RandomResizedCrop(8)])])
    dataset = feeder.ShardDataset(
        root / "set", transform=views, fields=["key", "json", "index", "original_size", "cls"]
    )
    local, only = loader(dataset, num_workers=1), loader(dataset, service=feeder.Service(server.service, only=True))
    for batch, other in zip(copied_epoch(only), copied_epoch(local), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(batch[0], other[0], strict=True))
        check_same([batch[1:]], [other[1:]])


def test_torch_is_loaded_by_the_trainer_alone(root: Path, tmp_path: Path) -> None:
    """It takes a process 2 s of CPU and 200 MB."""
    mixture = feeder.Mixture({name: feeder.ShardDataset(root / name, T.Compose(CROP)) for name in ("set", "packed")})
    dataset = feeder.ShardDataset(root / "set", T.Compose([*CROP, T.ColorJitter(0.3), *FLOAT]))
    with contextlib.closing(ServiceServer(tmp_path, root, is_warm=False)) as server:
        for each, only in itertools.product((dataset, mixture), (False, True)):
            one = loader(each, num_workers=1, service=feeder.Service(server.service, only=only))
            parts = server.parts()
            while server.parts() == parts:  # local workers may have made all of an epoch
                copied_epoch(one)
            wait_until(lambda: len(process_tree(server.process.pid)) >= 3)  # one makes parts, and is forked by another
            for pid in (*one.worker_pids(), *process_tree(server.process.pid)):
                with contextlib.suppress(FileNotFoundError):  # it has just been replaced
                    assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
            one.close()


def test_labels_of_the_datasets_own(root: Path, server: ServiceServer) -> None:
    check_equal(
        feeder.ShardDataset(root / "bad", transform=T.Compose(CROP), target_transform=lambda label: label / 3),
        server,
        on_error="skip",
    )


def test_bad_samples_are_substituted_alike(root: Path, server: ServiceServer) -> None:
    check_equal(feeder.ShardDataset(root / "bad", transform=T.Compose(CROP), fields=["key"]), server, on_error="skip")


def test_a_bad_sample_is_named_alike(root: Path, server: ServiceServer) -> None:
    dataset = feeder.ShardDataset(root / "bad", transform=T.Compose(CROP))
    errors = []
    for options in ({"num_workers": 1}, {"service": feeder.Service(server.service, only=True)}):
        with pytest.raises(feeder.DecodeError) as caught:
            list(loader(dataset, **options))
        errors.append((str(caught.value), caught.value.key, caught.value.shard, caught.value.offset_bytes))
    assert errors[0] == errors[1]


def test_subsets_and_several_sets(root: Path, server: ServiceServer) -> None:
    both = feeder.ShardDataset([root / "set", root / "set"], transform=T.Compose(CROP), fields=["index"])
    check_equal(torch.utils.data.Subset(both, range(120, 3, -3)), server)


def test_folders(root: Path, server: ServiceServer) -> None:
    write_tree(root / "tree", 40)
    check_equal(feeder.FolderDataset(root / "tree", transform=T.Compose(CROP), fields=["key"]), server)


def test_a_run_is_resumed_with_and_without_the_service(root: Path, server: ServiceServer) -> None:
    dataset = feeder.ShardDataset(root / "set", transform=T.Compose(CROP))
    expected = copied_epoch(loader(dataset, num_workers=1))
    states = {}
    for name, options in (
        ("local", {"num_workers": 1}),
        ("service", {"service": feeder.Service(server.service, only=True)}),
    ):
        one = loader(dataset, **options)
        iterator = iter(one)
        check_same([next(iterator)], expected[:1])
        states[name] = one.state_dict()
        del iterator
        one.close()
    assert states["local"] == states["service"]
    for options in ({"num_workers": 1}, {"service": feeder.Service(server.service, only=True)}):
        one = loader(dataset, **options)
        one.load_state_dict(states["service"])
        check_same(copied_epoch(one), expected[1:])


def test_a_batch_is_made_again_without_the_service(root: Path, server: ServiceServer) -> None:
    dataset = feeder.ShardDataset(root / "set", transform=T.Compose(CROP + FLOAT))
    one = loader(dataset, service=feeder.Service(server.service, only=True))
    batches = copied_epoch(one)
    parts = server.parts()
    check_same([one.replay(0, 1).batch], batches[1:2])
    assert server.parts() == parts


@pytest.mark.parametrize("workers", [0, 2])
def test_local_workers_go_on_beside_the_service(root: Path, server: ServiceServer, workers: int) -> None:
    dataset = feeder.ShardDataset(root / "set", transform=T.Compose(CROP))
    expected, one = loader(dataset, num_workers=1), loader(dataset, num_workers=workers, service=server.service)
    parts = server.parts()
    while server.parts() == parts:
        check_same(copied_epoch(one), copied_epoch(expected))
    check_same(copied_epoch(one), copied_epoch(expected))
    assert one.stats()["respawns"] == 0


def test_a_collate_fn_is_refused_by_name(root: Path) -> None:
    dataset = feeder.ShardDataset(root / "set", transform=T.Compose(CROP))
    with pytest.raises(feeder.ArgumentError, match="a collate_fn"):
        loader(dataset, service="train", collate_fn=list)


def test_functions_in_a_recipe_are_refused_by_name(root: Path) -> None:
    recipe = T.Compose([*CROP, T.Lambda(lambda image: image)])
    with pytest.raises(feeder.ArgumentError, match="Lambda"):
        loader(feeder.ShardDataset(root / "set", transform=recipe), service="train")


def test_other_datasets_are_refused() -> None:
    with pytest.raises(feeder.ArgumentError, match="service"):
        feeder.DataLoader(list(range(8)), service="train")
