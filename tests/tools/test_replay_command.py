"""``feeder replay``: the samples and images of a step, from a set and a saved state alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import feeder
from feeder import transforms as T
from feeder.dataset.base import FeederDataset
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.tools.cli import main
from tests.support.images import encode, make_tree, pixels
from tests.support.target_data import TARGETS, write_target_folder, write_target_shards


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    make_tree(root)
    return root


def run_of(tree: Path, *ops: T.Op, **options: Any) -> feeder.DataLoader:
    data = feeder.FolderDataset(tree, T.Compose([T.RandomResizedCrop(8), *ops]), ["key"])
    return feeder.DataLoader(data, 4, seed=5, **{"shuffle": True, **options})


@pytest.mark.parametrize("ops", [(), (T.ToDtype("float32", scale=True), T.Normalize([0.4, 0.5, 0.6], 0.2))])
def test_images_are_written_as_the_run_saw_them(
    ops: tuple[T.Op, ...], tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, pixels = run_of(tree, *ops), list(run_of(tree))
    list(run)
    torch.save({"step": 8, "loader": run.state_dict()}, tmp_path / "checkpoint.pt")
    command = ["replay", str(tree), "--state", str(tmp_path / "checkpoint.pt"), "--epoch", "0", "--step", "2", "--json"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["key"] for each in found["samples"]] == pixels[2][2]
    for row in range(4):
        image = np.asarray(Image.open(tmp_path / f"out/{row:04d}.png")).transpose(2, 0, 1)
        assert np.array_equal(image, pixels[2][0][row])


@pytest.mark.parametrize("is_written", [False, True])
def test_a_bad_sample_and_its_substitute_are_named(
    is_written: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = make_tree(tmp_path / "images", 2, 6)
    (tree / "class-1/img-003.jpg").write_bytes(encode(pixels(5))[:300])
    run = run_of(tree, on_error="skip")
    batches = list(run)
    (bad,) = run.stats()["substitutions"]
    step, row = next(
        (step, keys.index(bad["key"]))
        for step in range(3)
        for keys in [run.samples_of(0, step).keys]
        if bad["key"] in keys
    )
    (tmp_path / "state.json").write_text(json.dumps(run.state_dict()))
    command = ["replay", str(tree), "--state", str(tmp_path / "state.json"), "--epoch", "0", "--step", str(step)]
    written = ["--out", str(tmp_path / "out")] if is_written else []
    assert main([*command, *written, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["substitutions"] == [bad]
    assert main(command) == 0
    told = capsys.readouterr().out
    assert f"{bad['key']} is bad, and sample {bad['substitute']} stands in: {bad['reason']}" in told
    if is_written:
        image = np.asarray(Image.open(tmp_path / f"out/{row:04d}.png")).transpose(2, 0, 1)
        assert np.array_equal(image, batches[step][0][row])


def test_a_sample_that_was_taken_down_since_is_named(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard(str(tree), str(tmp_path / "set"), ShardOptions(shuffle=False))
    data = feeder.ShardDataset(tmp_path / "set", T.RandomResizedCrop(8), ["key"])
    run = feeder.DataLoader(data, 4)
    keys = [keys for _, _, keys in run]
    (tmp_path / "state.json").write_text(json.dumps(run.state_dict()))
    command = ["replay", str(tmp_path / "set"), "--state", str(tmp_path / "state.json"), "--epoch", "0", "--step", "1"]
    assert main(command) == 0
    assert "taken down" not in capsys.readouterr().out
    assert main(["takedown", str(tmp_path / "set"), keys[1][2], keys[2][0], "-q"]) == 0
    assert main([*command, "--json"]) == 0
    ((i, other),) = [each.values() for each in json.loads(capsys.readouterr().out)["taken_down"]]
    assert i == 6
    assert other not in (6, 8)
    assert main(command) == 0
    assert f"sample 6 was taken down, and sample {other} stands in" in capsys.readouterr().out


def test_the_samples_of_a_step_name_those_that_were_taken_down(tree: Path, tmp_path: Path) -> None:
    shard(str(tree), str(tmp_path / "set"), ShardOptions(shuffle=False))
    assert (
        main(["takedown", str(tmp_path / "set"), feeder.ShardDataset(tmp_path / "set").reader.field(6, "key"), "-q"])
        == 0
    )
    data = feeder.ShardDataset(tmp_path / "set", T.RandomResizedCrop(8))

    def steps(dataset: Any) -> list[Any]:
        loader = feeder.DataLoader(dataset, 4)
        batches = sum(1 for _ in loader)
        return [loader.samples_of(0, step) for step in range(batches)]

    _, samples, *_ = found = steps(data)
    ((i, other),) = samples.taken_down.items()
    assert i == 6
    assert samples.keys[2] == data.reader.field(other, "key")
    assert not any(each.taken_down for each in (found[0], *found[2:]))
    (samples,) = steps(torch.utils.data.Subset(data, [0, 6, 1]))
    assert samples.taken_down == {6: other}


@pytest.mark.parametrize("shuffle", [False, True, feeder.Window(9), feeder.Lanes(2, 8)])
def test_each_way_to_shuffle_is_taken_from_the_state(
    shuffle: Any, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard(str(tree), str(tmp_path / "set"), ShardOptions(samples_per_shard=8))
    data = feeder.ShardDataset(tmp_path / "set", T.RandomResizedCrop(8), ["key"])
    run = feeder.DataLoader(data, 4, seed=5, shuffle=shuffle, rank=1, world_size=2)
    expected = [keys for _, _, keys in run]
    (tmp_path / "state.json").write_text(json.dumps(run.state_dict()))
    command = ["replay", str(tmp_path / "set"), "--state", str(tmp_path / "state.json"), "--epoch", "0", "--rank", "1"]
    for step, keys in enumerate(expected):
        assert main([*command, "--step", str(step), "--json"]) == 0
        assert [each["key"] for each in json.loads(capsys.readouterr().out)["samples"]] == keys


def test_a_state_from_before_an_append_is_replayed_with_its_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree, more = make_tree(tmp_path / "images", 2, 6), make_tree(tmp_path / "more", 2, 3, first_seed=50)
    shard(str(tree), str(tmp_path / "set"), ShardOptions(samples_per_shard=4))
    run = feeder.DataLoader(feeder.ShardDataset(tmp_path / "set", T.RandomCrop(8), ["key"]), 4, shuffle=True)
    expected = [keys for *_, keys in run]
    (tmp_path / "state.json").write_text(json.dumps(run.state_dict()))
    assert main(["append", str(tmp_path / "set"), str(more), "-q"]) == 0
    command = ["replay", str(tmp_path / "set"), "--state", str(tmp_path / "state.json"), "--epoch", "0", "--step", "1"]
    assert main([*command, "--json"]) == 0
    assert [each["key"] for each in json.loads(capsys.readouterr().out)["samples"]] == expected[1]


@pytest.mark.parametrize("exif_orientation", ["apply", "ignore"])
def test_turned_photos_are_written_as_the_run_saw_them(exif_orientation: str, tmp_path: Path) -> None:
    (tmp_path / "images/a").mkdir(parents=True)
    for seed in range(4):
        photo = encode(pixels(seed, 40, 30), orientation=5 + seed % 4)
        (tmp_path / f"images/a/{seed}.jpg").write_bytes(photo)
    data = feeder.FolderDataset(tmp_path / "images", T.RandomCrop(16), exif_orientation=exif_orientation)
    ((images, _),) = run = feeder.DataLoader(data, 4, seed=5)
    (tmp_path / "state.json").write_text(json.dumps(run.state_dict()))
    command = [
        "replay",
        str(tmp_path / "images"),
        "--state",
        str(tmp_path / "state.json"),
        "--epoch",
        "0",
        "--step",
        "0",
    ]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    for row, image in enumerate(images.numpy()):
        written = np.asarray(Image.open(tmp_path / f"out/{row:04d}.png")).transpose(2, 0, 1)
        assert np.array_equal(written, image)


VARIED: dict[str, tuple[list[T.Op], dict[str, Any]]] = {
    "buckets": ([T.RandomResizedCrop(T.BUCKET)], {"sizes": feeder.Buckets(sizes=[(8, 16), (12, 12), (16, 8)])}),
    "by epoch": ([T.RandomResizedCrop(T.ByEpoch({0: 8, 1: 12}))], {}),
    "one length by epoch": ([T.Resize(T.ByEpoch({0: 12, 1: 14})), T.CenterCrop(8)], {}),
    "longest side by epoch": ([T.Resize(10, max_size=T.ByEpoch({0: 14, 1: 16})), T.CenterCrop(8)], {}),
    "one of three lengths": ([T.RandomShortestSize(T.ByEpoch({0: [9, 10, 12], 1: [10, 12, 14]})), T.CenterCrop(8)], {}),
    "padded": ([T.Resize(12)], {"sizes": feeder.PadToBatch(multiple=8, value=77)}),
    "grouped": ([T.Resize(12)], {"sizes": feeder.PadToBatch(multiple=8, value=77, group_by_aspect=True)}),
    "mixed": ([T.RandomResizedCrop(8)], {"mix": T.MixUp(alpha=np.float32(0.4))}),
    "cut": ([T.RandomResizedCrop(8)], {"mix": [T.CutMix(num_classes=1), T.MixUp(num_classes=1)]}),
}


UNKNOWN: dict[str, tuple[dict[str, Any], str]] = {
    "gpu": ({"backend": "cuda", "decoded_on": "cuda"}, "this run decoded on a GPU, whose pixels are not those"),
    "lambda": ({"recipe": None}, "the recipe of this run calls a function (Lambda), which a state does not have"),
    "own mix": ({"mix": None}, "this run mixed batches by an op of its own, which a state does not have"),
}


@pytest.mark.parametrize("cause", UNKNOWN)
@pytest.mark.parametrize("name", ["plain", *VARIED])
def test_the_samples_of_a_run_whose_images_are_not_known_are_told_without_them(
    name: str, cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = make_tree(tmp_path / "images", 1, 11)
    ops, options = VARIED.get(name, ([T.RandomResizedCrop(8)], {}))
    run = feeder.DataLoader(feeder.FolderDataset(tree, ops, ["key"]), 4, seed=5, shuffle=True, **options)
    expected = [batch[-1] for batch in run]
    changes, says = UNKNOWN[cause]
    check_without_images(tree, run.state_dict() | changes, expected, says, tmp_path, capsys)


def test_the_samples_of_a_run_that_calls_a_function_are_told(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(tree, T.Lambda(lambda image: image))
    expected = [batch[-1] for batch in run]
    check_without_images(tree, run.state_dict(), expected, UNKNOWN["lambda"][1], tmp_path, capsys)


def test_the_samples_of_a_run_that_an_op_of_the_users_own_mixed_are_told(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class OwnMixUp(T.MixUp):
        pass

    run = run_of(tree, mix=OwnMixUp())
    expected = [batch[-1] for batch in run]
    check_without_images(tree, run.state_dict(), expected, UNKNOWN["own mix"][1], tmp_path, capsys)


@pytest.mark.parametrize("ops", [[T.Resize((16, 16))], []], ids=["one size", "sizes of their own"])
def test_the_samples_of_a_run_that_draws_from_boxes_are_told(
    ops: list[T.Op], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = write_target_folder(tmp_path / "images", 9)
    data = feeder.FolderDataset(tree, [T.RandomIoUCrop(), *ops], ["key"], targets=TARGETS)
    run: Any = feeder.DataLoader(data, 4, seed=5, shuffle=True, collate_fn=lambda samples: [s[-1] for s in samples])
    says = "the recipe of this run draws from boxes, which a state does not name"
    expected = list(run)
    check_without_images(tree, run.state_dict(), expected, says, tmp_path, capsys)


def check_without_images(
    place: Path, state: Any, expected: list[list[str]], says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "state.json"
    path.write_text(json.dumps(state))
    command = ["replay", str(place), "--state", str(path), "--epoch", "0"]
    for step, keys in enumerate(expected):
        assert main([*command, "--step", str(step), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [each["key"] for each in found["samples"]] == keys
        assert found["substitutions"] is None
    assert main([*command, "--step", "0", "--out", str(folder / "out")]) == 2
    told = capsys.readouterr()
    assert all(key in told.out for key in expected[0])
    assert says in told.out
    assert "its images are not known here, nor which of these samples were bad" in told.out
    assert f"{path}: {says}" in told.err
    assert "make the loader as the run did, load the state, and call its replay()" in told.err
    assert not (folder / "out").exists()


@pytest.mark.parametrize("encode_as", [None, "keep"])
@pytest.mark.parametrize("name", VARIED)
def test_images_of_runs_with_several_sizes_are_written(
    name: str, encode_as: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ops, options = VARIED[name]
    (tmp_path / "images/a").mkdir(parents=True)
    for seed in range(11):
        width, height = [(40, 20), (20, 40), (30, 30)][seed % 3]
        (tmp_path / f"images/a/{seed}.jpg").write_bytes(encode(pixels(seed, width, height)))
    if encode_as is None:
        place = tmp_path / "images"
        data: FeederDataset = feeder.FolderDataset(place, ops, ["key"])
    else:
        place = tmp_path / "set"
        shard(str(tmp_path / "images"), str(place), ShardOptions(encode=EncodeOptions(encode_as)))
        data = feeder.ShardDataset(place, ops, ["key"])
    run = feeder.DataLoader(data, 3, seed=5, shuffle=True, **options)
    epochs = [list(run) for _ in range(2)]
    (tmp_path / "state.json").write_text(json.dumps(run.state_dict()))
    command = ["replay", str(place), "--state", str(tmp_path / "state.json"), "--json"]
    for step in range(4):
        out = tmp_path / f"out-{step}"
        assert main([*command, "--epoch", "1", "--step", str(step), "--out", str(out)]) == 0
        images, _, *sizes, keys = epochs[1][step]
        assert [each["key"] for each in json.loads(capsys.readouterr().out)["samples"]] == keys
        for row, image in enumerate(images.numpy()):
            height, width = sizes[0][row].tolist() if sizes else image.shape[1:]
            written = np.asarray(Image.open(out / f"{row:04d}.png")).transpose(2, 0, 1)
            assert np.array_equal(written, image[:, :height, :width])


def replayed(place: Path, folder: Path, state: Any, keys: list[list[str]], capsys: Any) -> list[list[np.ndarray]]:
    """Returns the images, uint8 [3, H, W], of each step of epoch 0 that the command writes; holds the keys of each."""
    (folder / "state.json").write_text(json.dumps(state))
    found = []
    for step, expected in enumerate(keys):
        out = folder / f"out-{step}"
        command = ["replay", str(place), "--state", str(folder / "state.json"), "--epoch", "0", "--step", str(step)]
        assert main([*command, "--json", "--out", str(out)]) == 0
        assert [each["key"] for each in json.loads(capsys.readouterr().out)["samples"]] == expected
        found.append([np.asarray(Image.open(path)).transpose(2, 0, 1) for path in sorted(out.iterdir())])
    return found


@pytest.mark.parametrize("pad", [None, feeder.PadToBatch(8), feeder.PadToBatch(8, group_by_aspect=True)], ids=repr)
@pytest.mark.parametrize(
    "op", [T.SanitizeBoundingBoxes(4), T.SanitizeKeyPoints(), T.ClampBoundingBoxes(), T.ClampKeyPoints()], ids=repr
)
def test_images_of_recipes_with_ops_on_targets_are_written(
    op: T.Op, pad: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = write_target_folder(tmp_path / "images", 9)
    # What is drawn after the op hangs on its place.
    after = T.RandomCrop(16) if pad is None else T.RandomShortestSize([16, 20, 24])
    ops = [T.RandomHorizontalFlip(), op, after, T.RandomVerticalFlip()]
    data = feeder.FolderDataset(tree, ops, ["key"], targets=TARGETS)
    run = feeder.DataLoader(data, 3, seed=5, shuffle=True, sizes=pad)
    batches = list(run)
    found = replayed(tree, tmp_path, run.state_dict(), [batch[-1] for batch in batches], capsys)
    for images, (expected, _, *rest) in zip(found, batches, strict=True):
        for row, image in enumerate(images):
            height, width = expected.shape[2:] if pad is None else rest[0][row].tolist()
            assert np.array_equal(image, expected[row, :, :height, :width])


@pytest.mark.parametrize("is_labelled", [False, True])
def test_images_of_a_set_that_was_opened_without_labels_are_written(
    is_labelled: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unlabelled = {} if is_labelled else {(i, "cls"): None for i in range(8)}
    place = write_target_shards(tmp_path / "set", 8, replaced=unlabelled)
    data = feeder.ShardDataset(place, T.RandomCrop(8), ["key"], labels=False)
    run = feeder.DataLoader(data, 3, seed=5, shuffle=True)
    batches = list(run)
    assert (feeder.ShardDataset(place).reader.labels() >= 0).any() == is_labelled
    found = replayed(place, tmp_path, run.state_dict(), [batch[-1] for batch in batches], capsys)
    assert all(np.array_equal(np.stack(images), batch[0]) for images, batch in zip(found, batches, strict=True))


def test_images_of_a_folder_whose_masks_are_no_samples_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = write_target_folder(tmp_path / "images", 8)
    targets = {"seg.png": T.Mask()}
    run = feeder.DataLoader(feeder.FolderDataset(tree, T.RandomCrop(16), ["key"], targets=targets), 3, shuffle=True)
    batches = list(run)
    found = replayed(tree, tmp_path, run.state_dict(), [batch[-1] for batch in batches], capsys)
    assert all(np.array_equal(np.stack(images), batch[0]) for images, batch in zip(found, batches, strict=True))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("key", [[], ["--key", "loader"]])
def test_the_state_of_a_dataset_that_is_not_feeders_is_told_as_such(
    workers: int, key: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = feeder.DataLoader(torch.utils.data.TensorDataset(torch.arange(8)), 2, num_workers=workers)
    torch.save({"loader": loader.state_dict(), "model": {}}, tmp_path / "run.pt")
    assert main(["replay", str(tmp_path), "--state", str(tmp_path / "run.pt"), "--step", "0", *key]) == 2
    assert "run.pt: has the state of a loader on torch's path, of a dataset that is not feeder's" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("content", "key", "says"),
    [
        ({"loader": 3}, [], "has no state of feeder's loader; name it with --key"),
        ({"loader": 3}, ["--key", "data"], "has no 'data'; there are: loader"),
        ({"a": {}, "b": {}}, [], "has 2 states; name one with --key: a, b"),
        ({"recipe": 3}, [], "expected a recipe as a list of ops, got 3"),
        ({"spans": [{"epoch": 0}] * 99}, [], "this state is damaged: its spans are [{'epoch': 0}, {'epoch': 0}"),
        ({"epoch": "last"}, [], "this state is damaged: expected an epoch of 0 to 2**32-1, got 'last'"),
        ({"seed": "x"}, [], "seed must be an integer, 0 to 2**64-1, got 'x'"),
        ({"backend": None}, [], "backend must be 'auto' or one of"),
        ({"spans": [], "buckets": "8x8"}, [], "sizes must be a list of 1 to 1,024 sizes"),
        ({"targets": "seg.png"}, [], "this state is damaged: its targets are 'seg.png'"),
        ({"fingerprint": "of another"}, [], "this state is of another set; or of a Subset, of several sets"),
        ({"recipe": None, "sizes_by_epoch": 3}, [], "this state is damaged: its sizes_by_epoch are 3"),
        ({"recipe": None, "sizes_by_epoch": [3]}, [], "expected sizes by epoch, [[epoch, size], ...], got 3"),
        ({"consumed": None}, [], "this state was saved with an explicit sampler, or is damaged"),
        ({"version": 2}, [], "this state is of version 2, and this feeder reads version 1: resume with"),
        ({"mix": [{"CenterCrop": {"size": [5, 5]}}]}, [], "expected an op of feeder.transforms"),
    ],
)
def test_what_a_state_does_not_have_is_named(
    content: Any, key: list[str], says: str, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = run_of(tree).state_dict()
    if not set(content) & {"loader", "a"}:
        content = {name: value for name, value in (state | content).items() if name != "consumed" or value is not None}
    else:
        content = {name: value if value == 3 else state for name, value in content.items()}
    (tmp_path / "state.json").write_text(json.dumps(content))
    assert main(["replay", str(tree), "--state", str(tmp_path / "state.json"), "--step", "0", *key]) == 2
    assert re.search(rf"/state\.json: .*{re.escape(says)}", capsys.readouterr().err)


@pytest.mark.parametrize("command", [["replay", "--step", "0"], ["browse", "--port", "0"]], ids=lambda each: each[0])
@pytest.mark.parametrize("size", [8, 9], ids=["one recipe", "recipes"])
def test_the_state_of_a_mixture_is_refused_with_the_way_out(
    command: list[str], size: int, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = {
        name: feeder.FolderDataset(tree, [T.Resize(of), T.CenterCrop(8)]) for name, of in (("a", 8), ("b", size))
    }
    run = feeder.DataLoader(feeder.Mixture(sources))
    list(run)
    (tmp_path / "state.json").write_text(json.dumps(run.state_dict()))
    assert main([*command, str(tree), "--state", str(tmp_path / "state.json")]) == 2
    said = "state.json: this state is of a Mixture, whose batches are of several sets: make the loader as the run did"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ("file/out", "can't be written: Not a directory; choose another --out"),
        ("folder", "exists already; name a new folder"),
    ],
)
def test_a_place_that_no_images_can_be_written_to_is_told_with_the_remedy(
    out: str, says: str, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    run = run_of(tree)
    list(run)
    (tmp_path / "state.json").write_text(json.dumps(run.state_dict()))
    command = ["replay", str(tree), "--state", str(tmp_path / "state.json"), "--epoch", "0", "--step", "0"]
    assert main([*command, "--out", str(tmp_path / out)]) == 2
    assert f"{tmp_path / out}: {says}\n" in capsys.readouterr().err


@pytest.mark.parametrize(("state", "reason"), [("folder", "Is a directory"), ("none.pt", "No such file or directory")])
def test_a_state_that_cant_be_read_is_told_with_what_to_name(
    state: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    assert main(["replay", str(tmp_path), "--state", str(tmp_path / state), "--step", "0"]) == 2
    assert f"{state}: can't be read: {reason}; name the file that the run saved its state to\n" in (
        capsys.readouterr().err
    )


def test_a_set_that_is_not_there_is_told_as_such(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state.json").write_text(json.dumps(run_of(tree).state_dict()))
    assert main(["replay", str(tmp_path / "gone"), "--state", str(tmp_path / "state.json"), "--step", "0"]) == 1
    assert f"{tmp_path / 'gone'}: there is no such path; give a shard set, its URL" in capsys.readouterr().err


def test_a_checkpoint_that_would_run_code_is_not_loaded(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path(tmp_path / "ran").touch, ())

    torch.save({"loader": Evil()}, tmp_path / "checkpoint.pt")
    assert main(["replay", str(tree), "--state", str(tmp_path / "checkpoint.pt"), "--step", "0"]) == 2
    assert "nor a checkpoint of torch" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
