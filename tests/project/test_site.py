"""The site of the documents: it is built without a warning, from what the repository has, and can be read."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

import feeder
from feeder import fields, service, transforms
from tests.support import ROOT
from tests.support.browser import PHONE_PX, check_look, open_page, serve

# Public for those who write ops and frameworks, and described where they are used.
UNLISTED = {"BatchOp", "Draws", "fields", "recipe_or_views", "service", "transforms", "wds"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built into a folder."""
    folder = tmp_path_factory.mktemp("site")
    script = ROOT / "scripts/build_site.py"
    done = subprocess.run([sys.executable, script, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Parsed(HTMLParser):
    """The targets of a page's links and images, and its anchors."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets, self.anchors = set[str](), {""}
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src"):
                self.targets.add(value or "")
            elif name == "id":
                self.anchors.add(value or "")


@pytest.mark.slow
def test_site_is_built_and_its_links_lead_somewhere(site: Path) -> None:
    pages = {path: Parsed(path) for path in site.rglob("*.html") if path.name != "404.html"}  # which has absolute ones
    for path, page in pages.items():
        for target in map(urlsplit, page.targets):
            if not target.scheme and not target.netloc:
                to = (path.parent / unquote(target.path)).resolve() if target.path else path
                to = to / "index.html" if to.is_dir() else to
                leads = to.exists() and (to not in pages or target.fragment in pages[to].anchors)
                assert leads, f"{path.relative_to(site)}: {target.geturl()}"
    assert "RandomResizedCrop" in (site / "docs/reference/transforms/index.html").read_text()
    assert "feeder shard" in (site / "docs/reference/commands/index.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("width_px", "scheme"), [(PHONE_PX, "dark"), (1280, "light")])
def test_every_page_is_readable_on_a_phone_and_a_desktop_in_light_and_dark(
    width_px: int, scheme: Any, site: Path
) -> None:
    places = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    assert len(places) > 40
    files = StaticFiles(directory=site)
    with serve(Starlette(routes=[Mount("/", files)])) as (url, _), open_page(width_px) as page:
        for place in places:
            page.goto(url + place)
            assert check_look(page, scheme) >= {"A", "H1"}


def test_reference_names_everything_public() -> None:
    text = "".join(path.read_text() for path in (ROOT / "docs/reference").glob("*.md"))
    public = {f"feeder.{name}" for name in feeder.__all__ if name not in UNLISTED}
    public |= {f"feeder.transforms.{name}" for name in transforms.__all__ if name not in UNLISTED}
    public |= {f"feeder.fields.{name}" for name in fields.__all__}
    public |= {f"feeder.service.{name}" for name in service.__all__}
    assert {name for name in public if f"::: {name}\n" not in text} == set()
