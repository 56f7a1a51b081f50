"""Targets, fields of all kinds, batches of different sizes and named functions, by a service as by local workers."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feeder
from feeder import fields as F
from feeder import transforms as T
from feeder.dataset.subset_reader import SubsetReader
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.work_json import set_from_json, set_to_json, work_to_json
from feeder.service.roots import Roots
from tests.support import named_functions
from tests.support.batches import copied_epoch
from tests.support.field_sets import members_set, npy
from tests.support.image_pairs import write_pairs
from tests.support.loader_data import write_shards, write_tree
from tests.support.remote import Bucket
from tests.support.service import Peer, ServiceServer, refusal
from tests.support.target_data import TARGETS, write_target_shards

FLOAT = [T.ToDtype(torch.float32, scale=True), T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))]
CROP = T.Compose([T.RandomResizedCrop((16, 20)), T.RandomHorizontalFlip()])
IMAGES = [(24, 24), (20, 41), (44, 22), (30, 31), (18, 40), (25, 50), (33, 30)]
TWO = feeder.Buckets(sizes=[(16, 24), (24, 16)])
BUCKET = [T.Resize(T.BUCKET, cover=True), T.RandomCrop(T.BUCKET)]
INVERTED = T.Lambda(named_functions.inverted)
MODULE = "tests.support.named_functions"


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceServer]:
    made = ServiceServer(tmp_path_factory.mktemp("server"), root, "--allow-module", MODULE)
    yield made
    made.close()


def is_same(one: Any, other: Any) -> bool:
    """True if two entries of batches are the same: types, dtypes, shapes and bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        if one.is_nested:
            return is_same(list(one.unbind()), list(other.unbind()))
        return (one.dtype, one.shape) == (other.dtype, other.shape) and one.numpy().tobytes() == other.numpy().tobytes()
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)


def kept(entry: Any) -> Any:
    """An entry of a batch in memory of its own."""
    if isinstance(entry, (list, tuple)):
        return type(entry)(map(kept, entry))
    if isinstance(entry, dict):
        return {key: kept(value) for key, value in entry.items()}
    return entry.clone() if isinstance(entry, torch.Tensor) else entry


def epoch(one: Any) -> list[Any]:
    return [kept(batch) for batch in one]


def check_equal(dataset: Any, server: ServiceServer, **options: Any) -> None:
    """Fails unless two epochs by the service alone are those of a local worker."""
    made = [
        feeder.DataLoader(dataset, **{"batch_size": 7, "shuffle": True, "seed": 5, **how, **options})
        for how in ({"num_workers": 1}, {"service": feeder.Service(server.service, only=True)})
    ]
    before = server.parts()
    for _ in range(2):
        local, only = (epoch(one) for one in made)
        assert len(local) > 1
        assert all(map(is_same, only, local))
    assert server.parts() - before >= made[0].stats()["parts"] > 0
    for one in made:
        one.close()


@pytest.mark.parametrize(
    ("ops", "options"),
    [
        (CROP, {}),
        ([CROP, *FLOAT], {"device": "cpu"}),
        (T.Views([CROP, T.Compose([T.RandomResizedCrop(8), *FLOAT])]), {}),
        ([T.RandomIoUCrop(), T.Resize((12, 12)), T.SanitizeBoundingBoxes()], {}),
        (BUCKET, {"sizes": feeder.Buckets(sizes=[(16, 24), (240, 16)])}),  # slots are made for one that no batch has
        (T.RandomShortestSize([12, 18]), {"sizes": feeder.PadToBatch(8)}),
        (T.RandomResizedCrop(T.ByEpoch({0: 12, 1: 20})), {}),
    ],
)
def test_targets(root: Path, server: ServiceServer, ops: Any, options: dict[str, Any]) -> None:
    if not (root / "targets").exists():
        write_target_shards(root / "targets", 24, replaced={(5, "seg.png"): b"none", (7, "boxes.json"): b"{}"})
    recipe = ops if isinstance(ops, (T.Compose, T.Views)) else T.Compose(ops if isinstance(ops, list) else [ops])
    targets = {"boxes.json": TARGETS["boxes.json"]} if isinstance(ops, list) and len(ops) == 3 else TARGETS
    dataset = feeder.ShardDataset(root / "targets", recipe, fields=["key", "index"], targets=targets)
    check_equal(dataset, server, on_error="skip", **options)


@pytest.mark.parametrize(
    ("image", "ops", "options"),
    [
        (T.Image(), CROP, {}),
        (T.Image("own", T.Compose([T.RandomResizedCrop(9), *FLOAT])), CROP, {}),
        (T.Image(), T.Compose(BUCKET), {"sizes": TWO}),
        (T.Image(transform=T.RandomResizedCrop(T.ByEpoch({0: 8, 1: 12}))), CROP, {}),
    ],
)
def test_further_images(root: Path, server: ServiceServer, image: T.Image, ops: Any, options: dict[str, Any]) -> None:
    if not (root / "pairs").exists():
        write_pairs(root / "pairs", 16, right={3: b"none"})
    dataset = feeder.ShardDataset(root / "pairs", ops, fields=["key"], targets={"right.png": image})
    check_equal(dataset, server, on_error="skip", **options)


def test_fields_of_all_kinds(root: Path, server: ServiceServer) -> None:
    pytest.importorskip("tokenizers")
    from tests.support.tokenizer_files import word_tokenizer

    tokenizer = word_tokenizer(root / "tokenizer.json")
    draw = np.random.default_rng(0)
    samples = [
        {
            "txt": f"a photo of {i}\n a cat \n\n".encode(),
            "num": str(i).encode(),
            "box.npy": npy(draw.normal(size=(3, 2)).astype(np.float32)),
            "ids.npy": npy(np.arange(i % 4 + 1)),
            "meta.json": b'{"score": %d, "none": null, "bytes": "x"}' % i,
            **({"opt": b"1.5"} if i % 3 else {}),
        }
        for i in range(20)
    ]
    members_set(root / "members", samples)
    kinds: dict[str, Any] = {
        "txt": F.Text(),
        "num": F.Int(),
        "box.npy": F.Array((3, 2), "float64"),
        "ids.npy": F.Array(pad=-1),
        "meta.json": F.Json(),
        "opt": F.Float(optional=True),
        "key": None,
        "index": None,
        "original_size": None,
    }
    others: list[dict[str, Any]] = [
        kinds,
        {"txt": F.Lines(), "ids.npy": F.Array(nested=True), "opt": F.Float(optional=True, fill=math.nan)},
        {"txt": F.Choice(F.Lines()), "ids.npy": F.Array(), "meta.json": F.Json("score"), "opt": None},
        {"meta.json:score": F.Float(), "meta.json:bytes": F.Text(), "num": None, "meta.json": F.Json("score")},
        {"txt": F.Tokens(tokenizer, max_length=9, text=F.Choice(F.Lines()))},
        {"txt": F.Apply(named_functions.places_of), "opt": F.Bytes(optional=True, fill=b"\0\xff")},
    ]
    for each in others:
        check_equal(feeder.ShardDataset(root / "members", CROP, fields=each), server)


@pytest.mark.parametrize(
    "ids", [[], range(5, 60), [*range(30, 50), *range(10), 63], range(63, 0, -1), [3, 3, 3, 8], [*range(64)] * 200]
)
def test_subsets_travel_by_their_differences(root: Path, ids: Sequence[int]) -> None:
    dataset = feeder.ShardDataset(root / "set", CROP)
    sent = set_to_json(SubsetReader(dataset.reader, np.array(ids, np.int64)))
    assert len(sent["ids"]) < 100 + len(ids) // 8
    found = set_from_json(json.loads(json.dumps(sent)), Roots([str(root)]))
    assert isinstance(found, SubsetReader)
    assert found.ids.tolist() == list(ids)


@pytest.mark.parametrize("make", [write_shards, write_tree])
@pytest.mark.parametrize(
    ("ops", "options"),
    [
        ([T.RandomResizedCrop(T.BUCKET), *FLOAT], {"sizes": TWO}),
        ([T.RandomResizedCrop(T.BUCKET), *FLOAT], {"sizes": TWO, "device": "cpu"}),
        ([T.CenterCrop(T.BUCKET), T.ColorJitter(0.3)], {"sizes": TWO}),
        ([T.RandomShortestSize([12, 18]), *FLOAT], {"sizes": feeder.PadToBatch(8, value=0.5)}),
        ([T.Resize(12)], {"sizes": feeder.PadToBatch(4, group_by_aspect=True)}),
        ([T.RandomResizedCrop(T.ByEpoch({0: 8, 1: 12})), *FLOAT], {}),
    ],
)
def test_batches_of_different_sizes(
    root: Path, server: ServiceServer, make: Callable[..., Path], ops: list[Any], options: dict[str, Any]
) -> None:
    path = root / f"sizes-{make.__name__}"
    if not path.exists():
        make(path, 40, sizes=IMAGES, turned=(2, 5), bad=(3, 20))
    kind = feeder.ShardDataset if make is write_shards else feeder.FolderDataset
    check_equal(kind(path, T.Compose(ops), fields=["index"]), server, on_error="skip", **options)


def test_folders_with_targets(root: Path, server: ServiceServer) -> None:
    folder = root / "beside"
    write_tree(folder, 16)
    for i in range(16):
        shutil.copyfile(folder / "class" / f"{i:08d}.png", folder / "class" / f"{i:08d}.right.png")
    check_equal(feeder.FolderDataset(folder, CROP, fields=["key"], targets={"right.png": T.Image()}), server)


@pytest.mark.parametrize("ops", [[INVERTED], [T.RandomApply([INVERTED])]])
def test_functions_of_an_allowed_module(root: Path, server: ServiceServer, ops: list[Any]) -> None:
    check_equal(feeder.ShardDataset(root / "set", T.Compose([CROP, *ops])), server)


def test_functions_of_other_modules_are_refused_by_name(root: Path, tmp_path: Path) -> None:
    server = ServiceServer(tmp_path, root)
    recipe = T.Compose([CROP, INVERTED])
    dataset = feeder.ShardDataset(root / "set", recipe)
    one = feeder.DataLoader(dataset, batch_size=8, seed=0, service=feeder.Service(server.service, only=True), timeout=1)
    assert re.search(rf"'{MODULE}:inverted' is of .* feeder serve --allow-module {MODULE}", refusal(one))
    server.close()


def test_a_value_that_can_not_be_sent_is_named(root: Path, server: ServiceServer) -> None:
    dataset = feeder.ShardDataset(root / "set", CROP, fields={"json": named_functions.spread_out})
    one = feeder.DataLoader(dataset, batch_size=8, seed=0, service=feeder.Service(server.service, only=True))
    with pytest.raises(feeder.ServiceError, match=r"a field's value of set can't be sent"):
        list(one)
    local = feeder.DataLoader(dataset, batch_size=8, seed=0, service=server.service)
    assert all(
        is_same(*each) for each in zip(copied_epoch(local), copied_epoch(feeder.DataLoader(dataset, 8)), strict=True)
    )


@pytest.mark.parametrize("function", [lambda data: data, functools.partial(named_functions.places_of)])
def test_functions_without_a_name_are_refused_when_the_loader_is_made(root: Path, function: Any) -> None:
    dataset = feeder.ShardDataset(root / "set", CROP, fields={"json": function})
    with pytest.raises(feeder.ArgumentError, match=r"'json': (<lambda>|a partial is no function)"):
        feeder.DataLoader(dataset, batch_size=8, seed=0, service="train")


def test_a_set_in_a_store_is_read_with_the_servers_own_credentials(
    bucket: Bucket, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.upload(root / "set", "sets/set")
    outside = ("others/set", "sets-of-others/set")
    for key in outside:
        bucket.upload(root / "set", key)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nodes"))
    server = ServiceServer(tmp_path, f"{bucket.url}/sets")
    try:
        mine: dict[str, Any] = {"cache_dir": tmp_path / "client"}
        remote = feeder.ShardDataset(f"{bucket.url}/sets/set", CROP, fields=["key", "json"], **mine)
        check_equal(remote, server, shuffle=feeder.Lanes())
        for key in outside:
            dataset = feeder.ShardDataset(f"{bucket.url}/{key}", CROP, **mine)
            one = feeder.DataLoader(
                dataset, batch_size=8, seed=0, service=feeder.Service(server.service, only=True), timeout=1
            )
            assert "lies below no URL" in refusal(one)
        with monkeypatch.context() as without:
            for name in [name for name in os.environ if name.startswith("AWS_")]:
                without.delenv(name)
            one = feeder.DataLoader(remote, batch_size=8, seed=0, service=feeder.Service(server.service, only=True))
            assert len(copied_epoch(one)) == 8  # by the server's credentials
            one.close()
    finally:
        server.close()


def test_an_endpoint_of_a_client_is_never_asked(
    bucket: Bucket, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.upload(root / "set", "sets/set")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nodes"))
    remote = feeder.ShardDataset(f"{bucket.url}/sets/set", CROP, cache_dir=tmp_path / "client")
    work = work_to_json(Work(remote.reader, remote.recipe, "cpu"))
    server = ServiceServer(tmp_path, bucket.url)
    with contextlib.closing(server), socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.setblocking(False)
        work["set"]["path"] += f"?endpoint=http://127.0.0.1:{elsewhere.getsockname()[1]}"
        peer = Peer(server)
        peer.ask(work)  # by the server's own endpoint
        peer.close()
        with pytest.raises(BlockingIOError):
            elsewhere.accept()


def test_a_server_unpickles_nothing(root: Path, tmp_path: Path) -> None:
    """A process of the server that does says so, and ends."""
    log, folder = tmp_path / "unpickled", tmp_path / "banned"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import os, sys\n"
        "def hook(event, what):\n"
        "    if event == 'pickle.find_class':\n"
        f"        open({str(log)!r}, 'a').write(f'{{what}}\\n')\n"
        "        os._exit(1)\n"
        "sys.addaudithook(hook)\n"
    )
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    samples = [{"box.npy": npy(np.arange(3)), "meta.json": b'{"score": 1}', "txt": b"a"} for _ in range(8)]
    kinds: dict[str, Any] = {"box.npy": F.Array(), "meta.json": F.Json(), "txt": F.Text()}
    dataset = feeder.ShardDataset(members_set(root / "unpickled", samples), CROP, fields=kinds)
    server = ServiceServer(tmp_path, root, environment={"PYTHONPATH": path}, is_warm=False)
    with contextlib.closing(server):
        check_equal(dataset, server)
    assert not log.exists()
