"""The servers that tests of remote sets rest on do what their names say, and end with the tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.fault_proxy import FaultProxy, Faults
from tests.support.processes import all_ended
from tests.support.remote import Bucket
from tests.support.tls import TlsProxy

_DATA = bytes(range(256)) * 1024


def _get(url: str, timeout_s: float = 20) -> bytes | int:
    """Returns the bytes of an object, or the status of an error."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            data: bytes = answer.read()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    return data


def _ask(connection: http.client.HTTPConnection, bucket: Bucket) -> bytes:
    connection.request("GET", f"/{bucket.name}/a/b.bin")
    return connection.getresponse().read()


@pytest.fixture
def url(bucket: Bucket, fault_proxy: FaultProxy) -> str:
    """URL of an object of 256 KiB that anyone may read through the proxy."""
    bucket.put("a/b.bin", _DATA)
    bucket.open_to_all()
    return f"{fault_proxy.endpoint}/{bucket.name}/a/b.bin"


def test_a_bucket_takes_ranges_conditions_and_parts(bucket: Bucket) -> None:
    bucket.put("a", _DATA)
    assert bucket.keys() == ["a"]
    assert bucket.get("a") == _DATA
    get = bucket.client.get_object
    etag = get(Bucket=bucket.name, Key="a")["ETag"]
    part = get(Bucket=bucket.name, Key="a", Range="bytes=256-299", IfMatch=etag)
    assert part["Body"].read() == _DATA[256:300]
    with pytest.raises(bucket.client.exceptions.ClientError, match=r"412|PreconditionFailed"):
        get(Bucket=bucket.name, Key="a", IfMatch='"0123456789abcdef0123456789abcdef"')


def test_conditional_writes_are_refused_by_the_real_gateway(real_bucket: Bucket) -> None:
    real_bucket.client.put_object(Bucket=real_bucket.name, Key="a", Body=b"1", IfNoneMatch="*")
    with pytest.raises(real_bucket.client.exceptions.ClientError, match=r"412|PreconditionFailed"):
        real_bucket.client.put_object(Bucket=real_bucket.name, Key="a", Body=b"2", IfNoneMatch="*")
    assert real_bucket.get("a") == b"1"


def test_a_proxy_without_faults_passes_everything_on(bucket: Bucket, fault_proxy: FaultProxy) -> None:
    client = bucket.server.client_of(fault_proxy.endpoint)
    client.put_object(Bucket=bucket.name, Key="x", Body=_DATA)
    assert client.get_object(Bucket=bucket.name, Key="x")["Body"].read() == _DATA
    assert [found["Key"] for found in client.list_objects_v2(Bucket=bucket.name)["Contents"]] == ["x"]
    client.head_object(Bucket=bucket.name, Key="x")
    client.close()
    assert fault_proxy.counts() == {}
    assert [(r.method, r.size_bytes) for r in fault_proxy.requests() if "list" not in r.target] == [
        ("PUT", 0),
        ("GET", len(_DATA)),
        ("HEAD", 0),
    ]


@pytest.mark.parametrize("kind", ["cut", "reset", "503", "403", "stall", "drop"])
def test_each_kind_of_fault_keeps_an_answer_from_coming(kind: str, url: str, fault_proxy: FaultProxy) -> None:
    fault_proxy.set(Faults({kind: 1.0}))
    if kind.isdigit():
        assert _get(url) == int(kind)
    else:
        with pytest.raises((OSError, http.client.HTTPException)):
            _get(url, timeout_s=0.2 if kind in ("stall", "drop") else 20)
    assert fault_proxy.counts() == {kind: 1}
    (request,) = fault_proxy.requests()
    assert request.fault == kind
    assert (0 < request.size_bytes < len(_DATA)) == (kind in ("cut", "stall"))
    fault_proxy.set(Faults())
    assert _get(url) == _DATA


def test_a_flip_inverts_one_byte(url: str, fault_proxy: FaultProxy) -> None:
    fault_proxy.set(Faults({"flip": 1.0}))
    data = _get(url)
    assert isinstance(data, bytes)
    (place,) = (i for i in range(len(_DATA)) if data[i] != _DATA[i])
    assert data[place] == _DATA[place] ^ 0xFF
    assert fault_proxy.counts() == {"flip": 1}
    fault_proxy.set(Faults({"flip": 1.0}, only="another"))
    assert _get(url) == _DATA


def test_the_same_requests_have_the_same_faults(bucket: Bucket, url: str, fault_proxy: FaultProxy) -> None:
    def faults(proxy: FaultProxy, seed: int) -> list[bool]:
        proxy.set(Faults({"503": 0.3}, seed=seed))
        answers = [_get(url.replace(fault_proxy.endpoint, proxy.endpoint)) for _ in range(20)]
        return [answer == 503 for answer in answers]

    other = FaultProxy(bucket.server.port)
    first = faults(fault_proxy, 1)
    assert faults(other, 1) == first
    assert 2 <= sum(first) == fault_proxy.counts()["503"] <= 12
    assert faults(other, 2) != first
    other.close()


def test_kinds_in_turn_all_come_within_as_many_faults(url: str, fault_proxy: FaultProxy) -> None:
    kinds = ("503", "reset", "cut", "flip", "429")
    # Draws depend on the bucket's name, which is another one each time: seldom enough that some request has no fault.
    fault_proxy.set(Faults(dict.fromkeys(kinds, 0.01), seed=1, in_turn=True))
    failed = 0
    while failed < len(kinds):
        try:
            failed += _get(url) != _DATA
        except (OSError, http.client.HTTPException):
            failed += 1
    assert fault_proxy.counts() == dict.fromkeys(kinds, 1)
    assert len(fault_proxy.requests()) > len(kinds)


def test_a_proxy_without_network_ends_connections_and_comes_back(
    bucket: Bucket, url: str, fault_proxy: FaultProxy
) -> None:
    kept = http.client.HTTPConnection("127.0.0.1", fault_proxy.port, timeout=20)
    assert _ask(kept, bucket) == _DATA
    fault_proxy.set(Faults(offline=True))
    for connection in (kept, http.client.HTTPConnection("127.0.0.1", fault_proxy.port, timeout=20)):
        with contextlib.closing(connection), pytest.raises((OSError, http.client.HTTPException)):
            _ask(connection, bucket)
    fault_proxy.set(Faults())
    assert _get(url) == _DATA


def test_tls_is_refused_for_a_wrong_host_and_an_expired_certificate(bucket: Bucket, tls_proxy: TlsProxy) -> None:
    bucket.put("a", _DATA)
    bucket.open_to_all()
    trusting = ssl.create_default_context(cafile=tls_proxy.authority)
    with urllib.request.urlopen(f"{tls_proxy.good}/{bucket.name}/a", context=trusting) as answer:
        assert answer.read() == _DATA
    refused = [
        (tls_proxy.good, ssl.create_default_context(), "self.signed certificate in certificate chain|unable to get"),
        (tls_proxy.wrong_host, trusting, "IP address mismatch"),
        (tls_proxy.expired, trusting, "has expired"),
    ]
    for endpoint, context, why in refused:
        with pytest.raises(urllib.error.URLError, match=why):
            urllib.request.urlopen(f"{endpoint}/{bucket.name}/a", context=context)


_STARTS = """
import json, os, signal, sys
from pathlib import Path
from tests.support.fault_proxy import FaultProxy
from tests.support.s3_server import S3Server
server = S3Server(Path(sys.argv[1]))
proxy = FaultProxy(server.port)
print(json.dumps([*server.pids(), proxy.pid]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_servers_end_with_tests_that_are_killed(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _STARTS, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE)
    assert done.returncode < 0
    assert all_ended(json.loads(done.stdout))
