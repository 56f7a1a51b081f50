"""Samples are taken out of a set for good: ids stay, bytes go from all versions, and substitutes stand in."""

from __future__ import annotations

import io
import itertools
import json
import pickle
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, FormatError, LockedError, ShardError
from feeder.loader.dataloader import DataLoader
from feeder.shard.format.open_index import open_index
from feeder.shard.format.set_index import SetIndex
from feeder.shard.write.index_tars import index_tars
from feeder.shard.write.set_append import append
from feeder.shard.write.set_takedown import takedown
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.system.files import exclusive_lock
from feeder.tools.cli import main
from feeder.tools.exported_images import export
from feeder.tools.verify import verify
from feeder.transforms import Compose, Resize
from tests.support.images import encode, pixels
from tests.support.interrupted_runs import takedown_killed_at
from tests.support.remote import Bucket
from tests.support.shard_sets import contents, kept, write_tar

RECIPE = Compose([Resize((8, 8))])


def images(folder: Path, seed: int, count: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(count):
        (folder / f"portrait of {seed + k}.jpg").write_bytes(encode(pixels(seed + k, 40 + 8 * k, 33)))
    return folder.parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A set of two versions: ten samples in three shards, and three more in a fourth."""
    images(tmp_path / "images" / "a", 0, 5)
    images(tmp_path / "images" / "b", 10, 5)
    shard(str(tmp_path / "images"), str(tmp_path / "set"), kept(samples_per_shard=4))
    images(tmp_path / "more" / "b", 20, 3)
    append(str(tmp_path / "set"), str(tmp_path / "more"), ShardOptions())
    return tmp_path / "set"


def rows(place: Any, **options: Any) -> list[tuple[bytes, int, str, str]]:
    """Pixels, label, key and path of each sample."""
    dataset = ShardDataset(place, RECIPE, ["key", "path"], **options)
    return [(image.numpy().tobytes(), *rest) for image, *rest in (dataset[i] for i in range(len(dataset)))]


def payloads(folder: Path, keys: list[str]) -> list[bytes]:
    """The images and paths of some samples as they are stored."""
    index = open_index(folder / "index.bin")
    found = []
    for i in range(len(index)):
        if index.key(i) in keys:
            number, offset, length = index.place(i)
            data = Path(index.shard_path(number)).read_bytes()[offset : offset + length]
            found += [data[16:], index.source_path(i).encode()]
    return found


def test_the_bytes_go_from_all_versions_and_the_ids_stay(folder: Path) -> None:
    before, first = rows(folder), rows(folder, version=1)
    keys = [before[i][2] for i in (1, 6, 12)]
    gone = payloads(folder, keys)
    assert len(gone) == 6
    fingerprint = ShardDataset(folder).reader.fingerprint()
    summary = takedown(str(folder), keys)
    assert (summary.samples, summary.shards, summary.versions, summary.duplicates) == (3, 3, [1, 2], [])
    assert ShardDataset(folder).reader.fingerprint() == fingerprint
    assert verify(str(folder)) == []
    for path in folder.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        assert not any(part in data for part in gone), path
    after = rows(folder)
    assert [after[i] for i in range(13) if i not in (1, 6, 12)] == [before[i] for i in range(13) if i not in (1, 6, 12)]
    starts = [0, 4, 8, 10, 13]
    for i in (1, 6, 12):
        (own,) = (range(a, b) for a, b in itertools.pairwise(starts) if a <= i < b)
        assert after[i] in [before[j] for j in own if j not in (1, 6, 12)]
    assert rows(folder, version=1) == [after[i] if i in (1, 6) else row for i, row in enumerate(first)]
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == [".lock"]


def test_a_run_goes_on_with_its_state(folder: Path) -> None:
    def loader() -> DataLoader:
        return DataLoader(ShardDataset(folder, RECIPE, ["index"]), 3, shuffle=True, seed=4)

    run = loader()
    expected = [ids.tolist() for *_, ids in run]
    iterator = iter(loader_begun := loader())
    next(iterator)
    state = loader_begun.state_dict()
    takedown(str(folder), [rows(folder)[3][2]])
    again = loader()
    again.load_state_dict(state)
    assert [ids.tolist() for *_, ids in again] == expected[1:]


def test_a_loader_that_is_open_meanwhile_says_so(folder: Path) -> None:
    loader = DataLoader(ShardDataset(folder, RECIPE, ["key"]), 1)
    iterator = iter(loader)
    next(iterator)
    takedown(str(folder), [ShardDataset(folder, RECIPE, ["key"])[9][-1]])
    with pytest.raises(FormatError, match=r"samples were taken down since then\. Create the dataset again"):
        list(iterator)
    state = loader.state_dict()
    again = DataLoader(ShardDataset(folder, RECIPE, ["key"]), 1)
    again.load_state_dict(state)
    assert len(list(again)) == 13 - state["consumed"]


def test_a_dataset_that_was_sent_to_a_worker_before_names_the_takedown(folder: Path) -> None:
    sent = pickle.dumps(ShardDataset(folder, RECIPE, ["key"]))
    takedown(str(folder), [rows(folder)[3][2]])
    with pytest.raises(FormatError, match=r"replaced .* while it was in use, as by `feeder takedown`"):
        len(pickle.loads(sent))


def test_a_substitute_that_goes_is_replaced_and_keys_may_be_named_again(folder: Path) -> None:
    before = rows(folder)
    takedown(str(folder), [before[0][2]])
    stand_in = rows(folder)[0][2]
    summary = takedown(str(folder), [before[0][2], stand_in])
    assert (summary.samples, summary.already) == (1, 1)
    after = rows(folder)
    assert {row[2] for row in after} == {row[2] for row in before} - {before[0][2], stand_in}
    assert verify(str(folder)) == []
    assert takedown(str(folder), [before[0][2], stand_in]).already == 2
    index = open_index(folder / "index.bin")
    assert isinstance(index, SetIndex)
    assert index.header.info.taken_down == 2
    left = [row[2] for row in after[:4] if row[2] != after[0][2]]
    assert takedown(str(folder), [left[0]]).samples == 1  # one of this shard is left


def test_readers_of_tars_pass_over_what_went_and_exports_leave_it_out(folder: Path, tmp_path: Path) -> None:
    before = rows(folder)
    size = (folder / "shard-000000.tar").stat().st_size
    takedown(str(folder), [before[1][2]])
    assert (folder / "shard-000000.tar").stat().st_size == size
    with tarfile.open(folder / "shard-000000.tar") as tar:
        names = [member.name for member in tar]
        (erased, *_) = [tar.extractfile(member) for member in tar if member.name == "__taken-down__"]
        assert erased is not None
        assert not erased.read().strip(b"\0")
    assert [name for name in names if name.startswith(before[1][2])] == []
    assert names.count("__taken-down__") == 2  # its image and its label
    summary = export(str(folder), str(tmp_path / "out"))
    assert summary.unpacked + summary.stored == 12


def test_added_samples_may_follow(folder: Path, tmp_path: Path) -> None:
    before = rows(folder)
    takedown(str(folder), [before[1][2]])
    images(tmp_path / "third" / "a", 30, 2)
    append(str(folder), str(tmp_path / "third"), ShardOptions())
    index = open_index(folder / "index.bin")
    assert isinstance(index, SetIndex)
    assert (len(index), index.header.info.taken_down, index.header.info.version) == (15, 1, 3)
    assert verify(str(folder)) == []


@pytest.mark.slow
def test_a_takedown_that_is_killed_at_any_moment_is_finished_by_the_next(folder: Path, tmp_path: Path) -> None:
    keys = [rows(folder)[i][2] for i in (1, 6)]
    shutil.copytree(folder, tmp_path / "whole")
    takedown(str(tmp_path / "whole"), keys)
    expected = {name: digest for name, digest in contents(tmp_path / "whole").items() if not name.startswith(".")}
    recorded = set()
    for step in range(0, 80, 3):
        out = tmp_path / f"killed {step}"
        shutil.copytree(folder, out)
        was_killed = takedown_killed_at(step, keys, out)
        recorded.add((out / "takedown.json").exists())
        if (out / "takedown.json").exists():
            with pytest.raises(ShardError, match="run `feeder takedown"):
                append(str(out), str(tmp_path / "more"), ShardOptions())
            assert main(["takedown", str(out)]) == 0
        else:
            takedown(str(out), keys)
        found = {n: d for n, d in contents(out).items() if not n.startswith(".") and not n.endswith(".tmp")}
        assert found == expected
        if not was_killed:
            break
    assert recorded == {True, False}
    assert not was_killed


def test_a_set_in_a_store_gets_the_files_of_a_local_one(folder: Path, tmp_path: Path, bucket: Bucket) -> None:
    bucket.upload(folder, "set")
    url, keys = f"{bucket.url}/set", [rows(folder)[i][2] for i in (1, 12)]
    cached = rows(url, cache_dir=tmp_path / "cache")
    gone = payloads(folder, keys)
    summary = takedown(url, keys)
    assert any("old versions" in line for line in summary.left)
    takedown(str(folder), keys)
    local = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != ".lock"}
    assert {k.removeprefix("set/"): bucket.get(k) for k in bucket.keys() if not k.endswith(".lock")} == local  # noqa: SIM118
    after = rows(url, cache_dir=tmp_path / "cache")
    assert after == rows(folder) != cached
    for path in (tmp_path / "cache").rglob("*"):
        assert not (path.is_file() and any(part in path.read_bytes() for part in gone)), path


@pytest.mark.slow
def test_a_takedown_in_a_store_that_is_killed_at_any_request_is_finished_by_the_next(
    folder: Path, bucket: Bucket
) -> None:
    before, keys = rows(folder), [rows(folder)[i][2] for i in (1, 12)]
    gone = payloads(folder, keys)
    bucket.upload(folder, "whole")
    takedown(f"{bucket.url}/whole", keys)
    expected = _objects(bucket, "whole")
    was_killed, recorded = True, set()
    for step in itertools.count(0, 2):
        place = f"{bucket.url}/killed-{step}"
        bucket.upload(folder, f"killed-{step}")
        was_killed = takedown_killed_at(step, keys, place)
        found = _objects(bucket, f"killed-{step}")
        recorded.add("takedown.json" in found)
        takedown(place, () if "takedown.json" in found else keys)
        after = _objects(bucket, f"killed-{step}")
        assert after == expected
        assert not any(part in data for part in gone for data in after.values())
        if not was_killed:
            break
    assert recorded == {True, False}
    assert step > 4
    assert len(rows(place)) == len(before)


def _objects(bucket: Bucket, prefix: str) -> dict[str, bytes]:
    """The objects of a set, by their names in it, without its lock."""
    keys = [key for key in bucket.keys() if key.startswith(f"{prefix}/") and not key.endswith(".lock")]  # noqa: SIM118
    return {key.removeprefix(f"{prefix}/"): bucket.get(key) for key in keys}


def test_tars_from_elsewhere_lose_long_names_too(tmp_path: Path) -> None:
    name = "person-" + "x" * 120
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for k, stem in enumerate(("first", name, "third")):
            for field, data in ((".jpg", encode(pixels(k))), (".txt", f"a caption of {k}".encode())):
                info = tarfile.TarInfo(f"{stem}{field}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    index_tars(str(tmp_path / "a.tar"))
    before = rows(tmp_path)
    takedown(str(tmp_path), [name])
    assert b"person-" not in (tmp_path / "a.tar").read_bytes()
    assert b"a caption of 1" not in (tmp_path / "a.tar").read_bytes()
    assert verify(str(tmp_path)) == []
    assert [row[:2] for i, row in enumerate(rows(tmp_path)) if i != 1] == [before[0][:2], before[2][:2]]
    assert rows(tmp_path)[1][2] in ("first", "third")


def test_samples_with_the_same_bytes_are_named(tmp_path: Path) -> None:
    image = encode(pixels(1))
    write_tar(
        tmp_path / "a.tar", [(f"{key}.jpg", image if key in "ad" else encode(pixels(ord(key)))) for key in "abcd"]
    )
    index_tars(str(tmp_path / "a.tar"))
    assert takedown(str(tmp_path), ["a"]).duplicates == ["d"]


def test_nothing_is_changed_where_a_takedown_is_refused(folder: Path, tmp_path: Path) -> None:
    before, keys = contents(folder), [row[2] for row in rows(folder)]
    with pytest.raises(ArgumentError, match=r"has no sample with 1 of these keys: 'nobody'; nothing was changed"):
        takedown(str(folder), [keys[0], "nobody"])
    with pytest.raises(ShardError, match=r"all 4 samples of this shard would go"):
        takedown(str(folder), keys[:4])
    with pytest.raises(ArgumentError, match=r"no keys were given, and there is no interrupted takedown"):
        takedown(str(folder))
    (folder / ".work").mkdir(exist_ok=True)
    (folder / ".work/plan.json").write_text("{}")
    with pytest.raises(ShardError, match="run the same `feeder append` again"):
        takedown(str(folder), keys[:1])
    shutil.rmtree(folder / ".work")
    (folder / ".lock").rename(tmp_path / "lock")
    (folder / ".lock").mkdir()
    with pytest.raises(ShardError, match=r"\.lock: Is a directory; fix this and run the same command again"):
        takedown(str(folder), keys[:1])
    (folder / ".lock").rmdir()
    (tmp_path / "lock").rename(folder / ".lock")
    with exclusive_lock(str(folder / ".lock")), pytest.raises(LockedError, match=r"wait until it is done$"):
        takedown(str(folder), keys[:1])
    data = bytearray((folder / "shard-000000.tar").read_bytes())
    data[700] ^= 1
    (folder / "shard-000000.tar").write_bytes(data)
    with pytest.raises(ShardError, match="does not match its checksums from byte 0 on"):
        takedown(str(folder), keys[:1])
    data[700] ^= 1
    (folder / "shard-000000.tar").write_bytes(data)
    assert {name: digest for name, digest in contents(folder).items() if name != "takedown.json"} == before
    with pytest.raises(FormatError, match="is not a shard set"):
        takedown(str(tmp_path), [])


def test_the_command_says_what_it_did_and_what_it_can_not_reach(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [row[2] for row in rows(folder)]
    (tmp_path / "keys.txt").write_text(f"{keys[5]}\n\n{keys[6]}\n")
    assert main(["takedown", str(folder), keys[0], "--from", str(tmp_path / "keys.txt"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["samples"], found["shards"]) == (3, 2)
    assert main(["takedown", str(folder), keys[0], keys[7]]) == 0
    out = capsys.readouterr().out
    assert "took down 1 sample, in 1 shard" in out
    assert "1 key had been taken down before" in out
    assert "out of reach of this command" in out
    assert "snapshots and backups of the disk" in out
    assert all(len(line) <= 80 for line in out.splitlines()[1:])
    assert main(["inspect", str(folder)]) == 0
    assert "taken down  4, in whose places others stand" in capsys.readouterr().out
    assert main(["takedown", str(folder), "--from", str(tmp_path / "none")]) == 2


def test_packed_images_with_fields_and_targets_go(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["path,score,note"]
    (tmp_path / "images").mkdir()
    for k in range(6):
        (tmp_path / "images" / f"{k}.jpg").write_bytes(encode(pixels(k, 64, 48)))
        lines.append(f"images/{k}.jpg,{rng.random():.3f},note of number {k}")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    out = tmp_path / "set"
    arguments = [str(tmp_path / "table.csv"), "--target-column", "score", "--encode", "packed", "--out", str(out), "-q"]
    assert main(["shard", *arguments]) == 0
    before = [ShardDataset(out, RECIPE, ["key", "path"])[i][1:] for i in range(6)]
    takedown(str(out), [before[2][1]])
    after = [ShardDataset(out, RECIPE, ["key", "path"])[i][1:] for i in range(6)]
    assert after[2] in before
    assert after[2] != before[2]
    assert verify(str(out), deep=True) == []
    note = f"note of number {before[2][2][-5]}".encode()
    data = next(out.glob("*.tar")).read_bytes()
    assert b"note of number" in data
    assert note not in data
