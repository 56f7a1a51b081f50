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


def opened(bucket: Bucket, folder: Path) -> TestClient:
    view = SetView(f"{bucket.url}/set", str(folder / "scans"))
    page = TestClient(make_app(view, Training(view, 32), "token"), base_url="http://127.0.0.1:8000")
    page.get("/", params={"token": "token"})
    return page


def test_rejected_files_of_a_set_in_a_store_are_shown(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make_tree(tmp_path / "images", 2, 3)
    (tmp_path / "images/class-0/a.jpg").write_bytes(b"no image")
    command = ["shard", str(tmp_path / "images"), "--max-bad", "1", "-q"]
    assert cli.main([*command, "--out", f"{bucket.url}/set"]) == 0
    with end_fetchers(tmp_path):
        page = opened(bucket, tmp_path)
        assert 'href="/rejected"' in page.get("/").text
        assert "class-0/a.jpg" in page.get("/rejected").text
        for name in ("manifest.json", "rejected.jsonl"):
            bucket.client.delete_object(Bucket=bucket.name, Key=f"set/{name}")
        assert "Not known, as the set has no manifest" in opened(bucket, tmp_path).get("/rejected").text
