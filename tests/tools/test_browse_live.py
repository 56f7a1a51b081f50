"""The page of running loaders and services: what their metrics say, renewed as it is looked at."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any
from wsgiref import simple_server

import pytest
from playwright.sync_api import expect
from starlette.testclient import TestClient

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.service.metrics import serve_metrics
from feeder.tools import cli
from feeder.tools.browse.endpoints import EndpointFigures, Endpoints
from feeder.tools.browse.metrics_reader import metrics_url
from feeder.tools.browse.server import make_app
from feeder.transforms import RandomResizedCrop
from tests.support.browser import open_page, serve
from tests.support.loader_data import write_shards

TOKEN = "secret-of-the-test"
HOSTILE = "<img src=x onerror=alert(1)>"


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), 40)


@pytest.fixture
def loader(shards: Path) -> Iterator[DataLoader[Any]]:
    with contextlib.closing(
        DataLoader(ShardDataset(shards, RandomResizedCrop(8)), batch_size=4, num_workers=2, metrics_port=0)
    ) as found:
        yield found


def place(loader: DataLoader[Any]) -> str:
    assert loader.metrics_url is not None
    return loader.metrics_url


def run_epoch(loader: DataLoader[Any]) -> None:
    for _ in loader:
        pass


def look(endpoints: Endpoints, clock: Clock, seconds: float = 2.0) -> EndpointFigures:
    clock.now_s += seconds
    (found,) = endpoints.look()
    return found


def test_figures_are_those_of_the_time_between_looks(loader: DataLoader[Any]) -> None:
    clock = Clock()
    endpoints = Endpoints([place(loader)], clock)
    run_epoch(loader)
    assert look(endpoints, clock).loaders == []  # one look has no rate
    before, batches = loader.stats(), iter(loader)
    for _ in range(5):
        next(batches)
    after = loader.stats()
    (found,) = look(endpoints, clock, 2.0).loaders
    assert (found.batches, found.samples, found.workers) == (15, 60, 2)
    assert found.samples_per_s == pytest.approx(10.0)
    elapsed, waited = (after[name] - before[name] for name in ("elapsed_ns", "waited_ns"))
    assert found.waited_share == pytest.approx(waited / elapsed, rel=0.01)
    assert {stage.name for stage in found.of_workers} >= {"read", "decode"}
    assert "wait_batch" in {stage.name for stage in found.of_trainer}
    for stages in (found.of_workers, found.of_trainer):
        assert sum(stage.share for stage in stages) == pytest.approx(1.0)
    assert found.slots == after["slots"]["total"]


def test_a_loader_that_stalls_is_told_by_its_time_without_a_batch(loader: DataLoader[Any]) -> None:
    clock = Clock()
    endpoints = Endpoints([place(loader)], clock)
    batches = iter(loader)
    next(batches)
    look(endpoints, clock)
    for _ in range(3):
        (found,) = look(endpoints, clock, 10.0).loaders
    assert found.idle_s == 30.0
    assert found.samples_per_s == 0.0
    assert found.verdict.startswith("No batch for 30 s")
    next(batches)
    (found,) = look(endpoints, clock).loaders
    assert found.idle_s == 0.0


def test_batches_ready_are_told_in_epochs_alone(loader: DataLoader[Any]) -> None:
    clock = Clock()
    page = client(Endpoints([place(loader)], clock))
    batches = iter(loader)
    next(batches)
    shown = []
    for _ in range(2):
        page.get("/live/figures")
        clock.now_s += 2
        shown.append(re.findall(r"<dt>(batches ready[^<]*)</dt><dd>([^<]*)<", page.get("/live/figures").text))
        for _ in batches:
            pass
    ((name, ready),) = shown[0]
    assert name == "batches ready"
    assert re.fullmatch(r"\d of [1-9]\d*", ready)
    assert shown[1] == [("batches ready, between epochs", "–")]


def test_lost_workers_are_counted(shards: Path) -> None:
    clock, dataset = Clock(), ShardDataset(shards, RandomResizedCrop(8))
    with contextlib.closing(DataLoader(dataset, batch_size=4, num_workers=1, metrics_port=0)) as loader:
        endpoints = Endpoints([place(loader)], clock)
        batches = iter(loader)
        next(batches)
        look(endpoints, clock)
        os.kill(loader.worker_pids()[0], signal.SIGKILL)  # the only one, whose last batches are not made yet
        for _ in batches:
            pass
        (found,) = look(endpoints, clock).loaders
    assert (found.respawns, found.lost) == (1, 1)


def test_another_process_at_the_same_place_begins_anew_and_a_silent_one_is_told() -> None:
    counts, clock = {"images": 100, "parts": 5, "failed": 0}, Clock()
    with served(lambda: service_status({"a": counts})) as url:
        endpoints = Endpoints([url], clock)
        look(endpoints, clock)
        assert look(endpoints, clock).service is not None
        counts["images"] = 40
        assert look(endpoints, clock).service is None
        counts["images"] = 90
        found = look(endpoints, clock, 5.0).service
        assert found is not None
        assert found.images_per_s == 10.0
    found_last = look(endpoints, clock, 7.0)
    assert found_last.problem == "Connection refused"
    assert found_last.silent_s == 7.0


def service_status(jobs: dict[str, dict[str, int]], **others: int) -> dict[str, Any]:
    names = ("cores", "busy", "queue", "connections", "lost", "dropped", "messages", "shared", "cpu_s")
    return {**dict.fromkeys(names, 1), "jobs": jobs, **others}


@contextlib.contextmanager
def served(status: Callable[[], dict[str, Any]]) -> Iterator[str]:
    """Metrics of a service, and the URL at which they are, until the block ends."""
    servers: list[Any] = []

    class Server(simple_server.WSGIServer):
        def __init__(self, host: str, port: int) -> None:
            super().__init__((host, port), simple_server.WSGIRequestHandler)
            servers.append(self)

        def handle_error(self, request: Any, client_address: Any) -> None:
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("feeder.service.metrics.HttpServer", Server)
        patch.setattr(simple_server.WSGIRequestHandler, "log_message", lambda *_: None)
        try:
            yield serve_metrics(status, "127.0.0.1", 0)
        finally:
            servers[0].shutdown()
            servers[0].server_close()


def client(endpoints: Endpoints, token: str | None = TOKEN) -> TestClient:
    app = make_app(None, None, TOKEN, endpoints=endpoints)
    found = TestClient(app, base_url="http://127.0.0.1:8000", follow_redirects=False)
    if token is not None:
        assert found.get("/", params={"token": token}).status_code == 303
    return found


def test_a_service_and_its_jobs_are_shown_and_their_names_are_text() -> None:
    counts, clock = {"images": 100, "parts": 5, "failed": 2}, Clock()
    with served(lambda: service_status({HOSTILE: counts}, lost=3, cores=4)) as url:
        page = client(Endpoints([url], clock))
        clock.now_s += 2
        page.get("/live")
        clock.now_s += 2
        counts["images"] = 160
        text = page.get("/live/figures").text
    assert "<img" not in text
    assert HOSTILE in unescape(text)
    assert re.search(r"images/s</dt><dd>30<", text)
    assert re.search(r"processes lost</dt><dd>3<", text)


def test_the_live_page_is_for_its_user_alone_and_leads_without_a_set() -> None:
    endpoints = Endpoints(["9"])
    stranger = client(endpoints, token=None)
    for path in ("/", "/live", "/live/figures", "/static/htmx.min.js"):
        assert stranger.get(path).status_code == 403
    page = client(endpoints)
    assert page.get("/").headers["location"] == "/live"
    assert page.get("/live", headers={"Host": "evil.example"}).status_code == 400
    assert page.get("/samples").status_code == 404
    answer = page.get("/live")
    assert answer.status_code == 200
    assert "connect-src 'self'" in answer.headers["content-security-policy"]


def answering(answer: bytes) -> tuple[str, threading.Thread]:
    """An HTTP server of one answer."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listening, contextlib.suppress(OSError):
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return f"127.0.0.1:{listening.getsockname()[1]}", thread


LONG = b"HTTP/1.0 200 OK\r\n\r\n" + b"# nothing\n" * (1 << 20)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.0 302 Found\r\nLocation: http://127.0.0.1:9/metrics\r\n\r\n", "Found"),
        (b"HTTP/1.0 404 Not Found\r\n\r\n", "Not Found"),
        (b"HTTP/1.0 200 OK\r\n\r\n<html>", "no metrics"),
        (b"HTTP/1.0 200 OK\r\n\r\nother_metric 1\n", "no metrics of feeder"),
        (LONG, "too long"),
        (b"SSH-2.0-OpenSSH\r\n", "SSH"),
        (b"", "Remote end closed"),
    ],
)
def test_what_serves_no_metrics_is_told_and_no_redirection_followed(answer: bytes, problem: str) -> None:
    where, thread = answering(answer)
    (found,) = Endpoints([where]).look()
    thread.join()
    assert problem in found.problem
    assert found.loaders == []


@pytest.mark.parametrize(
    ("said", "url"),
    [
        ("9090", "http://127.0.0.1:9090/metrics"),
        ("node1:9090", "http://node1:9090/metrics"),
        ("[::1]:9090", "http://[::1]:9090/metrics"),
        ("https://node1/x/metrics", "https://node1/x/metrics"),
    ],
)
def test_places(said: str, url: str) -> None:
    assert metrics_url(said) == url


@pytest.mark.parametrize("said", ["", "node1", "99999", "file:///etc/passwd", "http://a:b@host:1", "a b:9", "host:x"])
def test_wrong_places_are_refused(said: str) -> None:
    with pytest.raises(ArgumentError, match="expected the port"):
        metrics_url(said)


def test_the_command_asks_for_a_set_or_a_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["browse"]) == 2
    assert "give a SET to look at, --live PLACE, or both" in capsys.readouterr().err
    assert cli.main(["browse", "--live", "nowhere"]) == 2


@pytest.mark.slow
def test_a_person_sees_figures_change_without_loading_the_page_again(loader: DataLoader[Any]) -> None:
    app = make_app(None, None, TOKEN, endpoints=Endpoints([place(loader)]))
    ended = r"htmx:(afterRequest|sendError), .*|Failed to load resource: net::ERR_CONNECTION_(REFUSED|RESET)"
    with serve(app) as (url, server), open_page(360, 740, allowed=ended) as page:
        page.goto(f"{url}?token={TOKEN}")
        page.evaluate("() => { window.isTheSame = true; }")
        tile = page.locator(".tiles div", has=page.get_by_text("batches", exact=True))
        run_epoch(loader)
        expect(tile.locator("dd")).to_have_text("10")
        run_epoch(loader)
        expect(tile.locator("dd")).to_have_text("20")
        assert page.evaluate("() => window.isTheSame") is True
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
        page.evaluate("() => addEventListener('keydown', event => { window.isLeft = !event.defaultPrevented; })")
        page.keyboard.press("/")  # the browser's own, as there is no search; a script's error fails open_page
        assert page.evaluate("() => window.isLeft") is True
        lost = page.get_by_text("feeder browse does not answer")
        expect(lost).to_be_hidden()
        server.should_exit = True
        expect(lost).to_be_visible()
