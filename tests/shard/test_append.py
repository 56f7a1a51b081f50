"""Samples are added to a set as a new version of it."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import torch

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, ShardError, SourceError
from feeder.loader.dataloader import DataLoader
from feeder.shard.format.manifest import Manifest
from feeder.shard.format.open_index import open_index
from feeder.shard.source.table_file import ManifestColumns
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.output_folder import OutputFolder
from feeder.shard.write.set_append import append
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.tools.cli import main
from feeder.tools.exported_images import export
from feeder.tools.set_report import open_set
from feeder.tools.verify import verify
from feeder.transforms import Compose, Resize
from tests.support.fault_proxy import FaultProxy
from tests.support.images import encode, pixels
from tests.support.interrupted_runs import append_killed_at
from tests.support.remote import Bucket
from tests.support.shard_sets import contents, kept, one_image_index, samples_of

RECIPE = Compose([Resize((8, 8))])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A set of the classes "b" and "d"."""
    for k, name in enumerate("bd"):
        images(tmp_path / "images" / name, 10 * k, 5)
    shard(str(tmp_path / "images"), str(tmp_path / "set"), kept(samples_per_shard=4))
    return tmp_path / "set"


def images(folder: Path, seed: int, count: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(count):
        (folder / f"{seed + k}.jpg").write_bytes(encode(pixels(seed + k)))
    return folder.parent


def by_class(folder: Path, **options: Any) -> dict[str, str]:
    """Class name by original path, as a dataset gives them."""
    dataset = ShardDataset(folder, fields=["path"], **options)
    assert dataset.classes is not None
    return {dataset[i][2]: dataset.classes[dataset[i][1]] for i in range(len(dataset))}


def test_samples_and_classes_are_added_and_the_others_stay(folder: Path, tmp_path: Path) -> None:
    before = samples_of(folder)
    images(tmp_path / "more" / "a", 20, 3)
    images(tmp_path / "more" / "d", 30, 3)
    shards = {path.name: path.read_bytes() for path in folder.glob("shard-*")}
    summary = append(str(folder), str(tmp_path / "more"), ShardOptions())
    assert (summary.samples, summary.written_samples, summary.written_shards, summary.classes) == (16, 6, 2, 3)
    assert samples_of(folder)[: len(before)] == before
    assert {name: (folder / name).read_bytes() for name in shards} == shards
    found = by_class(folder)
    assert found == {path: Path(path).parent.name for path in found}
    assert len(found) == 16
    assert ShardDataset(folder).classes == ["b", "d", "a"]
    keys = [ShardDataset(folder, fields=["key"])[i][2] for i in range(16)]
    assert len(set(keys)) == 16
    assert verify(str(folder)) == []
    manifest = Manifest.read(str(folder))
    assert manifest is not None
    assert (manifest.samples, manifest.inputs, len(manifest.shards)) == (16, 16, 5)
    for path in (folder / "shard-000003.tar", folder / "shard-000004.tar"):
        assert b".cls" in path.read_bytes()
    assert not (folder / ".work").exists()


def test_a_set_is_named_by_a_file_url_too(folder: Path, tmp_path: Path) -> None:
    more = images(tmp_path / "more" / "b", 20, 3)
    assert append(folder.as_uri(), str(more), ShardOptions()).samples == 13


def test_a_second_version_goes_on_from_the_first(folder: Path, tmp_path: Path) -> None:
    for k in range(2):
        images(tmp_path / f"more{k}" / "b", 20 + 10 * k, 3)
        append(str(folder), str(tmp_path / f"more{k}"), ShardOptions())
    assert [len(ShardDataset(folder, version=version)) for version in (1, 2, 3, None)] == [10, 13, 16, 16]
    assert len({ShardDataset(folder, version=version).reader.fingerprint() for version in (1, 2, 3)}) == 3
    assert verify(str(folder)) == verify(str(folder / "index-000002.bin")) == []
    with pytest.raises(ArgumentError, match="has the versions 1 to 3, asked for version 4"):
        ShardDataset(folder, version=4)
    # The source of the first version is still known.
    assert shard(str(tmp_path / "images"), str(folder), kept(samples_per_shard=4)).written_shards == 0


def test_a_run_goes_on_with_its_version(folder: Path, tmp_path: Path) -> None:
    def batches(loader: Any) -> list[torch.Tensor]:
        return [labels for _, labels in loader]

    options: dict[str, Any] = {"shuffle": True, "num_workers": 0, "backend": "pillow"}
    whole = batches(DataLoader(ShardDataset(folder, RECIPE), 4, **options))
    loader = DataLoader(ShardDataset(folder, RECIPE), 4, **options | {"num_workers": 1})
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    images(tmp_path / "more" / "b", 20, 3)
    append(str(folder), str(tmp_path / "more"), ShardOptions())
    again = batches(loader)
    assert sorted(torch.cat(again).tolist()) == sorted(torch.cat(whole).tolist())
    loader.close() if hasattr(loader, "close") else None
    newest = DataLoader(ShardDataset(folder, RECIPE), 4, **options)
    with pytest.raises(ArgumentError, match=r"of version 1 of the set.*ShardDataset\(path, version=1\)"):
        newest.load_state_dict(state)
    resumed = DataLoader(ShardDataset(folder, RECIPE, version=1), 4, **options)
    resumed.load_state_dict(state)
    assert torch.equal(torch.cat(batches(resumed)), torch.cat(whole[1:]))
    with pytest.raises(ArgumentError, match=r"of version 2 of the set.*ShardDataset\(path, version=2\)"):
        resumed.load_state_dict(newest.state_dict())


def test_a_pickled_dataset_opens_the_version_that_it_had(folder: Path, tmp_path: Path) -> None:
    pickled = pickle.dumps(ShardDataset(folder))
    images(tmp_path / "more" / "b", 20, 3)
    append(str(folder), str(tmp_path / "more"), ShardOptions())
    assert len(pickle.loads(pickled)) == 10
    assert len(pickle.loads(pickle.dumps(ShardDataset(folder)))) == 13


class StopAfterTwoShards(OutputFolder):
    """Interrupts a run once it has finished two shards."""

    left = 2

    def publish(self, *paths: str) -> None:
        super().publish(*paths)
        if paths[-1].endswith(".tar"):
            type(self).left -= 1
            if not self.left:
                raise KeyboardInterrupt


def interrupt(monkeypatch: pytest.MonkeyPatch, folder: Path, more: Path) -> None:
    StopAfterTwoShards.left = 2
    with monkeypatch.context() as patch:
        patch.setattr("feeder.shard.write.store_output.OutputFolder", StopAfterTwoShards)
        with pytest.raises(KeyboardInterrupt):
            append(str(folder), str(more), ShardOptions(workers=1))


def test_an_interrupted_run_leaves_the_set_as_it_was_and_resumes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = images(tmp_path / "more" / "b", 20, 15)
    before = contents(folder)
    shutil.copytree(folder, tmp_path / "whole")
    append(str(tmp_path / "whole"), str(more), ShardOptions())
    interrupt(monkeypatch, folder, more)
    assert len(ShardDataset(folder)) == 10
    assert before.items() <= contents(folder).items()
    assert not verify(str(folder))
    kept_shards = {path: path.stat().st_mtime_ns for path in folder.glob("shard-*.tar")}
    left = len(kept_shards) - 3
    assert 2 <= left <= 4  # the workers may be ahead of the interrupt
    summary = append(str(folder), str(more), ShardOptions())
    assert (summary.samples, summary.written_shards, summary.written_samples) == (25, 4 - left, max(0, 15 - 4 * left))
    assert kept_shards.items() <= {path: path.stat().st_mtime_ns for path in folder.glob("shard-*.tar")}.items()
    assert contents(folder) == contents(tmp_path / "whole")


def test_what_an_interrupted_run_has_left_goes_with_the_next_one_of_other_samples(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more, other = images(tmp_path / "more" / "b", 20, 15), images(tmp_path / "other" / "b", 50, 2)
    shutil.copytree(folder, tmp_path / "whole")
    append(str(tmp_path / "whole"), str(other), ShardOptions())
    interrupt(monkeypatch, folder, more)
    append(str(folder), str(other), ShardOptions())
    assert contents(folder) == contents(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_that_is_killed_at_any_moment_leaves_a_whole_set_and_resumes(folder: Path, tmp_path: Path) -> None:
    more = images(tmp_path / "more" / "new", 20, 9)
    shutil.copytree(folder, tmp_path / "whole")
    append(str(tmp_path / "whole"), str(more), ShardOptions())
    outcomes = set()
    for step in range(200):
        out = tmp_path / f"killed {step}"
        shutil.copytree(folder, out)
        was_killed = append_killed_at(step, more, out)
        dataset = ShardDataset(out, RECIPE)
        outcomes.add(len(dataset))
        assert len({dataset[i][0].numpy().tobytes() for i in range(len(dataset))}) == len(dataset)
        assert not verify(str(out)) or len(dataset) == 19  # of which the manifest may still come
        for _ in range(2):
            assert append(str(out), str(more), ShardOptions()).samples == 19
            assert contents(out) == contents(tmp_path / "whole")
        shutil.rmtree(out)
        if not was_killed:
            break
    assert outcomes == {10, 19}
    assert not was_killed


def test_a_source_that_was_added_is_added_again_only_once_it_has_changed(folder: Path, tmp_path: Path) -> None:
    more, other = images(tmp_path / "more" / "b", 20, 3), images(tmp_path / "other" / "b", 40, 2)
    for source in (more, other):
        append(str(folder), str(source), ShardOptions())
    before = contents(folder)
    summary = append(str(folder), str(more), ShardOptions())
    assert (summary.samples, summary.written_samples) == (15, 0)
    assert contents(folder) == before
    os.utime(more / "b" / "20.jpg", ns=(0, 0))  # as of an image that was replaced by one of its size
    assert append(str(folder), str(more), ShardOptions()).samples == 18


def test_another_folder_with_the_same_names_sizes_and_times_is_added(folder: Path, tmp_path: Path) -> None:
    for k in range(2):
        tree = tmp_path / f"day{k}" / "b"
        tree.mkdir(parents=True)
        (tree / "0.bmp").write_bytes(encode(pixels(50 + k), "bmp"))
        os.utime(tree / "0.bmp", ns=(0, 0))
    for _ in range(2):
        for k in range(2):
            append(str(folder), str(tmp_path / f"day{k}"), ShardOptions())
    assert len(ShardDataset(folder)) == 12


def test_the_source_that_a_set_was_made_of_is_not_added_again(folder: Path, tmp_path: Path) -> None:
    before = contents(folder)
    with pytest.raises(SourceError, match=r"images: has the paths, sizes and labels of what .* twice.*rename one"):
        append(str(folder), str(tmp_path / "images"), ShardOptions())
    assert contents(folder) == before
    (tmp_path / "images" / "b" / "0.jpg").rename(tmp_path / "images" / "b" / "renamed.jpg")
    assert append(str(folder), str(tmp_path / "images"), ShardOptions()).samples == 20


def test_an_interrupted_run_is_not_resumed_over_another_folder_of_the_same_names_sizes_and_times(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k in range(2):
        tree = tmp_path / f"day{k}" / "b"
        tree.mkdir(parents=True)
        for number in range(12):
            (tree / f"{number}.bmp").write_bytes(encode(pixels(50 + 20 * k + number), "bmp"))
            os.utime(tree / f"{number}.bmp", ns=(0, 0))
    shutil.copytree(folder, tmp_path / "whole")
    append(str(tmp_path / "whole"), str(tmp_path / "day1"), ShardOptions())
    interrupt(monkeypatch, folder, tmp_path / "day0")
    append(str(folder), str(tmp_path / "day1"), ShardOptions())
    assert samples_of(folder) == samples_of(tmp_path / "whole")


def test_rejected_inputs_are_listed_once_however_often_a_run_is_killed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = images(tmp_path / "more" / "b", 20, 9)
    (more / "b" / "bad.jpg").write_bytes(b"\xff\xd8\xff")
    options = ShardOptions(workers=1, max_bad=0.5)

    def stop(_: OutputFolder, *paths: str) -> None:
        if any(path.endswith("rejected.jsonl") for path in paths):
            raise KeyboardInterrupt

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(OutputFolder, "publish", stop)
            with pytest.raises(KeyboardInterrupt):
                append(str(folder), str(more), options)
    append(str(folder), str(more), options)
    assert [json.loads(line)["path"] for line in (folder / "rejected.jsonl").read_text().splitlines()] == ["b/bad.jpg"]


def test_what_another_run_has_left_goes_where_nothing_is_added(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more, other = images(tmp_path / "more" / "b", 20, 15), images(tmp_path / "other" / "b", 50, 2)
    append(str(folder), str(other), ShardOptions())
    before = contents(folder)
    interrupt(monkeypatch, folder, more)
    append(str(folder), str(other), ShardOptions())
    assert contents(folder) == before


def test_rows_are_added_to_a_set_in_a_store_once(tmp_path: Path, bucket: Bucket) -> None:
    images(tmp_path / "images", 0, 4)
    columns = ManifestColumns(label="label")
    for name, numbers in (("one", (0, 1)), ("two", (2, 3))):
        (tmp_path / f"{name}.csv").write_text(
            "path,label,note\n" + "".join(f"images/{k}.jpg,7,x{k}\n" for k in numbers)
        )
    out = f"{bucket.url}/set"
    shard(str(tmp_path / "one.csv"), out, kept(columns=columns))
    for _ in range(2):
        assert append(out, str(tmp_path / "two.csv"), ShardOptions(columns=columns)).samples == 4


@pytest.mark.slow
def test_a_run_that_is_killed_at_any_request_is_repeated_to_the_same_set(
    folder: Path, tmp_path: Path, bucket: Bucket
) -> None:
    more = images(tmp_path / "more" / "new", 20, 9)
    shutil.copytree(folder, tmp_path / "whole")
    append(str(tmp_path / "whole"), str(more), ShardOptions())
    expected = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir() if path.name != ".lock"}
    for step in range(100):
        bucket.upload(folder, str(step))
        out = f"{bucket.url}/{step}"
        was_killed = append_killed_at(step, more, out)
        for _ in range(2):
            assert append(out, str(more), ShardOptions()).samples == 19
        keys = [key for key in bucket.keys() if key.startswith(f"{step}/") and not key.endswith("/.lock")]  # noqa: SIM118
        assert {key.partition("/")[2]: bucket.get(key) for key in keys} == expected, f"killed at step {step}"
        if not was_killed:
            break
    assert not was_killed
    assert step > 12


def test_what_a_killed_run_left_does_no_harm(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops right after the header is in place, so that the manifest is that of the version before."""
    images(tmp_path / "more" / "b", 20, 3)
    shutil.copytree(folder, tmp_path / "whole")
    append(str(tmp_path / "whole"), str(tmp_path / "more"), ShardOptions())

    class Killed(BaseException):
        pass

    def publish(_: OutputFolder, *paths: str) -> None:
        if paths[-1].endswith("/index.bin"):
            shutil.copytree(folder, tmp_path / "left")
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(OutputFolder, "publish", publish)
        with pytest.raises(Killed):
            append(str(folder), str(tmp_path / "more"), ShardOptions())
    assert len(ShardDataset(tmp_path / "left")) == 13
    images(tmp_path / "last" / "b", 40, 2)
    for name in ("left", "whole"):
        append(str(tmp_path / name), str(tmp_path / "last"), ShardOptions())
    assert contents(tmp_path / "left") == contents(tmp_path / "whole")


def test_targets_and_rows_are_added(tmp_path: Path) -> None:
    columns = ManifestColumns(targets=("x",))
    for k, name in enumerate(("one", "two", "other")):
        images(tmp_path / "images", 10 * k, 3)
        field = "x" if name != "other" else "y"
        rows = [json.dumps({"path": f"images/{10 * k + i}.jpg", field: i / 2}) for i in range(3)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    out = str(tmp_path / "set")
    shard(str(tmp_path / "one.jsonl"), out, kept(columns=columns))
    append(out, str(tmp_path / "two.jsonl"), ShardOptions(columns=columns))
    dataset = ShardDataset(out, fields=["row"])
    assert sorted((dataset[i][1], dataset[i][2]) for i in range(6)) == [(i / 2, i) for i in range(3) for _ in "12"]
    with pytest.raises(SourceError, match=r"its targets are 'y', those of the set 'x'"):
        append(out, str(tmp_path / "other.jsonl"), ShardOptions(columns=ManifestColumns(targets=("y",))))
    with pytest.raises(SourceError, match=r"its targets are none, those of the set 'x'"):
        append(out, str(tmp_path / "images"), ShardOptions())
    assert len(ShardDataset(out)) == 6


def test_what_does_not_fit_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    flat = images(tmp_path / "flat" / ".", 20, 2)
    assert flat
    with pytest.raises(ShardError, match="holds no finished shard set of feeder"):
        append(str(tmp_path / "none"), str(tmp_path / "images"), ShardOptions())
    assert not (tmp_path / "none").exists()
    with pytest.raises(ShardError, match=r"flat: holds no finished shard set of feeder; make one with `feeder shard`"):
        append(str(tmp_path / "flat"), str(tmp_path / "images"), ShardOptions())
    with pytest.raises(ShardError, match="lies inside the source"):
        append(str(folder), str(tmp_path), ShardOptions(class_folders=True))
    (tmp_path / "rows.csv").write_text(f"path,label\n{tmp_path}/images/b/0.jpg,7\n")
    with pytest.raises(SourceError, match="samples of a manifest and others do not go into one set"):
        append(str(folder), str(tmp_path / "rows.csv"), ShardOptions(columns=ManifestColumns(label="label")))


def test_a_set_in_a_store_gets_the_files_of_a_local_one_and_nothing_is_asked_of_its_shards(
    folder: Path, tmp_path: Path, bucket: Bucket, fault_proxy: FaultProxy
) -> None:
    shard(str(tmp_path / "images"), f"{bucket.url}/set", kept(samples_per_shard=4))
    old, before = sorted(path.stem for path in folder.glob("*.tar")), len(fault_proxy.requests())
    for seed, name in ((20, "more"), (30, "further")):
        images(tmp_path / name / "a", seed, 3)
        for place in (str(folder), f"{bucket.url}/set"):
            append(place, str(tmp_path / name), ShardOptions())
    targets = [request.target for request in fault_proxy.requests()[before:]]
    assert old
    asked = {urlsplit(target).path.rpartition("/")[2] for target in targets}
    assert {name for name in asked if name.split(".")[0] in old} == set()
    queries = [parse_qs(urlsplit(target).query) for target in targets]
    assert {query["prefix"][0] for query in queries if "prefix" in query} == {"set/.work/"}
    local = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}
    assert {key.removeprefix("set/"): bucket.get(key) for key in bucket.keys() if key.startswith("set/")} == local  # noqa: SIM118


def test_the_command_appends(folder: Path, tmp_path: Path, capsys: Any) -> None:
    images(tmp_path / "more" / "c", 20, 3)
    assert main(["append", str(folder), str(tmp_path / "more"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["written_samples"] == 3
    assert main(["append", str(folder), str(tmp_path / "missing")]) == 1
    assert "missing" in capsys.readouterr().err
    assert main(["inspect", str(folder), "--verify"]) == 0
    assert os.path.exists(folder / "index-000001.bin")


def test_samples_added_to_a_packed_set_are_packed_with_its_codebook_and_come_back(tmp_path: Path) -> None:
    images(tmp_path / "images" / "b", 0, 5)
    images(tmp_path / "more" / "d", 10, 3)
    folder = tmp_path / "set"
    shard(str(tmp_path / "images"), str(folder), ShardOptions(encode=EncodeOptions("packed")))
    codebooks = list(open_index(str(folder / "index.bin")).codebooks)
    assert append(str(folder), str(tmp_path / "more"), ShardOptions()).encoded == {"packed": 8}
    assert list(open_index(str(folder / "index.bin")).codebooks) == codebooks
    export(str(folder), str(tmp_path / "out"))
    for source in (tmp_path / "images", tmp_path / "more"):
        for path in source.rglob("*.jpg"):
            assert (tmp_path / "out" / path.relative_to(source)).read_bytes() == path.read_bytes()


def test_images_with_the_paths_of_earlier_ones_are_exported_with_their_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sources with the same names, as those of two days' photos."""
    images(tmp_path / "images" / "cat", 0, 3)
    images(tmp_path / "more" / "cat", 10, 2)
    for i in range(2):
        (tmp_path / "more" / "cat" / f"{10 + i}.jpg").rename(tmp_path / "more" / "cat" / f"{i}.jpg")
    folder = tmp_path / "set"
    shard(str(tmp_path / "images"), str(folder), ShardOptions(encode=EncodeOptions("packed")))
    append(str(folder), str(tmp_path / "more"), ShardOptions())
    index = open_set(str(folder))
    added = {index.source_path(i): index.key(i) for i in range(3, 5)}
    assert main(["export", str(folder), "--out", str(tmp_path / "out")]) == 0
    assert "renamed   2 of these" in capsys.readouterr().out
    for i in range(3):
        assert (tmp_path / "out/cat" / f"{i}.jpg").read_bytes() == (tmp_path / "images/cat" / f"{i}.jpg").read_bytes()
    for i in range(2):
        name = f"{i}.{added[f'cat/{i}.jpg']}.jpg"
        assert (tmp_path / "out/cat" / name).read_bytes() == (tmp_path / "more/cat" / f"{i}.jpg").read_bytes()
    assert len(list((tmp_path / "out").rglob("*.jpg"))) == 5


def test_an_export_that_can_not_give_each_image_a_path_writes_nothing(tmp_path: Path) -> None:
    """The third image has the path that the second one would get for its key."""
    index = one_image_index(tmp_path, [("k", "a.jpg"), ("k", "a.jpg"), ("n", "a.k.jpg")])
    with pytest.raises(ShardError, match=r"^sample 'k': other samples have its path and 'a\.k\.jpg'.*--encode keep"):
        export(index, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
