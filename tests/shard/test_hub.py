"""Datasets on the Hugging Face Hub, against a stand-in of its API: the real one was never asked."""

from __future__ import annotations

import io
import json
import pickle
import re
import stat
import tarfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch

import feeder
from feeder import transforms as T
from feeder.errors import ArgumentError, ChoiceError, NotFoundError, ShardError, SourceError, StoreError
from feeder.shard.source.table_file import ManifestColumns
from feeder.shard.store.open_store import open_store
from feeder.shard.store.store import Store
from feeder.shard.write.index_tars import index_tars
from feeder.shard.write.sharding import shard
from tests.support.documents import block
from tests.support.hub_server import TOKEN, HubServer
from tests.support.images import encode, make_tree, pixels
from tests.support.ranks import run_ranks
from tests.support.remote import without_proxies
from tests.support.remote_sets import end_fetchers, make_set
from tests.support.tls import write_certificates

RECIPE = [T.Resize((32, 32))]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority and its certificates, which huggingface_hub reads once a process."""
    folder = tmp_path_factory.mktemp("certificates")
    write_certificates(folder, folder / "authority.pem")
    return folder


@pytest.fixture
def hub(certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub, to which the environment leads, with caches of the test's own."""
    without_proxies(monkeypatch)
    server = HubServer(certificates, "org/name")
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    found = {"HF_ENDPOINT": server.endpoint, "SSL_CERT_FILE": certificates / "authority.pem"}
    for name, value in (found | {"XDG_CACHE_HOME": tmp_path / "cache", "HF_HOME": tmp_path / "hf"}).items():
        monkeypatch.setenv(name, str(value))
    with end_fetchers(tmp_path):
        yield server
    server.close()


def _tar(first: int, samples: int = 4) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for number in range(first, first + samples):
            for name, content in (("jpg", encode(pixels(number, 64, 48))), ("cls", b"%d" % (number % 3))):
                info = tarfile.TarInfo(f"{number:03d}.{name}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return data.getvalue()


TARS = {"data/train-000.tar": _tar(0), "data/train-001.tar": _tar(4), "data/val-000.tar": _tar(8), "README.md": b"# It"}


def _labels(path: str) -> list[int]:
    dataset = feeder.ShardDataset(path, RECIPE)
    return [dataset[k][1] for k in range(len(dataset))]


def test_tars_load_after_one_listing_and_resume_at_their_commit(hub: HubServer) -> None:
    commit = hub.push(TARS)
    url = "hf://datasets/org/name/data/train-*.tar"

    dataset = feeder.ShardDataset(url, RECIPE)
    assert dataset.reader.place == f"hf://datasets/org/name@{commit}/data"
    assert [dataset[k][1] for k in range(len(dataset))] == [k % 3 for k in range(8)]
    loader = feeder.DataLoader(dataset, batch_size=2, shuffle="full", seed=1, num_workers=0)
    first = [labels.tolist() for _, labels in loader]
    again = feeder.DataLoader(feeder.ShardDataset(url, RECIPE), batch_size=2, shuffle="full", seed=1, num_workers=0)
    batches = iter(again)
    next(batches)
    state = again.state_dict()
    del batches

    later = hub.push({"data/train-000.tar": _tar(20)})
    at_commit = url.replace("name/", f"name@{commit}/")
    assert state["hub"] == [at_commit]
    resumed = feeder.DataLoader(
        feeder.ShardDataset(at_commit, RECIPE), batch_size=2, shuffle="full", seed=1, num_workers=0
    )
    resumed.load_state_dict(state)
    assert [labels.tolist() for _, labels in resumed] == first[1:]
    assert sum("blobs" in path for path, _ in hub.asked) == 1
    assert len(feeder.ShardDataset(url, RECIPE)) == 4
    moved = feeder.DataLoader(feeder.ShardDataset(url, RECIPE), batch_size=2, shuffle="full", seed=1, num_workers=0)
    at_later = at_commit.replace(commit, later)
    message = f"made at {at_commit}, and the dataset is at {at_later}: open {at_commit}"
    with pytest.raises(ArgumentError, match=re.escape(message)):
        moved.load_state_dict(state)


def test_a_mixture_resumes_at_the_commits_that_its_state_has_by_source(hub: HubServer, tmp_path: Path) -> None:
    commit = hub.push(TARS)
    url = "hf://datasets/org/name/data"
    make_tree(tmp_path / "images", 2, 5)

    def loader(web: str) -> feeder.DataLoader:
        sources = {"own": feeder.FolderDataset(tmp_path / "images", RECIPE), "web": feeder.ShardDataset(web, RECIPE)}
        return feeder.DataLoader(feeder.Mixture(sources, samples=30), 4, shuffle="full", seed=1, num_workers=0)

    whole, first = loader(url), loader(url)
    expected = [[labels.tolist(), source.tolist()] for _, labels, source in whole]
    assert {number for _, sources in expected for number in sources} == {0, 1}
    next(iter(first))
    state = json.loads(json.dumps(first.state_dict()))
    assert state["hub"] == {"web": [f"hf://datasets/org/name@{commit}/data"]}

    later = hub.push({"data/train-000.tar": _tar(20)})
    message = f"made at {state['hub']['web'][0]}, and the dataset is at hf://datasets/org/name@{later}/data: open hf"
    with pytest.raises(ArgumentError, match=message):
        loader(url).load_state_dict(state)
    resumed = loader(state["hub"]["web"][0])
    resumed.load_state_dict(state)
    assert [[labels.tolist(), source.tolist()] for _, labels, source in resumed] == expected[1:]


def test_a_folder_and_a_pattern_have_an_index_each(hub: HubServer) -> None:
    hub.push(TARS)
    assert len(_labels("hf://datasets/org/name/data")) == 12
    assert len(_labels("hf://datasets/org/name/data/train-{000..001}.tar")) == 8
    assert len(_labels("hf://datasets/org/name@main/data/val-000.tar")) == 4


def test_a_set_of_feeder_in_a_repository_needs_no_index(hub: HubServer, tmp_path: Path) -> None:
    folder = make_set(tmp_path, shards=2)
    hub.push({f"sets/{path.name}": path.read_bytes() for path in folder.iterdir() if path.is_file()})
    dataset = feeder.ShardDataset("hf://datasets/org/name/sets", RECIPE)
    local = feeder.ShardDataset(folder, RECIPE)
    assert len(dataset) == len(local)
    assert [dataset[k][1] for k in range(len(dataset))] == [local[k][1] for k in range(len(local))]
    assert not list((tmp_path / "cache/feeder/hub").rglob("*.bin"))


_OPEN = """
import sys, json, feeder
print(json.dumps(len(feeder.ShardDataset(json.loads(sys.argv[1])))))
"""


def test_of_several_processes_one_makes_the_index(hub: HubServer) -> None:
    commit = hub.push(TARS)
    url = f"hf://datasets/org/name@{commit}/data"
    assert run_ranks(_OPEN, [url] * 3) == [12] * 3
    assert sum("blobs" in path for path, _ in hub.asked) == 1
    before = len(hub.fetched)
    assert len(feeder.ShardDataset(url, RECIPE)) == 12
    assert len(hub.fetched) == before


def test_busy_answers_and_expired_links_are_waited_out(hub: HubServer) -> None:
    hub.push(TARS)
    hub.busy = 3
    store = open_store("hf://datasets/org/name/data")
    hub.busy, hub.expired = 2, 1
    assert bytes(store.get("val-000.tar", 0, 512)) == TARS["data/val-000.tar"][:512]
    hub.expired = 3
    assert bytes(store.get("val-000.tar", 512, 1024)) == TARS["data/val-000.tar"][512:1024]
    assert b"".join(store.pieces("val-000.tar", 0, 2048)) == TARS["data/val-000.tar"][:2048]


def test_of_many_that_read_a_file_one_asks_where_it_lies(hub: HubServer) -> None:
    hub.push(TARS)
    store = open_store("hf://datasets/org/name/data")
    together = threading.Barrier(8)

    def read(number: int) -> bytes:
        together.wait()
        return bytes(store.get("val-000.tar", 512 * number, 512 * (number + 1)))

    for links in (1, 2):
        with ThreadPoolExecutor(8) as readers:
            assert b"".join(readers.map(read, range(8))) == TARS["data/val-000.tar"][:4096]
        assert sum(path.endswith("val-000.tar") for path, _ in hub.asked) == links
        hub.expired = links


def test_a_gated_dataset_gives_its_token_to_the_hub_alone(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push(TARS | {"small.txt": b"from the hub itself"})
    hub.refusal = "GatedRepo"
    with pytest.raises(StoreError, match="is gated: set HF_TOKEN or run `hf auth login`"):
        feeder.ShardDataset("hf://datasets/org/name/data", RECIPE)

    monkeypatch.setenv("HF_TOKEN", TOKEN)
    dataset = feeder.ShardDataset("hf://datasets/org/name/data", RECIPE)
    assert len(dataset) == 12
    assert bytes(open_store("hf://datasets/org/name").get("small.txt")) == b"from the hub itself"
    assert {token for _, token in hub.fetched} == {None}
    loader = feeder.DataLoader(dataset, batch_size=4, num_workers=0)
    shown = repr(loader.state_dict()) + repr(dataset) + repr(pickle.dumps(dataset))
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert TOKEN not in shown
    assert kept
    assert all(TOKEN.encode() not in path.read_bytes() for path in kept)
    folders = [path for path in (tmp_path / "cache/feeder").iterdir() if path.name != "hub"]
    folders += (tmp_path / "cache/feeder/hub").iterdir()
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}

    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    with pytest.raises(StoreError, match="HF_TOKEN") as refused:
        open_store(dataset.reader.place).get("val-000.tar", 0, 512)
    assert "somebody" not in str(refused.value)


@pytest.mark.parametrize(
    ("refusal", "message"), [("GatedRepo", "is gated"), ("RepoNotFound", "no such dataset, or it is private")]
)
def test_what_one_token_has_listed_and_read_no_other_token_sees(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, refusal: str, message: str
) -> None:
    commit = hub.push(TARS)
    hub.refusal = refusal
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    url = f"hf://datasets/org/name@{commit}/data"
    assert _labels(url) == [k % 3 for k in range(12)]

    for token in ("hf_of_somebody_else", ""):
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(StoreError, match=message):
            feeder.ShardDataset(url, RECIPE)
        with pytest.raises(StoreError, match=message):
            list(open_store(url).list())


def test_without_encryption_the_token_stays_here(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_ENDPOINT", hub.plain_endpoint)
    with pytest.raises(StoreError, match="is without encryption"):
        open_store("hf://datasets/org/name")
    hub.push(TARS)
    open_store("hf://datasets/org/name", allow_http=True)
    assert hub.asked == [("/api/datasets/org/name/revision/main", None)]


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("hf://datasets/org", ArgumentError, "expected a dataset's repository, hf://datasets/ORG/NAME"),
        ("hf://models/org/name", ArgumentError, "expected a dataset's repository"),
        ("hf://datasets/org/name@main/../x", ArgumentError, "is not the name of an object"),
        ("hf://datasets/org/other", NotFoundError, "there is no such dataset, or it is private: set HF_TOKEN"),
        ("hf://datasets/org/name@v9", NotFoundError, "has no revision 'v9'"),
        ("hf://datasets/org/name/none", SourceError, "holds no object"),
        ("hf://datasets/org/name/*/train-000.tar", SourceError, "may stand in the last part only"),
        ("hf://datasets/org/name/data/no-*.tar", SourceError, "names no object"),
    ],
)
def test_what_is_not_there_is_said(hub: HubServer, url: str, error: type[Exception], message: str) -> None:
    hub.push(TARS)
    with pytest.raises(error, match=message):
        feeder.ShardDataset(url, RECIPE)


def test_offline_the_hubs_own_cache_serves(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = hub.push(TARS)
    folder = tmp_path / "hf/hub/datasets--org--name"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text(commit)
    place = folder / "snapshots" / commit / "data"
    place.mkdir(parents=True)
    (place / "val-000.tar").write_bytes(TARS["data/val-000.tar"])

    def read() -> tuple[bytes, str]:
        store: Store = open_store("hf://datasets/org/name/data")
        with pytest.raises(StoreError, match="HF_HUB_OFFLINE is set: download it before") as refused:
            store.get("train-000.tar", 0, 10)
        return bytes(store.get("val-000.tar", 0, 512)), str(refused.value)

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf/hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf/hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # of the process that fetches
    assert read()[0] == TARS["data/val-000.tar"][:512]
    assert _labels("hf://datasets/org/name/data") == [k % 3 for k in range(8, 12)]
    with pytest.raises(StoreError, match="download it before, by `hf download --repo-type dataset org/name`"):
        feeder.ShardDataset(f"hf://datasets/org/name@{'0' * 40}/data", RECIPE)
    assert hub.asked == []


def parquet_files() -> dict[str, bytes]:
    """Returns two Parquet files of three images each, of cats and dogs, as of the Hub."""
    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    schema = pyarrow.schema(
        [
            ("image", pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])),
            ("label", pyarrow.int64()),
        ],
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )
    files = {}
    for k in range(2):
        rows = [{"image": {"bytes": encode(pixels(3 * k + n)), "path": f"{n}.jpg"}, "label": n % 2} for n in range(3)]
        data = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), data)
        files[f"data/train-{k:05d}-of-00002.parquet"] = data.getvalue()
    return files


def test_parquet_files_are_sharded_with_their_class_names(hub: HubServer, tmp_path: Path) -> None:
    hub.push(parquet_files())
    shard("hf://datasets/org/name/data/train-*.parquet", str(tmp_path / "set"))
    dataset = feeder.ShardDataset(tmp_path / "set", RECIPE)
    assert dataset.classes == ["cat", "dog"]
    assert len(dataset) == 6


@pytest.mark.parametrize("branch", ["refs/convert/parquet", "refs%2Fconvert%2Fparquet", "refs/pr/7"])
def test_a_branch_of_the_hubs_own_is_named_as_the_hub_names_it(hub: HubServer, tmp_path: Path, branch: str) -> None:
    files = {f"default/{name.replace('data/', '')}": data for name, data in parquet_files().items()}
    hub.push(files | {"default/._train.parquet": b"of macOS"}, branch.replace("%2F", "/"))
    shard(f"hf://datasets/org/name@{branch}/default/", str(tmp_path / "set"))
    dataset = feeder.ShardDataset(tmp_path / "set", RECIPE)
    assert (len(dataset), dataset.classes) == (6, ["cat", "dog"])


def test_tables_of_several_splits_are_asked_about(hub: HubServer, tmp_path: Path) -> None:
    files = parquet_files()
    hub.push(files | {name.replace("train", "test"): data for name, data in files.items()})
    with pytest.raises(ChoiceError, match="several splits; choose") as asked:
        shard("hf://datasets/org/name/data", str(tmp_path / "set"))
    url = "hf://datasets/org/name/data"
    assert sorted(asked.value.args[1]) == [(f"'{url}/test-*.parquet'", ""), (f"'{url}/train-*.parquet'", "")]
    shard(f"{url}/test-*.parquet", str(tmp_path / "set"))
    assert len(feeder.ShardDataset(tmp_path / "set", RECIPE)) == 6


def test_folders_of_images_are_sharded(hub: HubServer, tmp_path: Path) -> None:
    hub.push(
        {f"images/{name}/{k}.jpg": encode(pixels(k)) for name in ("a", "b") for k in range(3)} | {"README.md": b"x"}
    )
    shard("hf://datasets/org/name/images", str(tmp_path / "set"))
    dataset = feeder.ShardDataset(tmp_path / "set", RECIPE)
    assert (len(dataset), dataset.classes) == (6, ["a", "b"])


def test_an_index_is_made_on_request(hub: HubServer) -> None:
    commit = hub.push(TARS)
    made = index_tars("hf://datasets/org/name/data")
    assert (made.path, made.samples) == (f"hf://datasets/org/name@{commit}/data/index.bin", 12)
    before = len(hub.fetched)
    assert len(feeder.ShardDataset("hf://datasets/org/name/data", RECIPE)) == 12
    assert index_tars("hf://datasets/org/name/data", columns=ManifestColumns()).samples == 12
    assert len(hub.fetched) == before
    with pytest.raises(SourceError, match="depth"):
        index_tars("hf://datasets/org/name/data", image_field="depth.png")
    with pytest.raises(ShardError, match="lies in the cache; leave --out out"):
        index_tars("hf://datasets/org/name/data", "index.bin")


def test_a_wait_that_is_asked_for_and_is_longer_than_the_patience_is_an_error(hub: HubServer) -> None:
    hub.push(TARS)
    store = open_store("hf://datasets/org/name/data", timeout=600)
    assert store.size("val-000.tar").size_bytes == len(TARS["data/val-000.tar"])
    hub.busy, hub.retry_after = 1000, 10**6
    with pytest.raises(StoreError, match="it asks to wait for 1000000 s"):
        store.get("val-000.tar", 0, 512)


def test_a_busy_hub_is_asked_again_when_it_says(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.push(TARS)
    store = open_store("hf://datasets/org/name/data", timeout=600)
    hub.busy, hub.retry_after = 1, 60  # longer than is waited for a first answer
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    assert bytes(store.get("val-000.tar", 0, 512)) == TARS["data/val-000.tar"][:512]
    assert waits == [60]


def test_a_folder_of_images_is_that_of_its_commit(hub: HubServer) -> None:
    images = {f"images/{name}/{k}.png": encode(pixels(k), "PNG") for name in ("a", "b") for k in range(3)}
    hub.push(images)
    dataset = feeder.FolderDataset("hf://datasets/org/name/images", RECIPE)
    before = [dataset[k][0] for k in range(6)]
    assert dataset.classes == ["a", "b"]

    changed = {**images, "images/a/0.png": images["images/a/1.png"], "images/a/1.png": images["images/a/0.png"]}
    hub.push(changed)
    again = feeder.FolderDataset("hf://datasets/org/name/images", RECIPE)
    after = [again[k][0] for k in range(6)]
    assert all(torch.equal(after[k], before[found]) for k, found in enumerate((1, 0, 2, 3, 4, 5)))
    assert torch.equal(dataset[0][0], before[0])


def test_the_example_of_the_docs_runs(hub: HubServer) -> None:
    hub.push(TARS)
    code = block("docs/remote.md", "hf://datasets").replace("num_workers=8", "num_workers=0")
    seen: list[int] = []
    exec(code, {"train_step": lambda images, labels: seen.extend(labels.tolist())})
    assert sorted(seen) == sorted(k % 3 for k in range(8))
