"""The pages of feeder browse in a browser, as a person uses them."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, TimeoutError, expect

from feeder.tools import cli
from feeder.tools.browse.page_server import make_app
from feeder.tools.browse.set_view import SetView
from feeder.tools.browse.training import Training
from tests.support.browser import PHONE_PX, check_look, open_page, serve
from tests.support.images import encode, pixels
from tests.support.processes import all_ended
from tests.support.shard_sets import write_tar

TOKEN = "secret-of-the-test"
HOSTILE = "<img src=x onerror=alert(1)>"
PLACES = (
    "",
    "samples",
    "samples?kind=small",
    "samples?order=highest%3Aloss",
    "sample/0",
    "sample/3",
    "batch",
    "batch?batch_size=2",
    "batch?step=999",
    "classes",
)

pytestmark = pytest.mark.slow


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The address of a set of four grey and colored samples with captions, masks and boxes.

    One is damaged, another has a mask of another size, and two have the same bytes.
    """
    grey = encode(Image.new("RGB", (96, 64), (128, 128, 128)), quality=100)
    images = {"a": encode(pixels(0, 96, 64)), "b": grey, "c": encode(pixels(2, 96, 64)), "d": encode(pixels(0, 96, 64))}
    captions = {"a": "A Red bicycle", "b": "a street", "c": HOSTILE, "d": "a wheel"}
    mask = np.zeros((64, 96), np.uint8)
    mask[:, :48] = 1
    boxes = json.dumps({"boxes": [[60, 10, 90, 50]], "labels": [0]}).encode()
    members = list[tuple[str, bytes]]()
    for key, image in images.items():
        seen = mask if key != "d" else mask[:8, :8]
        members += [(f"{key}.jpg", image), (f"{key}.cls", b"1"), (f"{key}.txt", captions[key].encode())]
        members += [(f"{key}.seg.png", encode(Image.fromarray(seen), "PNG")), (f"{key}.boxes.json", boxes)]
    (tmp_path / "set").mkdir()
    tar = write_tar(tmp_path / "set/a.tar", members)
    assert cli.main(["index", str(tar), "-q"]) == 0
    tar.write_bytes(tar.read_bytes().replace(images["c"], b"no image".ljust(len(images["c"]))))
    scores = tmp_path / "scores.csv"
    scores.write_text("key,loss,margin\na,0.5,-1\nb,0.25,\nd,1.5,7\n")
    view = SetView(str(tmp_path / "set"), scores=str(scores))
    with serve(make_app(view, Training(view, 32, None), TOKEN)) as (found, _):
        yield found


@pytest.fixture
def page(url: str) -> Iterator[Page]:
    """A desktop's window that shows the set."""
    with open_page() as found:
        found.goto(f"{url}?token={TOKEN}")
        yield found


def test_a_person_finds_samples(page: Page, url: str) -> None:
    expect(page).to_have_url(url)
    page.goto(f"{url}samples")
    page.locator(".grid a").nth(2).click()
    expect(page.locator("pre", has_text=HOSTILE)).to_be_visible()
    expect(page.get_by_text("turn pages")).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_text("a wheel")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("A")
    page.keyboard.press("Enter")
    expect(page.locator(".grid a").first).to_have_attribute("href", "/sample/0")


def test_both_arrows_turn_the_pages_of_the_grid(page: Page, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.tools.browse.set_pages.ROWS_AT_ONCE", 2)
    page.goto(f"{url}samples")
    names = page.locator(".grid .name")
    expect(names).to_have_text(["a", "b"])
    page.keyboard.press("ArrowRight")
    expect(names).to_have_text(["c", "d"])
    page.keyboard.press("ArrowLeft")
    expect(names).to_have_text(["a", "b"])


def test_a_phone_shows_whole_tables_and_no_keys(url: str) -> None:
    with open_page(PHONE_PX, 740) as page:
        page.goto(f"{url}?token={TOKEN}")
        for place in PLACES:
            page.goto(f"{url}{place}")
            expect(page.get_by_text("turn pages")).to_be_hidden()
            tables = page.locator(".scroll").evaluate_all("each => each.map(one => one.scrollWidth - one.clientWidth)")
            assert not any(tables), place


def colors(image: Locator) -> np.ndarray:
    """The pixels of an image as the browser shows it, [H, W, 3], 0-255."""
    found: list[Any] = image.evaluate(
        """async image => {
            image.loading = "eager";
            await image.decode();
            const canvas = new OffscreenCanvas(image.naturalWidth, image.naturalHeight);
            const pen = canvas.getContext("2d");
            pen.drawImage(image, 0, 0);
            return [canvas.height, canvas.width, [...pen.getImageData(0, 0, canvas.width, canvas.height).data]];
        }"""
    )
    height, width, values = found
    return np.array(values).reshape(height, width, 4)[:, :, :3]


def test_a_person_ticks_samples_and_copies_their_keys(page: Page, url: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{url}samples")
    page.get_by_label("tick sample 1").check()
    page.get_by_label("tick sample 3").click(modifiers=["Shift"])
    expect(page.locator("output")).to_have_text("3 samples")
    page.get_by_label("tick sample 2").uncheck()
    page.get_by_role("button", name="Copy keys").click()
    expect(page.locator(".ticked [role=status]")).to_have_text("Copied 2 keys.")
    assert page.evaluate("navigator.clipboard.readText()") == "b\nd"
    page.get_by_role("button", name="Copy ids").click()
    expect(page.locator(".ticked [role=status]")).to_have_text("Copied 2 ids.")
    assert page.evaluate("navigator.clipboard.readText()") == "[1, 3]"
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save keys").click()
    assert saved.value.suggested_filename == "ticked.txt"
    assert saved.value.path().read_text() == "b\nd\n"
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save ids").click()
    assert saved.value.suggested_filename == "ticked-ids.json"
    assert json.loads(saved.value.path().read_text()) == [1, 3]
    expect(page.locator(".ticked [role=status]")).to_have_text("Saved ticked-ids.json.")

    page.get_by_label("name of the list").fill("blurred")
    page.get_by_label("tick sample 0").check()
    page.get_by_role("button", name="Show").last.click()
    expect(page.locator(".grid .name")).to_have_text(["a"])
    page.get_by_label("ticked as").select_option("ticked")
    expect(page.locator(".grid .name")).to_have_text(["b", "d"])
    expect(page).to_have_url(re.compile("ids=1%2C3"))
    expect(page.get_by_label("ticked as")).to_have_value("ticked")
    page.get_by_label("ticked as").select_option("any")
    expect(page.locator(".grid .name")).to_have_text(["a", "b", "c", "d"])
    page.get_by_label("name of the list").fill("ticked")
    page.get_by_label("name of the list").press("Tab")
    expect(page.locator("output")).to_have_text("2 samples")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("output")).to_have_text("0 samples")


def test_a_person_who_may_not_copy_is_told(page: Page, url: str) -> None:
    page.add_init_script("navigator.clipboard.writeText = () => Promise.reject()")
    page.goto(f"{url}samples")
    page.get_by_label("tick sample 1").check()
    page.get_by_role("button", name="Copy keys").click()
    expect(page.locator(".ticked [role=status]")).to_have_text("Not copied: the browser does not allow it.")


def test_a_person_chooses_one_of_many_classes_by_its_number(
    page: Page, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.tools.browse.set_pages.CLASSES_TO_CHOOSE", 1)
    page.goto(f"{url}samples")
    page.get_by_label("class", exact=True).fill("0")
    page.get_by_role("button", name="Show").first.click()
    expect(page.locator(".grid img")).to_have_count(0)
    expect(page.get_by_label("class", exact=True)).to_have_value("0")


def test_a_person_chooses_samples(page: Page, url: str) -> None:
    page.goto(f"{url}samples")
    page.get_by_label("text", exact=True).fill("a")
    page.get_by_label("order").select_option("smallest first")
    page.get_by_label("with masks and boxes").check()
    page.get_by_role("button", name="Show").first.click()
    expect(page.get_by_label("order")).to_have_value("smallest")
    expect(page.get_by_label("with masks and boxes")).to_be_checked()
    expect(page.locator(".grid img").first).to_have_attribute("src", re.compile("over=1"))


def test_a_search_through_captions_goes_on_by_itself(page: Page, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.tools.browse.text_search.CAPTIONS", 1)
    page.goto(f"{url}samples")
    page.get_by_label("text", exact=True).fill("WHEEL")
    page.get_by_role("button", name="Show").first.click()
    expect(page.locator(".grid .name")).to_have_text(["d"])
    expect(page).to_have_url(re.compile("first=3&text=WHEEL"))


def test_a_person_sorts_by_scores(page: Page, url: str) -> None:
    page.goto(f"{url}samples")
    for words, names in (("lowest", ["b", "a", "d", "c"]), ("highest", ["d", "a", "b", "c"])):
        page.get_by_label("order").select_option(f"score: loss, {words} first")
        page.get_by_role("button", name="Show").first.click()
        expect(page.locator(".grid .name")).to_have_text(names)
    expect(page.locator(".grid li").first).to_contain_text("loss 1.5")
    page.locator(".grid a").first.click()
    expect(page.locator("dt", has_text="score: margin")).to_be_visible()


def test_a_person_turns_from_batch_to_batch(page: Page) -> None:
    page.get_by_role("link", name="Batches").click()
    page.get_by_label("batch size").fill("2")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("heading", name="Batch 0 of epoch 0")).to_be_visible()
    samples = page.locator(".grid a")
    expect(samples).to_have_count(2)
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_role("heading", name="Batch 1 of epoch 0")).to_be_visible()
    expect(samples.locator("img")).to_have_count(2)
    expect(page.get_by_text("in place of sample 2")).to_have_count(1)  # the damaged one
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("heading", name="Batch 0 of epoch 0")).to_be_visible()
    expect(page.get_by_text("in place of sample 2")).to_have_count(0)


def test_a_person_sees_masks_and_boxes_and_the_image_without_them(page: Page) -> None:
    page.get_by_role("link", name="Samples", exact=True).click()
    page.locator(".grid a").nth(1).click()
    drawn = colors(page.get_by_role("img", name="the image, with masks and boxes"))
    is_green = drawn[:, :, 1] > drawn[:, :, 0] + 30
    assert is_green[:, :40].all()
    assert not is_green[:, 56:].any()
    is_red = drawn[:, :, 0] > drawn[:, :, 1] + 60
    assert is_red[10, 62:88].all()
    assert not is_red[32:44, 66:84].any()  # below the number of its class
    page.get_by_role("link", name="without").click()
    plain = page.get_by_role("img", name="the image", exact=True)
    assert abs(colors(plain) - 128).max() <= 2
    page.get_by_role("link", name="with masks and boxes").click()
    expect(page.get_by_role("img", name="the image, with masks and boxes")).to_be_visible()
    for key in ("c", "d"):
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("heading", name=key, exact=True)).to_be_visible()
    reason = "the mask has 8x8 pixels (width x height), the image 96x64"
    expect(page.get_by_text(f"Not drawn: seg.png: {reason}")).to_be_visible()


def test_a_person_turns_through_the_epochs_of_a_sample(page: Page, url: str) -> None:
    page.goto(f"{url}sample/0")
    crops = page.locator(".grid").first.locator("li")
    expect(crops.locator(".name")).to_have_text([f"epoch {epoch}" for epoch in range(8)])
    first = [colors(crop.locator("img")).tobytes() for crop in crops.all()]
    assert len(set(first)) == 8
    page.get_by_label("from epoch").fill("7")
    page.get_by_role("button", name="Show").click()
    expect(crops.locator(".name")).to_have_text([f"epoch {epoch}" for epoch in range(7, 15)])
    second = [colors(crop.locator("img")).tobytes() for crop in crops.all()]
    assert second[0] == first[7]
    assert not set(second[1:]) & set(first)
    page.get_by_label("seed").fill("1")
    page.get_by_role("button", name="Show").click()
    expect(page).to_have_url(re.compile("seed=1&epoch=7"))
    assert colors(crops.first.locator("img")).tobytes() != second[0]


@pytest.mark.parametrize("width_px", [PHONE_PX, 1280])
def test_pages_are_readable_on_a_phone_and_a_desktop_in_light_and_dark(width_px: int, url: str) -> None:
    seen = set()
    with open_page(width_px) as page:
        page.goto(f"{url}?token={TOKEN}")
        for place in PLACES:
            page.goto(f"{url}{place}")
            seen |= check_look(page, "light") | check_look(page, "dark")
    assert seen >= {"A", "BDI", "BUTTON", "DD", "DT", "FIGCAPTION", "H1", "INPUT", "LABEL", "P", "PRE", "SMALL", "TD"}


@pytest.mark.parametrize("width_px", [400, 1280])
def test_the_page_of_parity_is_readable_on_a_phone_and_a_desktop_in_light_and_dark(
    width_px: int, tmp_path: Path
) -> None:
    (tmp_path / "images/a").mkdir(parents=True)
    for seed in range(2):
        (tmp_path / f"images/a/{seed}-{HOSTILE}.jpg").write_bytes(encode(pixels(seed, 240, 180)))
    file = tmp_path / "parity.html"
    assert cli.main(["parity", str(tmp_path / "images"), "--backend", "cpu", "--html", str(file), "-q"]) == 0
    with open_page(width_px) as page:
        page.goto(file.as_uri())
        expect(page.get_by_text("difference x 16 (grey = equal)")).to_have_count(2)
        assert (colors(page.get_by_role("img", name="difference").first) != 128).any()
        seen = check_look(page, "light") | check_look(page, "dark")
    assert seen >= {"FIGCAPTION", "H1", "P", "TD", "TH"}


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_nothing_of_the_browser_runs_on_after_a_test_that_fails() -> None:
    before = children(os.getpid())
    with contextlib.suppress(ZeroDivisionError), open_page():
        started = [pid for pid in children(os.getpid()) if pid not in before]
        for pid in started:
            started += children(pid)
        raise ZeroDivisionError
    assert len(started) > 2
    assert all_ended(started)


@pytest.mark.parametrize(
    "body",
    [
        "<script>alert('got in')</script>",
        "<script>throw Error('got in')</script>",
        "<script>console.error('got in')</script>",
        "<img src='http://127.0.0.2:9/got in'>",
    ],
)
def test_what_a_page_must_not_do_fails_its_test(body: str) -> None:
    with pytest.raises(AssertionError, match=r"got( |%20)in"), open_page() as page:
        page.set_content(body)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("<p style='color: #777'>faint", "faint"),
        ("<p style='color: rgba(0, 0, 0, .5)'>see-through", "see-through"),
        ("<input placeholder=pale style='color: #000'>", "pale"),
        ("<svg><rect width=90 height=90 fill='#333'></rect><text y=30 fill='#000'>drawn</text></svg>", "drawn"),
        ("<div style='width: 2000px; height: 1px'>", "the whole page"),
        ("<div style='overflow: hidden'><p style='margin-left: 2000px; width: 9px'>cut", "P cut is beyond"),
        ("<img src='data:image/png;base64,AAAA'>", "data:image/png.* is no image"),
    ],
)
def test_a_page_that_looks_wrong_fails_its_test(body: str, found: str, light_page: Page) -> None:
    light_page.set_content(f"<style>body {{ background: #fff }} ::placeholder {{ color: #ccc }}</style>{body}")
    with pytest.raises(AssertionError, match=found):
        check_look(light_page, "light")
    light_page.set_content(
        "<body style='background: #fff; color: #000'><div style='overflow-x: auto'><p style='width: 2000px'>wide"
    )
    check_look(light_page, "light")


def test_a_page_that_stays_light_fails_its_test(light_page: Page) -> None:
    light_page.set_default_timeout(100)
    light_page.set_content("<body style='background: #fff'>")
    with pytest.raises(TimeoutError):
        check_look(light_page, "dark")


@pytest.fixture(scope="module")
def light_page() -> Iterator[Page]:
    """An empty window."""
    with open_page() as found:
        yield found
