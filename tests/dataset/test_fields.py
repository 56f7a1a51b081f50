"""Fields that are worked on in the workers: in samples, batches and columns."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

import feeder
from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, DecodeError
from feeder.fields import Apply, Array, Bytes, Choice, Float, Int, Json, Text
from feeder.loader.dataloader import DataLoader
from feeder.loader.fast import pool
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.transforms import Resize
from tests.support.field_sets import length_of, members_set, npy
from tests.support.loader_data import encode

FIELDS: dict[str, Any] = {
    "txt": Text(),
    "json": Json("i"),
    "emb.npy": Array((4,), "float32"),
    "n.txt": Int(),
    "x.txt": Float(),
    "index": None,
    "words": length_of,
}


def _members(i: int) -> dict[str, bytes]:
    return {
        "txt": f"caption {i}".encode(),
        "json": b'{"i": %d}' % i,
        "emb.npy": npy(np.full(4, i, np.float16)),
        "n.txt": b"%d\n" % i,
        "x.txt": b"%d.5" % i,
        "words": b"w" * i,
        "cls": b"%d" % (i % 3),
        "tokens.npy": npy(np.arange(i + 1)),
    }


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 samples with members of each kind."""
    return members_set(tmp_path_factory.mktemp("fields"), map(_members, range(12)))


def _check_batch(values: list[Any], ids: list[int]) -> None:
    text, number, array, integers, floats, index, lengths = values
    assert list(text) == [f"caption {i}" for i in ids]
    assert list(number) == ids
    assert torch.equal(array, torch.tensor(ids, dtype=torch.float32)[:, None].expand(-1, 4))
    assert array.dtype == floats.dtype == torch.float32
    assert torch.equal(integers, torch.tensor(ids))
    assert torch.equal(floats, torch.tensor(ids) + 0.5)
    assert index.tolist() == list(lengths) == ids


def test_a_sample_has_the_kinds_values(shards: Path) -> None:
    dataset = feeder.ShardDataset(shards, fields=FIELDS)
    image, label, *values = dataset[7]
    assert image[0].unique().tolist() == [7]
    assert label == 1
    assert values[:2] == ["caption 7", 7]
    assert torch.equal(values[2], torch.full((4,), 7.0))
    assert values[3] == 7
    assert torch.equal(values[4], torch.tensor(7.5))
    assert values[5:] == [7, 7]
    assert dataset.fields == tuple(FIELDS)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_has_arrays_for_numbers_and_arrays_and_lists_for_the_rest(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, Resize((8, 8)), fields=FIELDS)
    loader = DataLoader(dataset, batch_size=5, shuffle=True, num_workers=workers)
    assert loader.path == "fast"
    for images, labels, *values in loader:
        ids = images[:, 0, 0, 0].tolist()
        assert labels.tolist() == [i % 3 for i in ids]
        _check_batch(values, ids)


def _as_they_are(samples: list[Any]) -> list[Any]:
    return samples


@pytest.mark.parametrize("workers", [0, 1])
def test_a_collate_fn_gets_the_values_of_dataset_i(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, Resize((8, 8)), fields={**FIELDS, "tokens.npy": Array(pad=0)})
    loader = DataLoader(dataset, batch_size=6, num_workers=workers, collate_fn=_as_they_are)
    samples = [sample for batch in loader for sample in batch]
    for sample, own in zip(samples, (dataset[i] for i in range(12)), strict=True):
        for value, expected in zip(sample, own, strict=True):
            assert type(value) is type(expected)
            assert torch.equal(value, expected) if isinstance(value, torch.Tensor) else value == expected


def test_torchs_own_loader_collates_the_values(shards: Path) -> None:
    dataset = ShardDataset(shards, Resize((8, 8)), fields=FIELDS)
    for images, _, *values in torch.utils.data.DataLoader(dataset, batch_size=4):
        _check_batch([values[0], values[1].tolist(), *values[2:6], values[6].tolist()], images[:, 0, 0, 0].tolist())


def test_parts_and_concatenations_keep_their_fields(shards: Path) -> None:
    first, second = (ShardDataset(shards, Resize((8, 8)), fields=dict(FIELDS)) for _ in range(2))
    joined: Any = ConcatDataset([Subset(first, [3, 1]), second])
    loader = DataLoader(joined, batch_size=14)
    assert loader.path == "fast"
    ((_, _, *values),) = loader
    _check_batch(values, [3, 1, *range(12)])
    other = ShardDataset(shards, Resize((8, 8)), fields={**FIELDS, "txt": Bytes()})
    with pytest.warns(UserWarning, match="dataset 1 differs from the first in its fields"):
        DataLoader(ConcatDataset([first, other]), batch_size=2)


def test_arrays_of_fixed_size_need_no_message_from_the_worker(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = []

    def loads(data: bytes) -> Any:
        messages.append(pickle.loads(data))
        return messages[-1]

    monkeypatch.setattr(pool, "pickle", SimpleNamespace(loads=loads, dumps=pickle.dumps))
    for fields in ({"emb.npy": Array((4,), "float32"), "n.txt": Int(), "x.txt": Float()}, {"txt": Text()}):
        messages.clear()
        dataset = ShardDataset(shards, Resize((8, 8)), fields=fields)
        found = [value for batch in DataLoader(dataset, batch_size=6, num_workers=1) for value in batch[2]]
        assert len(found) == 12
        assert len(messages) == (2 if "txt" in fields else 0)


def test_arrays_of_different_lengths_come_as_a_list_padded_or_nested(shards: Path) -> None:
    batches = {}
    for name, kind in {"list": Array(), "pad": Array(pad=-1), "nested": Array(nested=True)}.items():
        dataset = ShardDataset(shards, Resize((8, 8)), fields={"tokens.npy": kind})
        for workers in (0, 1):
            ((_, _, batches[name]),) = DataLoader(dataset, batch_size=3, num_workers=workers, sampler=[2, 0, 5])
    expected = [torch.arange(i + 1) for i in (2, 0, 5)]
    assert all(map(torch.equal, batches["list"], expected))
    assert all(map(torch.equal, batches["nested"].unbind(), expected))
    padded, lengths = batches["pad"]
    assert padded.tolist() == [[0, 1, 2, -1, -1, -1], [0, -1, -1, -1, -1, -1], [0, 1, 2, 3, 4, 5]]
    assert lengths.tolist() == [3, 1, 6]


@pytest.mark.parametrize("workers", [0, 1])
def test_fields_go_to_the_device_with_their_batch(shards: Path, workers: int) -> None:
    fields = {"emb.npy": Array((4,), "float32"), "tokens.npy": Array(nested=True), "n.txt": Int(), "txt": Text()}
    dataset = ShardDataset(shards, Resize((8, 8)), fields=fields)
    loader = DataLoader(dataset, batch_size=4, num_workers=workers, device="cpu")
    for first, (_, _, arrays, tokens, numbers, texts) in zip(range(0, 12, 4), loader, strict=True):
        assert arrays[:, 0].tolist() == numbers.tolist() == list(range(first, first + 4))
        assert [len(each) for each in tokens.unbind()] == list(range(first + 1, first + 5))
        assert texts[0] == f"caption {first}"


def test_arrays_that_differ_in_another_axis_can_not_be_padded(tmp_path: Path) -> None:
    arrays: list[np.ndarray] = [np.zeros((2, 3)), np.zeros((3, 2)), np.zeros((2, 3), np.float32)]
    shards = members_set(tmp_path, [{"a.npy": npy(array)} for array in arrays])
    dataset = ShardDataset(shards, Resize((8, 8)), fields={"a.npy": Array(pad=0)})
    for sampler, reason in (([0, 1], "differ in their first axis only"), ([0, 2], "float64 and float32: give Array")):
        with pytest.raises(ArgumentError, match=f"field 'a.npy': .*{reason}"):
            next(iter(DataLoader(dataset, batch_size=2, sampler=sampler)))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("kind", "bad", "reason"),
    [
        (Text(), b"\xff", "field 'f': 'utf-8' codec"),
        (Int(), b"x", "field 'f': invalid literal"),
        (length_of, b"bad", "field 'f': length_of raised KeyError: 'no such thing'"),
        (Text(), None, "field 'f': the sample has no such member; Text.optional=True. takes"),
    ],
)
def test_a_bad_or_missing_member_names_its_sample_and_obeys_on_error(
    tmp_path: Path, kind: Any, bad: bytes | None, reason: str, workers: int
) -> None:
    members = [{"f": b"1"} for _ in range(6)]
    members[4] = {} if bad is None else {"f": bad}
    dataset = ShardDataset(members_set(tmp_path, members), Resize((8, 8)), fields={"f": kind})
    with pytest.raises(DecodeError, match=f"sample '0004' in set.tar.*{reason}"):
        dataset[4]
    with pytest.raises(DecodeError, match=f"sample '0004' in set.tar.*{reason}"):
        dataset.column("f")
    options: dict[str, Any] = {"batch_size": 3, "num_workers": workers}
    batches = iter(DataLoader(dataset, **options))
    next(batches)
    with pytest.raises(DecodeError, match=f"sample '0004' in set.tar.*{reason}"):
        next(batches)
    loader = DataLoader(dataset, on_error="skip", **options)
    with pytest.warns(UserWarning, match="1 of 6 samples"):
        images = torch.cat([batch[0] for batch in loader])
    (skipped,) = loader.stats()["substitutions"]
    assert skipped["position"] == 4
    assert images[:, 0, 0, 0].tolist() == [0, 1, 2, 3, skipped["substitute"], 5]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_optional_field_is_none_or_fill_where_a_sample_lacks_it(tmp_path: Path, workers: int) -> None:
    there = {"txt": b"a", "n": b"1", "x": b"1", "e.npy": npy(np.ones(2)), "f": b"abc"}
    shards = members_set(tmp_path, [there, {}])

    def batch(**fields: Any) -> tuple[Any, ...]:
        kinds = {name.replace("_", "."): kind for name, kind in fields.items()}
        dataset = ShardDataset(shards, Resize((8, 8)), fields=kinds)
        ((_, _, *values),) = DataLoader(dataset, batch_size=2, num_workers=workers)
        for value, own in zip(values, dataset[1][2:], strict=True):
            assert value[1] is own is None or torch.equal(torch.as_tensor(value[1]), torch.as_tensor(own))
        return tuple(values)

    assert batch(txt=Text(optional=True), n=Int(optional=True), f=Apply(length_of, optional=True)) == (
        ["a", None],
        [1, None],
        [3, None],
    )
    ((array, none),) = batch(e_npy=Array((2,), "float32", optional=True))
    assert torch.equal(array, torch.ones(2))
    assert none is None
    arrays, integers, floats, results = batch(
        e_npy=Array((2,), "float32", optional=True, fill=-2),
        n=Int(optional=True, fill=-1),
        x=Float(optional=True, fill=0.1),
        f=Apply(length_of, optional=True, fill=9),
    )
    assert arrays.tolist() == [[1.0, 1.0], [-2.0, -2.0]]
    assert integers.tolist() == [1, -1]
    assert torch.equal(floats, torch.tensor([1.0, 0.1]))
    assert results == [3, 9]
    dataset = ShardDataset(shards, fields={"txt": Text(optional=True, fill="none")})
    assert dataset.column("txt") == [dataset[0][2], dataset[1][2]] == ["a", "none"]


def test_a_value_that_is_not_in_its_member_is_missing_too(tmp_path: Path) -> None:
    shards = members_set(tmp_path, [{"json": data} for data in (b'{"a": 1}', b"{}", b'{"a": null}')] + [{}])
    assert ShardDataset(shards, fields={"json": Json("a", optional=True)}).column("json") == [1, None, None, None]
    chosen = ShardDataset(shards, fields={"json": Choice(Json("a"), optional=True, fill="none")})
    assert [chosen[i][2] for i in (1, 2, 3)] == ["none"] * 3
    with pytest.raises(DecodeError, match=r"sample '0002'.*field 'json': has no 'a': is null; optional=True takes"):
        ShardDataset(shards, fields={"json": Json("a")})[2]


def _manifest(folder: Path, rows: list[str]) -> Path:
    """Shards of a CSV with these columns, in its order."""
    for i in range(len(rows)):
        (folder / f"{i}.png").write_bytes(encode(i, (8, 8)))
    lines = [f"{i}.png,{row}" for i, row in enumerate(rows)]
    (folder / "rows.csv").write_text("\n".join(["path,caption,score,count", *lines]))
    shard(str(folder / "rows.csv"), str(folder / "set"), ShardOptions(shuffle=False))
    return folder / "set"


@pytest.mark.parametrize("workers", [0, 1])
def test_columns_of_a_manifest_have_kinds_of_their_own(tmp_path: Path, workers: int) -> None:
    path = _manifest(tmp_path, ["a cat,0.5,1", '"a dog, a bird",1.5,2', ",2.5,3"])
    fields = {"json:score": Float(), "json:caption": Text(), "json": Json("count"), "json:count": Int(), "key": None}
    dataset = ShardDataset(path, Resize((8, 8)), fields=fields)
    assert dataset[1][2:3] + dataset[1][3:6] == (1.5, "a dog, a bird", "2", 2)
    ((_, _, scores, captions, texts, counts, keys),) = DataLoader(dataset, batch_size=3, num_workers=workers)
    assert (scores.dtype, scores.tolist()) == (torch.float32, [0.5, 1.5, 2.5])
    assert (counts.dtype, counts.tolist()) == (torch.int64, [1, 2, 3])
    assert (captions, texts, len(keys)) == (["a cat", "a dog, a bird", ""], ["1", "2", "3"], 3)
    plain = ShardDataset(path, fields=["json:caption", "json"])
    assert plain[0][2:] == ("a cat", {"caption": "a cat", "score": "0.5", "count": "1"})
    assert plain.column("json:count") == ["1", "2", "3"]
    assert dataset.column("json:count").tolist() == [1, 2, 3]  # type: ignore[union-attr]


def test_a_value_of_json_that_is_no_text_is_parsed_as_its_json(tmp_path: Path) -> None:
    values = b'{"n": 3, "x": -0.25, "many": ["a", "b"], "deep": {"n": 4}, "none": null, "flag": true}'
    path = members_set(tmp_path, [{"meta.json": values, "json": b"{}"}])
    kinds: dict[str, Any] = {"n": Int(), "x": Float(), "many": Choice(Json()), "deep": Json("n"), "flag": Text()}
    fields = {f"meta.json:{key}": kind for key, kind in kinds.items()}
    number, real, one, inner, flag = ShardDataset(path, fields=fields)[0][2:]
    assert (number, real, inner, flag) == (3, -0.25, 4, "true")
    assert one in ("a", "b")
    assert ShardDataset(path, fields=["meta.json:deep", "meta.json:many"])[0][2:] == ({"n": 4}, ["a", "b"])
    for key, kind in {"none": Float(optional=True, fill=7), "left_out": Int(optional=True, fill=7)}.items():
        assert ShardDataset(path, fields={f"meta.json:{key}": kind})[0][2] == 7
    for name, reason in {
        "meta.json:none": r"sample '0000'.*field 'meta.json:none': has no 'none': is null; optional=True",
        "json:n": "field 'json:n': has no 'n': its keys are none; optional=True",
    }.items():
        with pytest.raises(DecodeError, match=reason):
            ShardDataset(path, fields=[name])[0]


def test_a_field_that_is_a_key_of_json_is_refused_with_its_name(tmp_path: Path) -> None:
    path = _manifest(tmp_path, ["a cat,0.5,1"])
    with pytest.raises(
        ArgumentError, match=r"field 'caption' is in no .*; it is a key of json: name it 'json:caption'"
    ):
        ShardDataset(path, fields={"caption": Text()})
    with pytest.raises(ArgumentError, match=r"field 'nothing' is in no sample of .*; it has .*json[^:]*$"):
        ShardDataset(path, fields=["nothing"])
    with pytest.raises(ArgumentError, match=r"field 'x\.json' is in no sample"):
        ShardDataset(path, fields=["x.json:caption"])


def test_a_column_has_the_kinds_values(shards: Path) -> None:
    dataset = ShardDataset(shards, fields={**FIELDS, "tokens.npy": Array()})
    assert dataset.column("txt") == [f"caption {i}" for i in range(12)]
    assert dataset.column("json") == dataset.column("n.txt").tolist() == list(range(12))  # type: ignore[union-attr]
    arrays = dataset.column("emb.npy")
    assert isinstance(arrays, np.ndarray)
    assert (arrays.dtype.name, arrays.shape) == ("float32", (12, 4))
    assert [len(array) for array in dataset.column("tokens.npy")] == list(range(1, 13))
    assert dataset.column("cls")[:2] == [b"0", b"1"]


def test_an_optional_field_that_no_sample_has_is_filled_with_a_warning(shards: Path) -> None:
    with pytest.warns(UserWarning, match=r"field 'nothing' is in no sample of .*; it has .*cls.*; each gets 'none'"):
        dataset = ShardDataset(shards, fields={"nothing": Text(optional=True, fill="none")})
    assert dataset[1][2] == "none"
    assert dataset.column("nothing")[:2] == ["none", "none"]


def test_cls_is_one_more_field_and_leaves_the_labels_alone(shards: Path) -> None:
    dataset = ShardDataset(shards, fields={"cls": Text()}, target_transform={0: 5, 1: 6, 2: 7})
    assert dataset[1][1:] == (6, "1")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"nothing": Text()}, "field 'nothing' is in no sample"),
        ({"x.pkl": Bytes()}, "'x.pkl' is refused"),
        ({"key": Text()}, "'key' is no member with bytes to parse; ask for it by {'key': None}"),
        ({"width": Int()}, "'width' is no member"),
        ({"txt": Text}, "Text is a class; write Text()"),
        ({"txt": "text"}, "expected a kind such as feeder.fields.Text"),
    ],
)
def test_fields_that_can_not_be_are_refused_when_the_dataset_is_made(shards: Path, fields: Any, reason: str) -> None:
    with pytest.raises(ArgumentError, match=reason):
        ShardDataset(shards, fields=fields)


@pytest.mark.parametrize("make", [lambda: lambda data: len(data), lambda: Apply(lambda data: len(data))])
def test_functions_that_can_not_be_pickled_come_by_a_fork(shards: Path, make: Callable[[], Any]) -> None:
    dataset = ShardDataset(shards, Resize((8, 8)), fields={"words": make()})
    assert [n for batch in DataLoader(dataset, batch_size=6, num_workers=1) for n in batch[2]] == list(range(12))


def test_files_beside_an_image_are_its_members(tmp_path: Path) -> None:
    for name, data in {
        **{f"{name}/{k}.b.png": encode(k, (8, 8)) for k, name in enumerate(("cat", "dog"))},
        **{"cat/0.b.txt": b"a cat", "cat/0.b.json": b'{"n": 1}', "dog/1.b.txt": b"a dog", "dog/0.b.md": b"of no image"},
        **{"cat/0.b.e.npy": npy(np.ones(2)), "dog/1.b.e.npy": npy(np.zeros(2))},
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    fields = {"txt": Text(), "json": Json(optional=True), "e.npy": Array((2,), "float32"), "key": None}
    dataset = FolderDataset(tmp_path, Resize((8, 8)), fields=fields)
    for workers in (0, 1):
        ((images, labels, texts, rows, arrays, keys),) = DataLoader(dataset, batch_size=2, num_workers=workers)
        assert images[:, 0, 0, 0].tolist() == labels.tolist() == [0, 1]
        assert texts == ["a cat", "a dog"]
        assert rows == [{"n": 1}, None]
        assert arrays.tolist() == [[1.0, 1.0], [0.0, 0.0]]
        assert keys == ["cat/0.b.png", "dog/1.b.png"]
    plain = FolderDataset(tmp_path, fields=["txt", "json"])
    assert plain[0][2:] == (b"a cat", {"n": 1})
    assert plain[1][2:] == (b"a dog", None)
    assert plain.column("txt") == [b"a cat", b"a dog"]
    with pytest.raises(ArgumentError, match="field 'md' is in no sample"):
        FolderDataset(tmp_path, fields=["md"])
    with pytest.raises(DecodeError, match=r"sample 'dog/1.b.png': field 'json': the sample has no such member"):
        FolderDataset(tmp_path, fields={"json": Json()})[1]
