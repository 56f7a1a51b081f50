"""The scan of feeder browse."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from feeder.shard.format.open_index import open_index
from feeder.shard.format.set_header import SetHeader
from feeder.tools import cli
from feeder.tools.browse.page_server import make_app
from feeder.tools.browse.scan import Scan, scan_path
from feeder.tools.browse.set_view import SampleChoice, SetView
from feeder.tools.browse.training import Training
from tests.support.images import encode, make_tree, pixels
from tests.support.shard_sets import write_tar
from tests.support.target_data import write_target_folder

TOKEN = "secret-of-the-test"
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """Seven samples: two of equal bytes, one grey, one damaged, one without a caption."""
    grey = pixels(1).convert("L").convert("RGB")
    images = {"a": encode(pixels(0)), "b": encode(grey), "c": encode(pixels(5)), "d": encode(pixels(0))}
    images |= {key: encode(pixels(seed)).ljust(4000, b"\0") for seed, key in enumerate("efg", 2)}  # of one length
    captions = {"a": "A Red bicycle", "b": "a street", "c": HOSTILE, "d": "a wheel", "e": "", "f": "ÄPFEL", "g": "sky"}
    members = [
        member for key in images for member in ((f"{key}.jpg", images[key]), (f"{key}.txt", captions[key].encode()))
    ]
    (tmp_path / "set").mkdir()
    write_tar(tmp_path / "set" / "a.tar", members)
    assert cli.main(["index", str(tmp_path / "set/a.tar"), "-q"]) == 0
    tar = tmp_path / "set/a.tar"
    tar.write_bytes(tar.read_bytes().replace(images["c"], b"no image".ljust(len(images["c"]))))
    return tmp_path / "set"


def view_of(folder: Path) -> SetView:
    return SetView(str(folder), str(folder.parent / "scans"))


def keys(view: SetView, kind: str = "", text: str = "") -> list[str]:
    return [row.key for row in view.rows(SampleChoice(None, text, kind), 0, 60)[0]]


def test_a_scan_finds_damaged_grey_and_duplicate_images_and_searches_captions(tars: Path) -> None:
    before = {path: path.read_bytes() for path in tars.iterdir()}
    view = view_of(tars)
    assert view.scan.done == (0, False)
    assert keys(view, text="bicycle") == []
    view.scan.start()
    view.scan.wait()
    assert view.scan.error == ""
    assert view.scan.done == (7, True)
    assert view.scan.counts() == {"damaged": 1, "grey": 1, "duplicate": 1, "uncaptioned": 1}
    found = {kind: keys(view, kind=kind) for kind in view.scan.counts()}
    assert found == {"damaged": ["c"], "grey": ["b"], "duplicate": ["d"], "uncaptioned": ["e"]}
    assert keys(view, text="red BICYCLE") == ["a"]
    assert keys(view, text="äpfel") == ["f"]
    assert view.rows(SampleChoice(kind="duplicate"), 0, 60)[0][0].notes == "the same bytes as sample 0"
    assert {path: path.read_bytes() for path in tars.iterdir()} == before


@pytest.mark.parametrize("encode_as", ["keep", "seekable"])
def test_damage_is_found_at_the_end_of_tall_images(tmp_path: Path, encode_as: str) -> None:
    (tmp_path / "images/a").mkdir(parents=True)
    for seed in range(2):
        (tmp_path / f"images/a/{seed}.jpg").write_bytes(encode(pixels(seed, 200, 600), quality=95))
    assert cli.main(["shard", str(tmp_path / "images"), "--encode", encode_as, "--no-shuffle", "-q"]) == 0
    index = open_index(tmp_path / "images-shards/index.bin")
    _, offset, length = index.place(1)
    with open(tmp_path / "images-shards/shard-000000.tar", "r+b") as tar:
        tar.seek(offset + length * 93 // 100)
        tar.write(b"\xff\xc0" * 8)
    view = view_of(tmp_path / "images-shards")
    view.scan.start()
    view.scan.wait()
    assert view.scan.of_kind("damaged").tolist() == [1]


def test_masks_of_a_folder_that_are_no_samples_are_not_looked_at(tmp_path: Path) -> None:
    tree = write_target_folder(tmp_path / "images", 5)
    view = SetView(str(tree), str(tmp_path / "scans"), targets=["seg.png"])
    view.scan.start()
    view.scan.wait()
    assert view.scan.done == (5, True)
    assert view.scan.of_kind("grey").size == 0


def test_equal_checksums_of_different_bytes_are_no_duplicates(tars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.tools.browse.scan.crc32", lambda data: 7)
    scan = Scan(str(tars), "x", str(tars.parent / "scans"))
    scan.start()
    scan.wait()
    assert scan.done[1]
    assert scan.of_kind("duplicate").tolist() == [3]


def test_a_scan_that_was_stopped_goes_on_in_the_next_process_and_not_for_other_contents(
    tars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.tools.browse.scan.AT_ONCE", 2)
    first = Scan(str(tars), "one", str(tars.parent / "scans"))
    looked_at = first.look_at

    def stopping(dataset: object, ids: range, names: list[str]) -> None:
        looked_at(dataset, ids, names)
        first.ask_to_stop()

    monkeypatch.setattr(first, "look_at", stopping)
    first.start()
    first.wait()
    assert first.done == (2, False)
    again = Scan(str(tars), "one", str(tars.parent / "scans"))
    again.start()
    again.wait()
    assert again.done == (7, True)
    assert again.of_kind("duplicate").tolist() == [3]
    assert Scan(str(tars), "two", str(tars.parent / "scans")).done == (0, False)
    assert not Path(scan_path(str(tars), "one", str(tars.parent / "scans"))).exists()


def test_captions_are_found_as_far_as_a_scan_has_looked(tars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.tools.browse.set_view.SEARCHED", 2)
    view = view_of(tars)
    page = TestClient(make_app(view, Training(view, 32, None), TOKEN), base_url="http://127.0.0.1:8000")
    page.get("/", params={"token": TOKEN})
    hint = "Captions are searched as far as the"
    assert hint in page.get("/samples", params={"text": "äpfel"}).text
    assert hint not in page.get("/samples").text
    view.scan.start()
    view.scan.wait()
    assert hint not in page.get("/samples", params={"text": "äpfel"}).text
    first = page.get("/samples", params={"text": "äpfel"}).text
    assert "Searched 2 of 7 samples" in first
    assert 'href="/sample/5"' not in page.get("/samples", params={"text": "äpfel", "kind": "grey"}).text
    assert view.rows(SampleChoice(text="äpfel"), 4, 60) == ([view.row(5)], 6)


def test_versions_of_a_set_are_scanned_apart(tmp_path: Path) -> None:
    make_tree(tmp_path / "images", 1, 3)
    make_tree(tmp_path / "more", 1, 2, first_seed=70)
    assert cli.main(["shard", str(tmp_path / "images"), "--out", str(tmp_path / "set"), "-q"]) == 0
    first = view_of(tmp_path / "set")
    first.scan.start()
    first.scan.wait()
    assert cli.main(["append", str(tmp_path / "set"), str(tmp_path / "more"), "-q"]) == 0
    newest = view_of(tmp_path / "set")
    assert (len(newest), newest.scan.done) == (5, (0, False))
    earlier = SetView(str(tmp_path / "set"), str(tmp_path / "scans"), version=1)
    assert (len(earlier), earlier.scan.done) == (3, (3, True))
    newest.scan.start()
    newest.scan.wait()
    assert newest.scan.done == (5, True)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_scan_without_a_file_is_in_memory_and_the_page_says_so(
    is_damaged: bool, tars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache's folder can't be made, or the file there is no database."""
    cache = tars.parent / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    if is_damaged:
        place = Path(scan_path(str(tars), SetHeader(str(tars / "index.bin")).hash.hex()))
        place.parent.mkdir(parents=True)
        place.write_bytes(b"no database" * 100)
    else:
        cache.write_bytes(b"")
    view = SetView(str(tars))
    page = TestClient(make_app(view, Training(view, 32, None), TOKEN), base_url="http://127.0.0.1:8000")
    text = page.get("/", params={"token": TOKEN}).text
    assert "is not kept when feeder browse ends" in text
    assert ("file is not a database" if is_damaged else "Not a directory") in text
    view.scan.start()
    view.scan.wait()
    assert keys(view, kind="damaged") == ["c"]
    assert view_of(tars).scan.not_kept == ""


@pytest.mark.parametrize("error", [sqlite3.OperationalError("database or disk is full"), OSError(5, "I/O error")])
def test_a_scan_that_cannot_write_says_so(error: Exception, tars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_of(tars)

    def failing(dataset: object, ids: range, names: list[str]) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(view.scan, "look_at", failing)
        view.scan.start()
        view.scan.wait()
    assert str(error) in view.scan.error
    assert "make room there" in view.scan.error
    view.scan.start()
    view.scan.wait()
    assert (view.scan.error, view.scan.done) == ("", (7, True))


def test_nobody_else_starts_a_scan(tars: Path) -> None:
    view = view_of(tars)
    app = make_app(view, Training(view, 32, None), TOKEN)
    stranger = TestClient(app, base_url="http://127.0.0.1:8000", follow_redirects=False)
    assert stranger.post("/scan/start").status_code == 403
    assert view.scan.done == (0, False)
    assert stranger.get("/", params={"token": TOKEN}).status_code == 303
    assert stranger.get("/scan/start").status_code == 405
    for site in ("same-site", "cross-site", "none"):  # a server on another port is of the same site
        assert stranger.post("/scan/start", headers={"Sec-Fetch-Site": site}).status_code == 403
    for origin in (
        "http://127.0.0.1:9000",
        "http://evil.example",
        "http://127.0.0.1:8000.evil.example",
        "null",
        "",
        "[",
    ):
        assert stranger.post("/scan/start", headers={"Origin": origin}).status_code == 403
    assert not view.scan.is_running
    assert stranger.post("/scan/start", headers={"Origin": "http://127.0.0.1:8000"}).status_code != 403
    view.scan.wait()
    assert stranger.post("/scan/close").status_code == 404
