"""feeder browse: the pages of a set, for its user alone."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import signal
import struct
import subprocess
import urllib.request
import zlib
from collections.abc import Iterator
from html import unescape
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest
import torch
from PIL import Image, ImageFilter, ImageOps
from starlette.testclient import TestClient

import feeder
from feeder.errors import FeederError
from feeder.shard.format.shard_index import ShardIndex
from feeder.tools import cli
from feeder.tools.browse.page_server import make_app
from feeder.tools.browse.pictures import Overlays
from feeder.tools.browse.set_view import SampleChoice, SetView
from feeder.tools.browse.training import Training
from feeder.tools.presets import open_dataset, preset
from feeder.tools.replayed_run import targets_of
from feeder.transforms import (
    BUCKET,
    MixUp,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomShortestSize,
    SanitizeBoundingBoxes,
    SanitizeKeyPoints,
    Views,
)
from feeder.transforms.op import Op
from tests.support.images import encode, make_tree, other_format, pixels
from tests.support.shard_sets import write_tar
from tests.support.target_data import TARGETS, write_target_folder
from tests.support.warm_python import WarmPython

TOKEN = "secret-of-the-test"
HOSTILE = "<script>alert(1)</script>"


def client(
    path: Path,
    *,
    state: dict | None = None,
    token: str | None = TOKEN,
    version: int | None = None,
    scores: Path | None = None,
) -> TestClient:
    targets = [] if state is None else targets_of(state)
    view = SetView(str(path), version, targets, None if scores is None else str(scores))
    app = make_app(view, Training(view, 32, state), TOKEN)
    found = TestClient(app, base_url="http://127.0.0.1:8000", follow_redirects=False)
    if token is not None:
        assert found.get("/", params={"token": token}).status_code in (303, 403)
    return found


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of ten, and two files that are not images."""
    folder = tmp_path_factory.mktemp("browse")
    make_tree(folder / "images")
    for name in ("a.jpg", f"{HOSTILE.replace('/', '')}.jpg"):
        (folder / "images/class-0" / name).write_bytes(b"no image")
    assert cli.main(["shard", str(folder / "images"), "--max-bad", "1", "-q"]) == 0
    return folder / "images-shards"


@pytest.fixture
def page(shards: Path) -> TestClient:
    return client(shards)


def ids(html: str) -> list[int]:
    return [int(i) for i in re.findall(r'href="/sample/(\d+)', html)]


def picture(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x"])
def test_nobody_gets_in_without_the_token(shards: Path, token: str | None) -> None:
    unauthenticated = client(shards, token=token)
    for path in ("/", "/samples", "/sample/0", "/batch", "/whole/0", "/static/browse.css", "/nothing"):
        answer = unauthenticated.get(path)
        assert answer.status_code == 403
        assert "class-" not in answer.text


def test_token_leaves_the_address_at_once(page: TestClient) -> None:
    answer = page.get("/samples", params={"first": 2, "token": TOKEN})
    assert answer.status_code == 303
    assert answer.headers["location"] == "http://127.0.0.1:8000/samples?first=2"
    assert {"HttpOnly", "SameSite=strict"} <= set(answer.headers["set-cookie"].split("; "))


@pytest.mark.parametrize("host", ["127.0.0.1:80", "LOCALHOST", "localhost:8000", "[::1]:9"])
def test_the_server_is_called_by_the_names_of_the_loopback_address(host: str, page: TestClient) -> None:
    assert page.get("/", headers={"Host": host}).status_code != 400


@pytest.mark.parametrize(
    "host",
    ["evil.example", "10.0.0.1", "localhost.evil.example", "127.0.0.1@evil", "[::2]", "[::1", "::1", "evil:80", ""],
)
def test_other_hosts_names_are_refused(host: str, page: TestClient) -> None:
    assert page.get("/", headers={"Host": host}).status_code == 400


def test_pages_load_nothing_from_elsewhere(page: TestClient) -> None:
    for path in ("/", "/samples", "/sample/0", "/batch"):
        answer = page.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"].startswith("default-src 'none';")
        links = re.findall(r'(?:src|href|action)="([^"]*)"', answer.text)
        assert links
        assert all(link.startswith("/") and not link.startswith("//") for link in links)


def test_set_at_a_glance(shards: Path, page: TestClient) -> None:
    text = page.get("/").text
    assert "<dt>samples</dt><dd>30</dd>" in text
    dataset = feeder.ShardDataset(shards)
    for label in range(3):
        first = dataset.targets.index(label)
        (card,) = re.findall(rf'<a href="/samples\?label={label}">(.*?)</a>', text)
        assert re.search(rf'src="/small/{first}".*<bdi class="name">class-{label}</bdi>.*10 samples', card)


def test_grid_turns_through_each_sample_once(tmp_path: Path) -> None:
    make_tree(tmp_path / "images", classes=2, per_class=70)
    assert cli.main(["shard", str(tmp_path / "images"), "-q"]) == 0
    page = client(tmp_path / "images-shards")
    found: list[int] = []
    at: str | None = "/samples?label=1"
    while at is not None:
        text = page.get(at).text
        assert set(found).isdisjoint(ids(text))
        found += ids(text)
        following = re.search(r'rel="next" href="([^"]+)"', text)
        at = None if following is None else unescape(following[1])
    labels = feeder.ShardDataset(tmp_path / "images-shards").targets
    assert found == [i for i, label in enumerate(labels) if label == 1]
    assert len(found) == 70


def searched(page: TestClient, at: str) -> Iterator[str]:
    """The pages of a search, until one has samples."""
    while True:
        answer = page.get(at)
        assert answer.status_code == 200
        yield answer.text
        following = re.search(r'href="([^"]+)">Search on<', answer.text)
        if following is None or ids(answer.text):
            return
        at = unescape(following[1])


def test_a_search_goes_on_from_page_to_page(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.tools.browse.text_search.NAMES", 4)
    monkeypatch.setattr("feeder.tools.browse.text_search.BLOCK", 7)
    monkeypatch.setattr("feeder.tools.browse.set_view.AT_ONCE", 3)
    page = client(shards)
    dataset = feeder.ShardDataset(shards)
    paths, labels = dataset.column("path"), dataset.targets
    for choice, wanted in (
        ("", [i for i, path in enumerate(paths) if "img-003" in path]),
        ("&label=1", [i for i, path in enumerate(paths) if "img-003" in path and labels[i] == 1]),
    ):
        found, pages, at = list[int](), 0, f"/samples?text=IMG-003{choice}"
        while at:
            text = page.get(at).text
            found += ids(text)
            pages += 1
            following = re.search(r'rel="next" href="([^"]+)"', text)
            assert ("Searched" in text) == (following is not None)
            at = "" if following is None else unescape(following[1])
        assert found == wanted
        assert pages > 2
    (*_, last) = searched(page, "/samples?text=nowhere")
    assert "None." in last


def test_the_grid_turns_back_through_the_pages_it_came_by(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.tools.browse.text_search.NAMES", 4)
    monkeypatch.setattr("feeder.tools.browse.text_search.BLOCK", 7)
    monkeypatch.setattr("feeder.tools.browse.set_view.AT_ONCE", 3)
    monkeypatch.setattr("feeder.tools.browse.set_pages.ROWS_AT_ONCE", 3)
    page = client(shards)

    def look(at: str) -> tuple[list[int], dict[str, str]]:
        """The samples of a page, and its links once it is full."""
        texts = list(searched(page, at))
        links = re.findall(r'rel="(prev|next)" href="([^"]+)"', texts[-1])
        return [i for text in texts for i in ids(text)], {rel: unescape(to) for rel, to in links}

    for choice, pages in (("", 10), ("&label=1", 4)):
        seen, links = look(f"/samples?first=0{choice}")
        assert "prev" not in links
        turned = [seen]
        while "next" in links:
            seen, links = look(links["next"])
            turned.append(seen)
        assert len(turned) == pages
        for earlier in turned[-2::-1]:
            seen, links = look(links["prev"])
            assert seen == earlier, choice
        assert "prev" not in links
    assert look("/samples?first=2")[1]["prev"] == "/samples?first=0"
    assert "prev" not in look("/samples?first=2&text=IMG")[1]  # how many a search finds before is not known


def test_a_search_finds_names_of_any_script_in_any_case(tmp_path: Path) -> None:
    """In the second shard, and in a folder."""
    texts = ["Ünïcode-ÄÖ", "plain", "a<b>&c", "\udcff-raw", 'quo"ted', "back\\slash", "new\nline"]
    (tmp_path / "images/a").mkdir(parents=True)
    for seed, text in enumerate(texts):
        (tmp_path / f"images/a/{text}.jpg").write_bytes(encode(pixels(seed)))
    command = ["shard", str(tmp_path / "images"), "--no-shuffle", "--samples-per-shard", "2", "-q"]
    assert cli.main(command) == 0
    wanted = {"ünïCODE": 0, "PLAIN": 1, "<B>&": 2, "-RAW": 3, 'O"T': 4, "K\\S": 5, "w\nL": 6}
    for place in (tmp_path / "images", tmp_path / "images-shards"):
        view = SetView(str(place))
        for text, number in wanted.items():
            rows, following = view.rows(SampleChoice(text=text), 0, 60)
            assert ([Path(row.path).name for row in rows], following) == ([f"{texts[number]}.jpg"], None)
        for nowhere in ("[", '","', "0,0", "\\n", "u00", "images"):  # in the lines of the index, and in no name
            assert view.rows(SampleChoice(text=nowhere), 0, 60) == ([], None)


def troubled(folder: Path) -> Path:
    """Three images: one of the usual, a small and a turned one."""
    images = folder / "images/a"
    images.mkdir(parents=True)
    (images / "plain.jpg").write_bytes(encode(pixels(0, 80, 70)))
    (images / "small.jpg").write_bytes(encode(pixels(1, 80, 20)))
    (images / "turned.jpg").write_bytes(encode(pixels(2, 80, 70), orientation=6))
    return folder / "images"


@pytest.mark.parametrize("place", ["images-shards", "images"])
def test_kinds_of_trouble(place: str, tmp_path: Path) -> None:
    assert cli.main(["shard", str(troubled(tmp_path)), "--no-shuffle", "-q"]) == 0
    page = client(tmp_path / place)
    paths = feeder.ShardDataset(tmp_path / "images-shards").column("path")
    text = page.get("/").text
    assert "<dt>height</dt><dd>20 to 80 pixels, median 70</dd>" in text
    for kind in ("small", "turned"):
        assert [paths[i] for i in ids(page.get(f"/samples?kind={kind}").text)] == [f"a/{kind}.jpg"]
        assert re.search(rf'kind={kind}">with [^<]*</a></td><td class="number">1<', text)
    assert ids(page.get("/samples?kind=large").text) == []
    assert '<td>of more than 20 megapixels</td><td class="number">0<' in text
    assert '<td>without a label</td><td class="number">0<' in text


def test_filters_hold_together_in_the_order_that_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"a": [(80, 60), (300, 60)], "b": [(200, 150), (300, 150), (150, 400)]}  # (width, height)
    for name, each in sizes.items():
        (tmp_path / "images" / name).mkdir(parents=True)
        for seed, (width, height) in enumerate(each):
            (tmp_path / f"images/{name}/{width}x{height}.jpg").write_bytes(encode(pixels(seed, width, height)))
    assert cli.main(["shard", str(tmp_path / "images"), "--no-shuffle", "-q"]) == 0
    page = client(tmp_path / "images-shards")
    paths = feeder.ShardDataset(tmp_path / "images-shards").column("path")

    def shown(query: str) -> list[str]:
        answer = page.get(f"/samples?{query}")
        assert answer.status_code == 200
        return [Path(paths[i]).stem for i in ids(answer.text)]

    assert shown("order=largest") == ["150x400", "300x150", "200x150", "300x60", "80x60"]
    assert shown("order=widest&label=1") == ["300x150", "200x150", "150x400"]
    assert shown("order=tallest&kind=side-128") == ["150x400", "200x150", "300x150"]
    assert shown("kind=side-0&kind=wide") == ["80x60"]
    assert shown("kind=panorama&label=1") == ["300x150"]
    assert shown("ids=0,3,77&label=1") == [Path(paths[3]).stem]
    assert shown("text=150&order=smallest") == ["200x150", "300x150", "150x400"]
    counted = re.findall(r'kind=(\S+)">[^<]*</a></td><td class="number">(\d+)<', page.get("/").text)
    assert {"side-0": "2", "side-128": "3", "wide": "2", "panorama": "2", "tall": "1"}.items() <= dict(counted).items()
    for wrong in ("order=random", "kind=odd", "ids=1,x"):
        assert page.get(f"/samples?{wrong}").status_code == 400
    monkeypatch.setattr("feeder.tools.browse.set_view.MEASURED", 4)
    unsized = client(tmp_path / "images")
    assert unsized.get("/samples?order=largest").status_code == 400
    assert 'name="order"' not in unsized.get("/samples").text


def write_table(path: Path, **columns: list[Any]) -> Path:
    """Writes columns in the format that the name of a file says; None is a gap."""
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.table(columns), path)
    else:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])
    return path


@pytest.mark.parametrize("name", ["key", "id", "index"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_scores_of_a_table_sort_the_filtered_samples_and_are_shown(suffix: str, name: str, tmp_path: Path) -> None:
    """The table has four of the set's six samples, in another order, with a gap and a column of text."""
    make_tree(tmp_path / "images", classes=2, per_class=3)
    assert cli.main(["shard", str(tmp_path / "images"), "-q"]) == 0
    dataset = feeder.ShardDataset(tmp_path / "images-shards")
    keys, labels = dataset.column("key"), dataset.targets
    rows = [5, 3, 0, 2]
    table = write_table(
        tmp_path / f"scores.{suffix}",
        **{name: [keys[i] if name == "key" else i for i in rows], HOSTILE: [0.5, 0.25, None, 2.5]},
        guess=["cat", "1", "", "dog"],
        margin=[7, 7, -1, 9],
    )
    page = client(tmp_path / "images-shards", scores=table)

    def shown(end: str, column: str, **more: Any) -> list[int]:
        answer = page.get("/samples", params={"order": f"{end}:{column}", **more})
        assert answer.status_code == 200
        return ids(answer.text)

    assert shown("lowest", HOSTILE) == [3, 5, 2, 0, 1, 4]
    assert shown("highest", HOSTILE) == [2, 5, 3, 0, 1, 4]
    assert shown("lowest", "margin") == [0, 3, 5, 2, 1, 4]
    assert shown("highest", "margin") == [2, 3, 5, 0, 1, 4]
    label = int(labels[3])
    assert shown("lowest", HOSTILE, label=label) == [i for i in (3, 5, 2, 0, 1, 4) if labels[i] == label]
    assert shown("highest", HOSTILE, ids="0,3,5") == [5, 3, 0]
    assert shown("highest", HOSTILE, kind="large") == []
    assert shown("highest", HOSTILE, text=keys[3]) == [3]
    assert page.get("/samples?order=lowest:guess").status_code == 400

    text = page.get("/samples").text
    assert HOSTILE not in text
    assert f'value="highest:{HOSTILE}">score: {HOSTILE}, highest first<' in unescape(text)
    assert "score: margin, lowest first" in text
    assert "smallest first" in text
    assert {i: "margin" in card for i, card in enumerate(re.findall("<li>.*", text)[:6])} == {
        i: i in rows for i in range(6)
    }
    assert f"{HOSTILE} 2.5<" in unescape(text)
    assert "<dt>score: <bdi>margin</bdi></dt><dd>9</dd>" in page.get("/sample/2").text
    assert "score:" not in page.get("/sample/1").text


def test_the_order_by_a_score_stays_from_page_to_page(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.tools.browse.set_pages.ROWS_AT_ONCE", 20)
    scores = [(7 * i) % 30 for i in range(30)]
    page = client(shards, scores=write_table(tmp_path / "a.csv", id=[*range(30)], **{"a&b=c+d": scores}))
    text = page.get("/samples", params={"order": "highest:a&b=c+d"}).text
    following = unescape(re.findall(r'rel="next" href="([^"]*)"', text)[0])
    assert [*ids(text), *ids(page.get(following).text)] == sorted(range(30), key=lambda i: -scores[i])


def test_a_sample_that_was_taken_down_has_the_score_of_its_stand_in(tmp_path: Path) -> None:
    make_tree(tmp_path / "images", 1, 4)
    assert cli.main(["shard", str(tmp_path / "images"), "--no-shuffle", "-q"]) == 0
    path = str(tmp_path / "images-shards")
    keys = list(feeder.ShardDataset(path).column("key"))
    assert cli.main(["takedown", path, keys[1], "-q"]) == 0
    left = [0, 2, 3]
    table = write_table(tmp_path / "a.csv", key=[keys[i] for i in left], loss=left)
    stand_in = keys.index(feeder.ShardDataset(path).column("key")[1])
    page = client(tmp_path / "images-shards", scores=table)
    assert f"<dt>score: <bdi>loss</bdi></dt><dd>{stand_in}</dd>" in page.get("/sample/1").text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "key,loss\nno,1\n",
            "row 1: column 'key' holds 'no', and the set of 30 samples, from 0 on, has none of it; name",
        ),
        (
            "id,loss\n29,1\n30,1\n-1,1\n",
            "row 2: column 'id' holds '30', and the set of 30 samples, from 0 on, has none",
        ),
        ("id,loss\n1,1\n1.5,1\n", "row 2: column 'id' holds '1.5', and the set"),
        ("id,loss\n1,1\n,1\n", "row 2: column 'id' holds '', and the set"),
        ("id,loss\n1,1\n2,1\n1,1\n", "row 3: column 'id' holds '1', and so does row 1; keep one of them"),
        ("id,loss\n1,0.5\n2,high\n", "row 2: column 'loss' holds 'high', expected a number; leave it empty for"),
        ("name,loss\n1,2\n", "no column names the samples; it has name, loss: rename the one with their keys 'key'"),
        ("id,loss\n", "no column names the samples; it has no rows"),
        ("id,guess\n1,cat\n", "has no column of numbers, such as loss, among id, guess; add one"),
        ("id,loss\n1,2\n3\n", "line 3: 1 column, expected 2; correct that row, or leave it out"),
        (None, "can't be read: No such file or directory"),
    ],
)
def test_scores_that_do_not_fit_are_told_with_file_row_and_way_out(
    text: str | None, found: str, shards: Path, tmp_path: Path
) -> None:
    path = tmp_path / "scores.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(FeederError, match=f"^{re.escape(f'{path}: {found}')}"):
        client(shards, scores=path)


def test_names_are_read_behind_the_first_page(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, lines = list[tuple[int, int]](), ShardIndex.detail_lines

    def noted(self: ShardIndex, first: int, end: int) -> bytes:
        read.append((first, end))
        return lines(self, first, end)

    monkeypatch.setattr(ShardIndex, "detail_lines", noted)
    page = client(shards)
    assert not read
    page.get("/")
    assert read == [(0, 30)]
    page.get("/samples?text=nowhere")
    assert read == [(0, 30)]


def test_a_search_finds_names_of_classes(tmp_path: Path) -> None:
    for number, name in enumerate(["beagle", "tabby", "beagle"]):
        (tmp_path / f"{number}.jpg").write_bytes(encode(pixels(number, 80, 60)))
        with (tmp_path / "rows.csv").open("a") as file:
            file.write(("" if number else "path,class\n") + f"{number}.jpg,{name}\n")
    command = ["shard", str(tmp_path / "rows.csv"), "--label-column", "class", "--no-shuffle", "-q"]
    assert cli.main([*command, "--out", str(tmp_path / "set")]) == 0
    assert ids(client(tmp_path / "set").get("/samples?text=BEAGLE").text) == [0, 2]


def test_a_search_finds_captions_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.tools.browse.text_search.CAPTIONS", 2)
    members = [(f"{k}.{end}", data) for k in range(3) for end, data in (("jpg", encode(pixels(k))), ("cls", b"0"))]
    captions = [("0.txt", b"A Cat, asleep"), ("2.txt", b"no c\xc3\xa4t")]
    write_tar(tmp_path / "set.tar", sorted(members + captions))
    assert cli.main(["index", str(tmp_path / "set.tar"), "-q"]) == 0
    page = client(tmp_path)
    assert [ids(text) for text in searched(page, "/samples?text=C%C3%84T")] == [[], [2]]
    assert [ids(text) for text in searched(page, "/samples?text=cat")] == [[0]]
    assert [ids(text) for text in searched(page, "/samples?text=nowhere")] == [[]]  # all were read by then


def test_the_grid_has_masks_boxes_with_the_names_of_classes_and_keypoints_if_wanted(tmp_path: Path) -> None:
    points = json.dumps({"keypoints": [[48, 32]]}).encode()
    page = client(indexed(tmp_path, ("jpg", grey(96, 96)), ("cls", b"0"), ("keypoints.json", points)))
    assert "?over=1" in page.get("/samples?over=1").text
    assert "?over=1" not in page.get("/samples").text
    plain, drawn = (picture(page.get(path).content).astype(int) for path in ("/small/0", "/small/0?over=1"))
    changed = np.abs(drawn - plain).max(axis=2) > 30
    assert plain.shape == drawn.shape == (192, 192, 3)
    assert changed[64, 96]
    assert not changed[:50].any()
    boxes = Overlays.of([("boxes.json", b'{"boxes": [[4, 4, 80, 80]], "labels": [1]}')], 1, (96, 96), "stored")
    image = Image.new("RGB", (96, 96))
    named, numbered = (np.asarray(boxes.over(image, names)) for names in (["a", "bicycle"], None))
    assert (named != numbered).any()


def test_kinds_that_nothing_tells_are_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.tools.browse.set_view.MEASURED", 2)
    page = client(troubled(tmp_path))  # a folder of three images
    text = page.get("/").text
    assert "<dt>sizes</dt><dd>read of shards, and of a local folder of at most 2 images</dd>" in text
    assert '<td>without a label</td><td class="number">0<' in text
    assert not re.search(r"with an orientation|with a side|of more than", text)
    assert ids(page.get("/samples?kind=small").text) == []


def test_labels_and_kinds_of_a_large_set_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["shard", str(troubled(tmp_path)), "--no-shuffle", "-q"]) == 0
    monkeypatch.setattr("feeder.tools.browse.set_view.COUNTED", 2)
    text = client(tmp_path / "images-shards").get("/").text
    assert "not shown of more than 2 samples" in text
    assert not re.search(r"without a label|with an orientation|with a side|of more than 20", text)


def test_targets_that_are_missing_count_as_without_a_label(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for seed in range(3):
        (tmp_path / f"images/{seed}.jpg").write_bytes(encode(pixels(seed, 80, 70)))
    (tmp_path / "images.csv").write_text("path,age\nimages/0.jpg,3.5\nimages/1.jpg,\nimages/2.jpg,7\n")
    command = ["shard", str(tmp_path / "images.csv"), "--target-column", "age", "--no-shuffle", "-q"]
    assert cli.main([*command, "--out", str(tmp_path / "set")]) == 0
    page = client(tmp_path / "set")
    assert 'kind=unlabelled">without a label</a></td><td class="number">1<' in page.get("/").text
    assert ids(page.get("/samples?kind=unlabelled").text) == [1]


def indexed(folder: Path, *members: tuple[str, bytes]) -> Path:
    """A set of one sample with some members."""
    write_tar(folder / "set.tar", [(f"a.{name}", data) for name, data in members])
    assert cli.main(["index", str(folder / "set.tar"), "-q"]) == 0
    return folder


def mask_of(classes: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(classes).save(file, "PNG")
    return file.getvalue()


def grey(width: int, height: int, orientation: int = 1) -> bytes:
    return encode(Image.new("RGB", (width, height), (128, 128, 128)), quality=100, orientation=orientation)


def marked(folder: Path) -> Path:
    """One sample: a grey image with a mask of its left half, a box, and a hostile caption."""
    mask = np.zeros((64, 96), np.uint8)
    mask[:, :48] = 1
    boxes = {"boxes": [[60, 10, 90, 50]], "labels": [1]}
    members = [("jpg", grey(96, 64)), ("cls", b"0"), ("seg.png", mask_of(mask))]
    return indexed(folder, *members, ("boxes.json", json.dumps(boxes).encode()), ("txt", HOSTILE.encode()))


def test_sample_has_its_members_as_text_and_its_masks_and_boxes_drawn(tmp_path: Path) -> None:
    page = client(marked(tmp_path))
    text = page.get("/sample/0").text
    assert HOSTILE not in text
    assert HOSTILE in unescape(text)
    assert "[60, 10, 90, 50]" in text
    assert "/whole/0?over=stored" in text
    plain, drawn = (picture(page.get(path).content).astype(int) for path in ("/whole/0", "/whole/0?over=stored"))
    changed = np.abs(drawn - plain).max(axis=2) > 30
    assert changed[:, :44].all()
    assert changed[10, 62:88].all()
    assert changed[12:24, 62:72].any()  # the label's number
    assert not changed[32:48, 66:84].any()


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("canvas", ["stored", "upright"])
def test_masks_and_boxes_of_turned_photos_are_drawn(canvas: str, orientation: int, tmp_path: Path) -> None:
    """A mask of the upper left quarter and a box at the lower right, in pixels of the file or as they are seen."""
    width, height = (96, 64) if canvas == "stored" or orientation < 5 else (64, 96)
    mask = np.zeros((height, width), np.uint8)
    mask[: height // 2, : width // 2] = 1
    left, top, right, bottom = box = [width - 30, height - 28, width - 6, height - 4]
    x, y = (left + right) // 2, (top + bottom) // 2

    def seen(pixels: np.ndarray) -> np.ndarray:
        image = Image.open(io.BytesIO(encode(Image.fromarray(pixels), "PNG", orientation=orientation)))
        return np.asarray(ImageOps.exif_transpose(image) if canvas == "stored" else image) > 0

    def around(x: int, y: int) -> np.ndarray:
        pixels = np.zeros((height, width), np.uint8)
        pixels[y - 3 : y + 4, x - 3 : x + 4] = 1
        return seen(pixels)

    members = [("jpg", grey(96, 64, orientation)), ("cls", b"0"), ("seg.png", mask_of(mask))]
    page = client(indexed(tmp_path, *members, ("boxes.json", json.dumps({"boxes": [box]}).encode())))
    if canvas == "stored" or orientation >= 5:  # else both would do, and the file's are taken
        assert f'src="/whole/0?over={canvas}"' in page.get("/sample/0").text
    assert f'src="/whole/0?over={canvas}"' in page.get(f"/sample/0?canvas={canvas}").text
    plain, drawn = (picture(page.get(place).content).astype(int) for place in ("/whole/0", f"/whole/0?over={canvas}"))
    changed = np.abs(drawn - plain).max(axis=2) > 30
    assert changed[seen(mask)].mean() > 0.9
    assert changed[~seen(mask)].mean() < 0.1
    assert all(changed[around(*edge)].any() for edge in ((left, y), (right, y), (x, top), (x, bottom)))
    assert not changed[around(x, y)].any()


def test_kinds_of_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of photos that are stored as 96x64 pixels: counted on the first page, or looked for page by page."""
    boxes = {
        "plain": [[0, 0, 96, 64], [10, 10, 60, 60]],
        "none": [],
        "tiny": [[10, 10, 60, 60], [3, 3, 10, 13]],
        "long": [[0, 0, 9, 60], [0, 0, 80, 11]],
        "longer": [[0, 3, 90, 12]],
        "empty": [[5, 5, 5, 20]],
        "beyond": [[50, 0, 98, 20]],
        "turned": [[0, 0, 64, 96]],
    }
    members = list[tuple[str, bytes]]()
    for key, each in boxes.items():
        members += [(f"{key}.jpg", grey(96, 64, 6 if key == "turned" else 1)), (f"{key}.cls", b"0")]
        members += [(f"{key}.boxes.json", json.dumps({"boxes": each}).encode())]
    members += [("bad.jpg", grey(96, 64)), ("bad.boxes.json", b"7"), ("without.jpg", grey(96, 64))]
    write_tar(tmp_path / "set.tar", members)
    assert cli.main(["index", str(tmp_path / "set.tar"), "-q"]) == 0
    wanted = {
        "boxes-bad": ["bad"],
        "boxes-outside": ["empty", "beyond"],
        "boxes-none": ["none", "without"],
        "boxes-tiny": ["tiny"],
        "boxes-long": ["longer"],
    }
    page = client(tmp_path)
    counts = dict(re.findall(r'kind=(boxes-\w+)">[^<]*</a></td><td class="number">(\d*)<', page.get("/").text))
    assert counts == {kind: str(len(keys)) for kind, keys in wanted.items()}
    assert ids(page.get("/samples?kind=boxes-tiny&text=nowhere").text) == []

    monkeypatch.setattr("feeder.tools.browse.box_kinds.COUNTED", 2)
    monkeypatch.setattr("feeder.tools.browse.box_kinds.READ", 3)
    keys = feeder.ShardDataset(tmp_path).column("key")
    for kind, named in wanted.items():
        page = client(tmp_path)
        assert f'kind={kind}">' in page.get("/").text
        assert f'<option value="{kind}"' in page.get("/samples").text
        found, pages, at = list[int](), 0, f"/samples?kind={kind}"
        while at:
            text = page.get(at).text
            found, pages = found + ids(text), pages + 1
            following = re.search(r'rel="next" href="([^"]+)"', text)
            at = "" if following is None else unescape(following[1])
        assert [keys[i] for i in found] == named, kind
        assert pages == 4
    assert [keys[i] for i in ids(page.get("/samples?kind=boxes-tiny").text)] == ["tiny"]  # all were read by then
    (tmp_path / "plain").mkdir()
    assert "boxes-" not in client(indexed(tmp_path / "plain", ("jpg", grey(96, 64)))).get("/samples").text


def test_classes_of_boxes_are_those_of_a_set_without_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As feeder shard makes it of COCO's boxes."""
    boxes = [["cat", "dog"], ["cat", "cat"], [], ["dog"]]
    names, annotations = ["cat", "cup", "dog"], list[dict[str, Any]]()
    (tmp_path / "images").mkdir()
    for i, each in enumerate(boxes):
        (tmp_path / f"images/{i}.jpg").write_bytes(encode(pixels(i, 96, 64)))
        annotations += [{"image_id": i, "category_id": names.index(name), "bbox": [4, 4, 30, 30]} for name in each]
    images = [{"id": i, "file_name": f"{i}.jpg", "width": 96, "height": 64} for i in range(4)]
    categories = [{"id": number, "name": name} for number, name in enumerate(names)]
    coco = {
        "images": images,
        "categories": categories,
        "annotations": [{"id": k} | each for k, each in enumerate(annotations)],
    }
    (tmp_path / "boxes.json").write_text(json.dumps(coco))
    command = ["shard", str(tmp_path / "images"), "--annotations", str(tmp_path / "boxes.json"), "--no-shuffle", "-q"]
    assert cli.main(command) == 0
    page = client(tmp_path / "images-shards")
    text = page.get("/").text
    assert "without a label" not in text
    cards = re.findall(r'label=(\d)">(?:<img src="/small/(\d)")?.*?<bdi class="name">(\w+)</bdi>.*?(\d) sample', text)
    assert cards == [("0", "0", "cat", "2"), ("1", "", "cup", "0"), ("2", "0", "dog", "2")]
    for at, found in (("label=0", [0, 1]), ("label=1", []), ("label=2", [0, 3]), ("label=2&text=3.jpg", [3])):
        assert ids(page.get(f"/samples?{at}").text) == found

    monkeypatch.setattr("feeder.tools.browse.box_kinds.COUNTED", 2)
    page = client(tmp_path / "images-shards")
    text = page.get("/").text
    assert '<bdi class="name">dog</bdi></a>' in text
    assert ids(page.get("/samples?label=2").text) == [0, 3]


def test_polygons_and_keypoints_of_coco_are_drawn(tmp_path: Path) -> None:
    polygons = [[[8, 8, 40, 8, 40, 56, 8, 56], [1, 1, 2, 2]], {"counts": [0], "size": [64, 96]}, []]
    points = {"keypoints": [[[24, 32], [88, 32]]], "visibility": [[2, 0]], "points_per_group": 2}
    members = {"segmentation.json": polygons, "kp.json": points}
    encoded = ((name, json.dumps(value).encode()) for name, value in members.items())
    page = client(indexed(tmp_path, ("jpg", grey(96, 64)), ("cls", b"0"), *encoded))
    text = unescape(page.get("/sample/0").text)
    assert "With <bdi>kp.json, segmentation.json</bdi>" in text
    assert "segmentation.json: 1 object as RLE; `--instance-masks` makes masks of it" in text
    for place in ("/whole/0", "/whole/0?over=stored", "/small/0", "/small/0?over=1"):
        assert page.get(place).status_code == 200
    plain, drawn = (picture(page.get(place).content).astype(int) for place in ("/whole/0", "/whole/0?over=stored"))
    changed = np.abs(drawn - plain).max(axis=2) > 20
    assert changed[10:54, 10:38].all()
    assert np.abs(drawn[32, 24] - drawn[16, 24]).max() > 20  # a point over the polygon
    assert not changed[:, 64:].any()  # the one that is not labelled


def test_what_is_not_drawn_is_told_with_the_reason(tmp_path: Path) -> None:
    members = [("jpg", grey(96, 64)), ("cls", b"0"), ("seg.png", mask_of(np.zeros((9, 8), np.uint8)))]
    members += [("right.png", encode(pixels(3, 96, 64), "PNG")), ("boxes.json", HOSTILE.encode())]
    text = unescape(client(indexed(tmp_path, *members)).get("/sample/0").text)
    assert 'src="/whole/0"' in text
    assert "seg.png: the mask has 8x9 pixels (width x height), the image 96x64" in text
    assert "right.png: the mask is a PNG of RGB colors" in text
    assert "boxes.json: not JSON" in text


def chunks(*parts: tuple[bytes, bytes]) -> bytes:
    """A PNG of some chunks."""
    found = b"\x89PNG\r\n\x1a\n"
    for kind, data in parts:
        found += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return found


def header(width: int, height: int, depth: int = 8, color: int = 3) -> tuple[bytes, bytes]:
    return b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("seg.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 96 64\n%%EndComments\n"),
        ("seg.png", b"\x89PNG\r\n\x1a\n"),
        ("seg.png", chunks(header(96, 64), (b"IDAT", b"damaged"))),
        ("seg.png", chunks(header(96, 64, 2), (b"PLTE", bytes(12)), (b"IDAT", b"damaged"))),
        ("seg.png", chunks(header(60_000, 60_000), (b"IDAT", zlib.compress(bytes(9))))),
        ("seg.png", chunks(header(64, 96), (b"IDAT", zlib.compress(bytes(65 * 96))))),
        ("seg.png", chunks(header(96, 64, 8, 2), (b"IDAT", zlib.compress(bytes(289 * 64))))),
        *(
            ("boxes.json", data.encode())
            for data in (
                "[" * 100_000,
                '{"labels": []}',
                '{"boxes": [[1, 2, 30, 40]], "labels": {"a": 1}}',
                '{"boxes": [[1, 2, 30, 40]], "labels": ["cat"]}',
                '{"boxes": [[1, 2, 30]]}',
                '{"boxes": [[1, 2, 3e300, 4e300]]}',
                '{"boxes": [[30, 40, 1, 2], [-1e38, 70, 1e38, 1e38]]}',
                '{"boxes": 7}',
                "7",
            )
        ),
        *(
            ("segmentation.json", data.encode())
            for data in ("[" * 100_000, "7", "[[7]]", "[[[true, 1, 2, 3, 4, 5]]]", f"[[[{'9' * 400}, 1, 2, 3, 4, 5]]]")
        ),
        ("segmentation.json", b"[[[1e300, 1, 2, 3, 4, 5]]]"),
    ],
    ids=map(str, range(22)),
)
def test_hostile_masks_and_boxes_are_not_drawn(name: str, data: bytes, tmp_path: Path) -> None:
    page = client(indexed(tmp_path, ("jpg", grey(96, 64)), ("cls", b"0"), (name, data)))
    with other_format() as given:
        assert page.get("/sample/0").status_code == 200
        drawn = page.get("/whole/0?over=stored")
        assert given == []
    assert drawn.content == page.get("/whole/0").content


def test_further_images_of_a_sample_are_shown(tmp_path: Path) -> None:
    mask = np.zeros((64, 96), np.uint8)
    mask[:, :48] = 1
    right = encode(pixels(3, 80, 50), "PNG")
    members = [("left.jpg", grey(96, 64)), ("right.png", right), ("seg.png", mask_of(mask)), ("txt", b"a caption")]
    page = client(indexed(tmp_path, *members, ("damaged.png", right[:200])))
    text = page.get("/sample/0").text
    headings = [unescape(name) for name in re.findall(r"<h2><bdi>(.*?)</bdi>", text)]
    shown = {headings[int(place.rpartition("/")[2])]: place for place in re.findall(r'src="(/member/0/\d+)"', text)}
    assert set(shown) == {"right.png", "seg.png", "damaged.png"}
    assert np.abs(picture(page.get(shown["right.png"]).content).astype(int) - np.asarray(pixels(3, 80, 50))).mean() < 5
    colors = picture(page.get(shown["seg.png"]).content)
    assert colors[:, :48].min(axis=(0, 1)).max() > 100
    assert not colors[:, 48:].any()
    assert page.get(shown["damaged.png"]).headers["content-type"] == "image/svg+xml"
    assert page.get("/member/0/99").status_code == 400


def test_all_of_many_classes_are_reached_and_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.tools.browse.set_pages.CLASSES_AT_ONCE", 3)
    make_tree(tmp_path / "images", classes=8, per_class=1)
    page = client(tmp_path / "images")
    found, at = (
        re.findall(r'label=(\d)"', page.get("/").text),
        re.search(r'"(/classes\?first[^"]*)"', page.get("/").text),
    )
    while at is not None:
        text = page.get(unescape(at[1])).text
        found += re.findall(r'label=(\d)"', text)
        at = re.search(r'rel="next" href="([^"]*)"', text)
    assert found == [*"01234567"]
    for text, wanted in (("SS-5", ["5"]), ("7", ["7"]), ("class", [*"012"]), ("nowhere", [])):
        assert re.findall(r'label=(\d)"', page.get("/classes", params={"text": text}).text) == wanted


def test_batch_is_the_loaders(shards: Path, page: TestClient) -> None:
    dataset = open_dataset(str(shards), preset("train", "uint8", 32))
    loader = feeder.DataLoader(dataset, batch_size=8, shuffle=True, seed=5)
    loader.set_epoch(2)
    images = [batch[0] for batch in loader][1]
    step = {"seed": 5, "epoch": 2, "step": 1, "batch_size": 8}
    assert ids(page.get("/batch", params=step).text) == loader.samples_of(2, 1).ids.tolist()
    for row in range(8):
        shown = picture(page.get("/step-image", params={**step, "row": row}).content)
        assert np.array_equal(shown.transpose(2, 0, 1), images[row].numpy())


@pytest.mark.parametrize(
    ("step", "leads_to"),
    [(0, {"next": 1}), (2, {"prev": 1, "next": 3}), (3, {"prev": 2}), (4, {"prev": 3}), (999, {"prev": 3})],
)
def test_a_batch_leads_to_steps_that_exist(page: TestClient, step: int, leads_to: dict[str, int]) -> None:
    text = page.get("/batch", params={"batch_size": 8, "step": step}).text
    assert {each: int(to) for each, to in re.findall(r'rel="(\w+)" href="[^"]*step=(\d+)', text)} == leads_to
    assert "The epoch has 4 steps" in text


def test_a_batch_before_a_saved_state_leads_to_no_other(shards: Path) -> None:
    dataset = feeder.ShardDataset(shards, [RandomCrop(16)])
    loader = feeder.DataLoader(dataset, batch_size=4, shuffle=True, seed=9)
    loader.set_epoch(2)
    list(loader)
    text = client(shards, state=json.loads(json.dumps(loader.state_dict()))).get("/batch?epoch=1&step=5").text
    assert "the batches of epoch 1 are not known" in text
    assert 'rel="' not in text[text.index("<main") :]


def test_the_state_of_a_loader_that_has_begun_no_epoch_is_shown_without_batches(shards: Path) -> None:
    loader = feeder.DataLoader(feeder.ShardDataset(shards, [RandomCrop(16)]), batch_size=4, shuffle=True)
    page = client(shards, state=json.loads(json.dumps(loader.state_dict())))
    assert "no batch was taken yet" in page.get("/batch").text
    assert page.get("/sample/0").status_code == 200


def test_crops_of_a_sample_are_those_of_the_epochs(shards: Path, page: TestClient) -> None:
    dataset = open_dataset(str(shards), preset("train", "uint8", 32))
    loader = feeder.DataLoader(dataset, batch_size=30, shuffle=True, seed=3)
    for epoch in range(2):
        loader.set_epoch(epoch)
        (batch,) = loader
        row = loader.samples_of(epoch, 0).ids.tolist().index(4)
        shown = picture(page.get(f"/crop/4?seed=3&epoch={epoch}").content)
        assert np.array_equal(shown.transpose(2, 0, 1), batch[0][row].numpy())


def test_batches_of_a_saved_state(shards: Path) -> None:
    dataset = feeder.ShardDataset(shards, [RandomCrop(16)])
    loader = feeder.DataLoader(dataset, batch_size=4, shuffle=True, seed=9)
    batches = list(loader)
    page = client(shards, state=json.loads(json.dumps(loader.state_dict())))
    at = {"seed": 9, "epoch": 0, "step": 3, "batch_size": 4}
    shown = [picture(page.get("/step-image", params={**at, "row": row}).content) for row in range(4)]
    assert torch.equal(torch.as_tensor(np.stack(shown)).permute(0, 3, 1, 2), batches[3][0])
    assert "RandomCrop" in page.get("/batch").text


@pytest.mark.parametrize("exif_orientation", ["apply", "ignore"])
def test_batches_and_crops_of_a_saved_state_with_turned_photos(exif_orientation: str, tmp_path: Path) -> None:
    (tmp_path / "images/a").mkdir(parents=True)
    for seed in range(4):
        photo = encode(pixels(seed, 40, 30), orientation=5 + seed % 4)
        (tmp_path / f"images/a/{seed}.jpg").write_bytes(photo)
    dataset = feeder.FolderDataset(tmp_path / "images", [RandomCrop(16)], exif_orientation=exif_orientation)
    ((images, _),) = loader = feeder.DataLoader(dataset, batch_size=4, seed=9)
    page = client(tmp_path / "images", state=json.loads(json.dumps(loader.state_dict())))
    for row in range(4):
        for place in (f"/step-image?row={row}&step=0&batch_size=4", f"/crop/{row}?"):
            shown = picture(page.get(f"{place}&seed=9&epoch=0").content).transpose(2, 0, 1)
            assert np.array_equal(shown, images[row])


@pytest.mark.parametrize(
    "options", [{"backend": "cpu", "fidelity": "exact"}, {"backend": "cpu", "fidelity": "draft"}, {"backend": "pillow"}]
)
def test_crops_of_a_saved_state_are_those_of_its_batches(options: dict, tmp_path: Path) -> None:
    (tmp_path / "images/a").mkdir(parents=True)
    for seed in range(4):
        pixels(seed, 120, 100).save(tmp_path / f"images/a/{seed}.jpg", quality=95)
    dataset = feeder.FolderDataset(tmp_path / "images", [RandomResizedCrop(16, (0.8, 1))])
    ((images, _),) = loader = feeder.DataLoader(dataset, batch_size=4, seed=9, **options)
    page = client(tmp_path / "images", state=json.loads(json.dumps(loader.state_dict())))
    for row in range(4):
        shown = picture(page.get(f"/crop/{row}?seed=9&epoch=0").content).transpose(2, 0, 1)
        assert np.array_equal(shown, images[row])


@pytest.mark.parametrize("op", [SanitizeBoundingBoxes(), SanitizeKeyPoints()], ids=repr)
@pytest.mark.parametrize("is_grouped", [False, True])
def test_batches_and_crops_of_a_saved_state_with_targets(is_grouped: bool, op: Op, tmp_path: Path) -> None:
    tree = write_target_folder(tmp_path / "images", 9)
    recipe = [RandomShortestSize([16, 20, 24]), op, RandomHorizontalFlip()]
    dataset = feeder.FolderDataset(tree, recipe, ["index"], targets=TARGETS)
    pad = feeder.PadToBatch(8, group_by_aspect=is_grouped)
    batches = list(loader := feeder.DataLoader(dataset, batch_size=3, shuffle=True, seed=9, sizes=pad))
    page = client(tree, state=json.loads(json.dumps(loader.state_dict())))
    text = page.get("/batch?epoch=0&step=1").text
    assert type(op).__name__ in text
    assert ids(text) == batches[1][-1].tolist()
    for row, (image, (height, width), i) in enumerate(zip(batches[1][0], batches[1][2], batches[1][-1], strict=True)):
        for place in (f"/step-image?row={row}&step=1&batch_size=3", f"/crop/{i}?"):
            shown = picture(page.get(f"{place}&seed=9&epoch=0").content).transpose(2, 0, 1)
            assert np.array_equal(shown, image[:, :height, :width])
        assert f"class-0/{i:04d}.png" in page.get(f"/sample/{i}").text


@pytest.mark.parametrize("orientation", [1, 6])
def test_crops_have_the_targets_over_them_where_the_crop_has_them(orientation: int, tmp_path: Path) -> None:
    """Of images with one bright part, which the box and the mask have."""
    bright = np.zeros((64, 96), np.uint8)
    bright[8:40, 16:56] = 1
    image = Image.fromarray(np.repeat(60 + 180 * bright[..., None], 3, axis=2))
    members = [("jpg", encode(image, quality=100, orientation=orientation)), ("cls", b"0")]
    targets = {"boxes.json": b'{"boxes": [[16, 8, 56, 40]]}', "seg.png": mask_of(bright)}
    targets["segmentation.json"] = b"[null, [[16, 8, 56, 8, 56, 40, 16, 40]]]"
    for name, data in targets.items():
        (tmp_path / name).mkdir()
        page = client(indexed(tmp_path / name, *members, (name, data)))
        text = page.get("/sample/0?canvas=stored").text
        assert f"With <bdi>{name}</bdi>, moved with the crop." in text
        assert "over=" not in page.get("/sample/0?canvas=none").text
        for place in map(unescape, re.findall(r'"(/crop/0[^"]*&amp;over=stored)"', text)):
            plain, drawn = (
                picture(page.get(each).content).astype(int) for each in (place.removesuffix("&over=stored"), place)
            )
            is_bright, changed = plain.min(axis=2) > 150, np.abs(drawn - plain).max(axis=2) > 30
            grown, shrunk = (
                np.asarray(Image.fromarray(is_bright.astype(np.uint8)).filter(each(7))) > 0
                for each in (ImageFilter.MaxFilter, ImageFilter.MinFilter)
            )
            assert not changed[~grown].any()
            assert changed[shrunk].all() if name != "boxes.json" else not changed[shrunk & ~_border(shrunk)].any()
            assert changed.any() == is_bright.any()


def _border(like: np.ndarray) -> np.ndarray:
    found = np.ones_like(like)
    found[3:-3, 3:-3] = False
    return found


def test_mixed_batches_of_a_saved_state(shards: Path) -> None:
    dataset = feeder.ShardDataset(shards, [RandomCrop(16)])
    loader = feeder.DataLoader(dataset, batch_size=4, shuffle=True, seed=9, mix=MixUp(num_classes=3))
    batches = list(loader)
    page = client(shards, state=json.loads(json.dumps(loader.state_dict())))
    at = {"seed": 9, "epoch": 0, "step": 3, "batch_size": 4}
    shown = [picture(page.get("/step-image", params={**at, "row": row}).content) for row in range(4)]
    assert torch.equal(torch.as_tensor(np.stack(shown)).permute(0, 3, 1, 2), batches[3][0])
    assert "Before it is mixed with others" in page.get("/sample/0").text


def test_batches_of_each_rank_of_a_saved_state(shards: Path) -> None:
    dataset = feeder.ShardDataset(shards, [RandomCrop(16)])
    loader = feeder.DataLoader(dataset, batch_size=4, shuffle=True, seed=9, rank=1, world_size=2)
    batches = list(loader)
    page = client(shards, state=json.loads(json.dumps(loader.state_dict())))
    at = {"seed": 9, "epoch": 0, "step": 2, "batch_size": 4, "rank": 1}
    text = page.get("/batch", params=at).text
    assert ids(text) == loader.samples_of(0, 2, rank=1).ids.tolist()
    assert ids(text) != loader.samples_of(0, 2, rank=0).ids.tolist()
    assert 'name="rank"' in text
    assert "&rank=1" in unescape(re.findall(r'rel="next" href="([^"]*)"', text)[0])
    shown = [picture(page.get("/step-image", params={**at, "row": row}).content) for row in range(4)]
    assert torch.equal(torch.as_tensor(np.stack(shown)).permute(0, 3, 1, 2), batches[2][0])
    assert "rank must be 0 to 1" in page.get("/batch", params={**at, "rank": 2}).text
    assert 'name="rank"' not in client(shards).get("/batch").text


def test_every_view_is_shown(shards: Path) -> None:
    dataset = feeder.ShardDataset(shards, Views([RandomCrop(16), RandomCrop(16), RandomCrop(12)]))
    loader = feeder.DataLoader(dataset, batch_size=30, seed=9)
    ((images, _),) = loader
    page = client(shards, state=json.loads(json.dumps(loader.state_dict())))
    text = page.get("/sample/4?epoch=0").text
    for view in range(3):
        place = f"/crop/4?seed=9&epoch=0&view={view}"
        assert np.array_equal(picture(page.get(place).content).transpose(2, 0, 1), images[view][4])
        assert place in unescape(text)
    assert page.get("/crop/4?view=3").status_code == 400


def test_batches_and_crops_of_a_saved_state_with_buckets(tmp_path: Path) -> None:
    (tmp_path / "images/a").mkdir(parents=True)
    for seed in range(8):
        (tmp_path / f"images/a/{seed}.jpg").write_bytes(encode(pixels(seed, *[(60, 30), (30, 60)][seed % 2])))
    buckets = feeder.Buckets(sizes=[(16, 32), (32, 16)])
    dataset = feeder.FolderDataset(tmp_path / "images", [RandomCrop(BUCKET)], ["index"])
    loader = feeder.DataLoader(dataset, batch_size=4, seed=9, sizes=buckets)
    batches = list(loader)
    page = client(tmp_path / "images", state=json.loads(json.dumps(loader.state_dict())))
    for step, (images, _, numbers) in enumerate(batches):
        for row, i in enumerate(numbers.tolist()):
            at = {"seed": 9, "epoch": 0, "step": step, "batch_size": 4, "row": row}
            for place in ("/step-image", f"/crop/{i}"):
                shown = picture(page.get(place, params=at).content).transpose(2, 0, 1)
                assert np.array_equal(shown, images[row])


def test_batches_of_a_saved_state_with_a_bad_sample(tmp_path: Path) -> None:
    make_tree(tmp_path / "images", 2, 6)
    (tmp_path / "images/class-0/img-003.jpg").write_bytes(encode(pixels(5))[:300])
    loader = feeder.DataLoader(
        feeder.FolderDataset(tmp_path / "images", [RandomCrop(16)]), batch_size=12, on_error="skip"
    )
    list(loader)
    (bad,) = loader.stats()["substitutions"]
    page = client(tmp_path / "images", state=loader.state_dict())
    text = page.get("/batch?epoch=0").text
    assert ids(text) == [*range(3), bad["substitute"], *range(4, 12)]
    assert "in place of sample 3" in text


def test_damaged_images_and_wrong_addresses_are_told(tmp_path: Path) -> None:
    make_tree(tmp_path / "images", classes=1, per_class=4)
    (tmp_path / "images/class-0/img-001.jpg").write_bytes(b"\xff\xd8no image")
    page = client(tmp_path / "images")  # a folder without shards
    assert "class-0" in page.get("/").text
    for path in ("/small/1", "/whole/1", "/crop/1?seed=0&epoch=0"):
        assert page.get(path).headers["content-type"] == "image/svg+xml"
    assert page.get("/small/0").headers["content-type"] == "image/jpeg"
    wrong = (
        "/sample/4",
        "/samples?first=-1",
        "/samples?kind=odd",
        "/samples?label=x",
        "/step-image?row=40",
    )
    for path in (*wrong, "/batch?batch_size=0"):
        answer = page.get(path)
        assert answer.status_code == 400
        assert "Not shown" in answer.text
    assert page.get("/nothing").status_code == 404
    for path in ("/small/" + 4400 * "1", "/sample/" + 21 * "1"):
        assert page.get(path).status_code == 400
    assert page.get(f"/sample/0?epoch={(1 << 32) - 1}").text.count("/crop/0?") == 1
    for path in (f"/sample/0?epoch={1 << 32}", f"/crop/0?epoch={1 << 32}", f"/sample/0?seed={1 << 64}"):
        assert "must be an integer from 0 to" in page.get(path).text
    assert "step must be 0 to 0" in unescape(page.get("/batch?step=3").text)


def test_samples_that_were_taken_down_are_marked_in_all_versions(tmp_path: Path) -> None:
    out = str(tmp_path / "set")
    make_tree(tmp_path / "images", 1, 6)
    make_tree(tmp_path / "more", 1, 3, first_seed=70)
    assert cli.main(["shard", str(tmp_path / "images"), "--out", out, "--no-shuffle", "-q"]) == 0
    assert cli.main(["append", out, str(tmp_path / "more"), "-q"]) == 0
    keys = list(feeder.ShardDataset(out).column("key"))
    assert cli.main(["takedown", out, keys[2], keys[7], "-q"]) == 0
    page, earlier = client(tmp_path / "set"), client(tmp_path / "set", version=1)
    stand_in = keys.index(feeder.ShardDataset(out).column("key")[2])
    text = page.get("/sample/2").text
    assert f'Taken down: <a href="/sample/{stand_in}">sample {stand_in}</a> stands in its place' in text
    assert "Taken down" not in page.get(f"/sample/{stand_in}").text
    assert f"taken down; sample {stand_in} stands in" in page.get("/samples").text
    assert f"taken down; sample {stand_in} stands in" in page.get("/batch?batch_size=9").text
    for each, gone in ((page, [2, 7]), (earlier, [2])):
        assert re.search(rf'kind=gone">that were .*>{len(gone)}<', each.get("/").text)
        assert ids(each.get("/samples?kind=gone").text) == gone


@contextlib.contextmanager
def served(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, and the URL that it prints."""
    process = WarmPython(["-m", "feeder", "browse", *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        try:
            yield process, process.stdout.readline().rpartition("open ")[2].strip()
        finally:
            process.kill()


def opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))


def test_command_serves_until_it_is_interrupted(shards: Path) -> None:
    with served(str(shards)) as (process, url):
        with opener().open(url) as answer:
            assert "token" not in answer.url
            assert b"class-1" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="403") as refused:
            urllib.request.urlopen(url.partition("?")[0])
        refused.value.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_the_command_sorts_by_the_scores_that_it_is_given(shards: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "scores.parquet", id=[4, 8, 2], loss=[0.1, 0.3, 0.2])
    with served(str(shards), "--scores", str(table)) as (_, url):
        browser = opener()
        browser.open(url).close()
        with browser.open(f"{url.partition('?')[0]}samples?order=highest:loss") as answer:
            assert ids(answer.read().decode())[:3] == [8, 2, 4]


def test_the_command_crops_by_the_recipe_that_it_is_given(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = feeder.ShardDataset(shards, [RandomCrop(16)])
    loader = feeder.DataLoader(dataset, batch_size=4, shuffle=True, seed=9)
    batches = list(loader)
    state, file = loader.state_dict(), tmp_path / "recipe.json"
    file.write_text(json.dumps(state["recipe"]))
    with served(str(shards), "--recipe", str(file)) as (_, url):
        browser, place = opener(), url.partition("?")[0]
        browser.open(url).close()
        with browser.open(f"{place}sample/0") as answer:
            text = answer.read().decode()
        assert "by the given recipe" in text
        assert "RandomCrop" in text
        at = "seed=9&epoch=0&step=3&batch_size=4"
        for row, image in enumerate(batches[3][0]):
            with browser.open(f"{place}step-image?{at}&row={row}") as answer:
                assert np.array_equal(picture(answer.read()).transpose(2, 0, 1), image)
    assert "default recipe; --state or --recipe shows a run" in client(shards).get("/batch").text

    for wrong, reason in (("[", "Expecting value"), ('[{"Nothing": {}}]', "Nothing"), (None, "can't be read: No such")):
        file.unlink() if wrong is None else file.write_text(wrong)
        assert cli.main(["browse", str(shards), "--recipe", str(file)]) == 2
        error = capsys.readouterr().err
        assert str(file) in error
        assert reason in error
    (tmp_path / "state.json").write_text(json.dumps(state))
    file.write_text("[]")
    assert cli.main(["browse", str(shards), "--recipe", str(file), "--state", str(tmp_path / "state.json")]) == 2
    assert "has a recipe of its own: leave --recipe out" in capsys.readouterr().err


def test_an_earlier_version_is_shown_by_name_and_with_its_states(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "set")
    make_tree(tmp_path / "images", 1, 3)
    make_tree(tmp_path / "more", 1, 2, first_seed=70)
    assert cli.main(["shard", str(tmp_path / "images"), "--out", out, "-q"]) == 0
    loader = feeder.DataLoader(feeder.ShardDataset(out, [RandomCrop(16)]), batch_size=3)
    list(loader)
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    assert cli.main(["append", out, str(tmp_path / "more"), "-q"]) == 0
    samples = "<dt>samples</dt><dd>{}</dd>"
    assert samples.format(5) in client(tmp_path / "set").get("/").text
    assert samples.format(3) in client(tmp_path / "set", version=1).get("/").text
    state = ("--state", str(tmp_path / "state.json"))
    with served(out, *state) as (_, url), (browser := opener()).open(url) as answer:
        assert samples.format(3) in answer.read().decode()
        with browser.open(f"{url.partition('?')[0]}batch?epoch=0") as batch:
            assert ids(batch.read().decode()) == [0, 1, 2]
    assert cli.main(["browse", out, *state, "--version", "2"]) == 2
    assert "is of version 1 of the set: leave --version out" in capsys.readouterr().err


def test_masks_of_a_folder_that_were_no_samples_of_a_run_are_none_beside_its_state(tmp_path: Path) -> None:
    tree = write_target_folder(tmp_path / "images", 5)
    loader = feeder.DataLoader(feeder.FolderDataset(tree, [RandomCrop(16)], targets=TARGETS), 4)
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    with served(str(tree), "--state", str(tmp_path / "state.json")) as (_, url), opener().open(url) as answer:
        assert "<dt>samples</dt><dd>5</dd>" in answer.read().decode()
