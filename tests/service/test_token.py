"""The token of a service is shown to nobody, and compared in constant time."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from feeder.service import server as server_module
from feeder.service.frames import SERVER_LIMITS, Kind, Receiver, pack_frame, peer_versions
from feeder.service.server import Server
from feeder.service.server_options import ServerOptions
from feeder.tools.cli import main
from tests.support import ROOT
from tests.support.daemons import free_port
from tests.support.processes import wait_until

WRONG = "0123456789abcdef" * 4
AT_DEBUG = "import logging, sys; logging.basicConfig(level=logging.DEBUG); logging.debug('at debug'); "
SERVE = AT_DEBUG + "from feeder.tools.cli import main; sys.exit(main(sys.argv[1:]))"
LOAD = (
    AT_DEBUG + "import feeder\n"
    "from feeder import transforms as T\n"
    "dataset = feeder.ShardDataset(sys.argv[1], transform=T.Compose([T.RandomResizedCrop(16)]))\n"
    "service = feeder.Service(sys.argv[2], only=True)\n"
    "one = feeder.DataLoader(dataset, batch_size=8, seed=0, service=service, timeout=3)\n"
    "print(one, repr(one), one.state_dict())\n"
    "while True:\n"
    "    try:\n"
    "        list(one)\n"
    "        break\n"
    "    except feeder.ServiceError as error:\n"
    "        if 'has not' not in str(error):\n"  # answered within three seconds, on a busy machine
    "            raise\n"
    "    finally:\n"
    "        print(one, repr(one), one.stats(), one.state_dict(), vars(one))\n"
)


@pytest.mark.slow
def test_the_token_is_shown_nowhere(root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("prometheus_client")
    path, log = tmp_path / "service.json", tmp_path / "log"
    port = free_port()
    command = ["serve", "--root", str(root), "--cpus", "1", "--file", str(path), "--metrics-port", str(port)]
    with open(log, "wb") as file:
        server = subprocess.Popen([sys.executable, "-c", SERVE, *command], cwd=ROOT, stdout=file, stderr=file)
    try:
        wait_until(lambda: path.exists() or server.poll() is not None)
        found = json.loads(path.read_text())
        other = tmp_path / "wrong.json"
        other.write_text(json.dumps(found | {"token": WRONG}))
        command = [sys.executable, "-c", LOAD, str(root / "set")]
        output: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": ROOT}
        loads = [subprocess.Popen([*command, f"file:{each}"], **output) for each in (path, other)]
        served, refused = (each.communicate()[0] for each in loads)
        for form in ([], ["--json"]):
            for each in (path, other):
                main(["serve", "--status", "--file", str(each), *form])
        status = "".join(capfd.readouterr())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            metrics = answer.read().decode()
    finally:
        server.terminate()
        server.wait()
    assert "at debug" in served
    for text in (refused, status):
        assert "refuses: the token is not that of this service" in text.replace("refuses this job", "refuses")
    assert "images/s" in status
    assert "feeder_service_job_images_total" in metrics
    assert "at debug" in log.read_text()
    options = ServerOptions((str(root),), 1, found["token"])
    for text in (served, refused, status, metrics, log.read_text(), repr(options), str(options)):
        assert found["token"] not in text
        assert WRONG not in text


def test_a_token_is_compared_in_constant_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server follows hmac.compare_digest, whatever that says."""
    said: list[bool] = []
    monkeypatch.setattr(server_module, "hmac", SimpleNamespace(compare_digest=lambda one, other: said.pop()))
    server = Server(ServerOptions((str(root),), 0, "token"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        for token, answer, kind in (("token", False, Kind.REFUSED), ("another", True, Kind.WELCOME)):
            said.append(answer)
            with socket.create_connection(server.address, 30) as peer:
                peer.sendall(pack_frame(Kind.HELLO, {"token": token, "versions": peer_versions(), "job": "test"}))
                assert next(Receiver(peer, SERVER_LIMITS).frames()).kind == kind
            assert not said
    finally:
        server.stop()
        thread.join()
