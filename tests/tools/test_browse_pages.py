"""The pages of feeder browse in a browser, as a person uses them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from feeder.tools import cli
from feeder.tools.browse.server import make_app
from feeder.tools.browse.set_view import SetView
from feeder.tools.browse.training import Training
from tests.support.browser import open_page, serve
from tests.support.images import encode, pixels
from tests.support.processes import all_ended
from tests.support.shard_sets import write_tar

TOKEN = "secret-of-the-test"
HOSTILE = "<img src=x onerror=alert(1)>"

pytestmark = pytest.mark.slow


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The address of a set of four samples with captions, of which one is damaged, and two have the same bytes."""
    images = {"a": encode(pixels(0)), "b": encode(pixels(1)), "c": encode(pixels(2)), "d": encode(pixels(0))}
    captions = {"a": "A Red bicycle", "b": "a street", "c": HOSTILE, "d": "a wheel"}
    members = [
        member for key in images for member in ((f"{key}.jpg", images[key]), (f"{key}.txt", captions[key].encode()))
    ]
    (tmp_path / "set").mkdir()
    tar = write_tar(tmp_path / "set/a.tar", members)
    assert cli.main(["index", str(tar), "-q"]) == 0
    tar.write_bytes(tar.read_bytes().replace(images["c"], b"no image".ljust(len(images["c"]))))
    view = SetView(str(tmp_path / "set"), str(tmp_path / "scans"))
    with serve(make_app(view, Training(view, 32, None), TOKEN)) as (found, _):
        yield found


@pytest.fixture
def page(url: str) -> Iterator[Page]:
    """A desktop's window that shows the set."""
    with open_page() as found:
        found.goto(f"{url}?token={TOKEN}")
        yield found


def test_a_person_scans_a_set_and_finds_samples(page: Page, url: str) -> None:
    expect(page).to_have_url(url)
    page.get_by_role("button", name="Scan").click()
    expect(page.get_by_text("All samples were scanned.")).to_be_visible()
    page.get_by_role("link", name="1 that can't be decoded").click()
    page.locator(".grid a").click()
    expect(page.locator("pre", has_text=HOSTILE)).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_text("a wheel")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("red bicycle")
    page.keyboard.press("Enter")
    expect(page.locator(".grid a")).to_have_attribute("href", "/sample/0")


def test_pages_fit_a_phone_and_follow_light_and_dark(url: str) -> None:
    with open_page(360, 740) as page:
        page.goto(f"{url}?token={TOKEN}")
        for place in ("", "samples", "sample/0", "batch", "rejected"):
            page.goto(f"{url}{place}")
            assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
            page.emulate_media(color_scheme="light")
            expect(page.locator("body")).to_have_css("background-color", "rgb(255, 255, 255)")
            page.emulate_media(color_scheme="dark")
            expect(page.locator("body")).to_have_css("background-color", "rgb(20, 23, 27)")


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


@pytest.mark.parametrize("body", ["<script>alert('got in')</script>", "<script>throw Error('got in')</script>"])
def test_what_a_page_must_not_do_fails_its_test(body: str) -> None:
    with pytest.raises(AssertionError, match="got in"), open_page() as page:
        page.set_content(body)
