"""feeder browse of a set in a store."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from feeder.tools import cli
from feeder.tools.browse.page_server import make_app
from feeder.tools.browse.set_view import SetView
from feeder.tools.browse.training import Training
from tests.support.images import make_tree
from tests.support.remote import Bucket
from tests.support.remote_sets import end_fetchers


def test_samples_of_a_set_in_a_store_are_shown(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make_tree(tmp_path / "images", 2, 3)
    assert cli.main(["shard", str(tmp_path / "images"), "--out", f"{bucket.url}/set", "-q"]) == 0
    with end_fetchers(tmp_path):
        view = SetView(f"{bucket.url}/set")
        page = TestClient(make_app(view, Training(view, 32), "token"), base_url="http://127.0.0.1:8000")
        page.get("/", params={"token": "token"})
        assert "class-1" in page.get("/sample/5").text
        assert page.get("/sample/6").status_code == 400
