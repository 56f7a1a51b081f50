"""Errors of all commands: what, where and what to do, in three lines of a terminal at most."""

from __future__ import annotations

import ast
import functools
import os
import re
import textwrap
from pathlib import Path

import pytest

from feeder.system.ray_cluster import quiet_ray
from feeder.tools import cli
from tests.support import ROOT
from tests.support.commands import command_names
from tests.support.images import encode, make_tree, pixels

CALLS = {
    "shard": "shard nothing",
    "append": "append nothing nowhere",
    "takedown": "takedown nothing 00017",
    "inspect": "inspect nothing",
    "browse": "browse nothing",
    "index": "index nothing.tar",
    "export": "export nothing --out out",
    "cache": "cache nothing --trim 0",
    "serve": "serve nothing",
    "bench": "bench nothing",
    "parity": "parity nothing",
    "doctor": "doctor nothing.py",
    "profile": "profile nothing.py",
    "tune": "tune nothing",
    "replay": "replay nothing --state nothing.json --step 0",
}


def test_every_command_is_tried() -> None:
    assert set(CALLS) == set(command_names())


@pytest.mark.parametrize("command", CALLS)
def test_an_error_has_three_lines_at_most_and_names_what_is_missing(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    said = error_of(CALLS[command].split(), capsys).replace(str(tmp_path), "")
    assert len(terminal_lines(said)) <= 3
    assert "nothing" in said or "nowhere" in said


@pytest.mark.parametrize("command", ["browse", "bench", "tune"])
def test_a_set_that_is_not_there_is_told_as_such(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "nothing: there is no such path; give a shard set" in error_of([command, "nothing"], capsys)


@pytest.mark.parametrize(
    ("scheme", "named"),
    [
        ("s3", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SKIP_SIGNATURE"]),
        ("gs", ["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SKIP_SIGNATURE"]),
        ("az", ["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_SKIP_SIGNATURE"]),
    ],
)
def test_a_store_without_credentials_names_the_variables_of_its_own(
    scheme: str,
    named: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    without_credentials(tmp_path, monkeypatch)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    said = error_of(["inspect", f"{scheme}://training-data/imagenet/train"], capsys)
    assert f"{scheme}://training-data/imagenet/train" in said
    assert "no credentials are found" in said
    assert re.findall(r"\b(?:AWS|GOOGLE|AZURE)_\w+", said) == named
    assert len(terminal_lines(said)) <= 3


def test_a_container_without_an_account_names_the_variable_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_credentials(tmp_path, monkeypatch)
    said = error_of(["inspect", "az://container/set"], capsys)
    assert said.endswith(": no storage account is named; set AZURE_STORAGE_ACCOUNT_NAME\n")


def test_a_port_where_a_page_cant_be_served_is_refused_by_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_tree(tmp_path / "images")
    assert "choose another --port\n" in error_of(["browse", str(tmp_path / "images"), "--port", "70000"], capsys)


def test_a_place_that_nothing_can_be_exported_to_is_told_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_tree(tmp_path / "images")
    assert cli.main(["shard", "images", "-q"]) == 0
    (tmp_path / "file").touch()
    assert "can't be written: Not a directory; choose another --out" in (
        error_of(["export", "images-shards", "--out", "file/out"], capsys)
    )


@pytest.mark.parametrize("command", CALLS)
def test_a_wrong_option_has_three_lines_at_most_and_names_the_help(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in (["--unheard-of"], ["--unheard-of=\x1b", "name"]):
        said = error_of([command, *wrong], capsys)
        assert len(terminal_lines(said)) <= 3
        assert "\x1b" not in said
        assert f"see `feeder {command} --help`" in said


def test_a_file_that_holds_no_keys_is_refused_in_three_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_tree(tmp_path / "images")
    assert cli.main(["shard", "images", "-q"]) == 0
    (tmp_path / "wrong").write_bytes(b"\xff\xd8\n".join([encode(pixels(seed)) for seed in range(9)]))
    said = error_of(["takedown", "images-shards", "--from", "wrong"], capsys)
    assert len(terminal_lines(said)) <= 3
    assert "has no sample with" in said
    assert "nothing was changed" in said


def test_a_wrong_command_has_three_lines_at_most_and_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    said = error_of(["unheard-of"], capsys)
    assert len(terminal_lines(said)) <= 3
    assert all(name in said for name in command_names())


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (["shrad"], "shard"),
        (["shard", "images", "--encode", "pakced"], "packed"),
        (["shard", "images", "--max-sied=80"], "--max-side"),
        (["help", "brwose"], "browse"),
    ],
    ids=str,
)
def test_a_slip_of_the_pen_is_asked_about(call: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"did you mean {meant}?" in error_of(call, capsys)


def without_credentials(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has stores find no credentials, nor anything on the network that gives them: nobody listens at the proxy."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")) or name.lower() in ("no_proxy", "all_proxy"):
            monkeypatch.delenv(name)
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:1")
    monkeypatch.setenv("HOME", str(folder))


def error_of(call: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Text on stderr of a call that has to fail."""
    try:
        code = cli.main(call)
    except SystemExit as end:
        code = int(end.code or 0)
    assert code in (1, 2)
    said = capsys.readouterr().err
    assert said
    assert "Traceback" not in said
    return said


def terminal_lines(text: str) -> list[str]:
    """Lines of a text on a terminal of 80 columns."""
    return [part for line in text.splitlines() for part in textwrap.wrap(line, 80)]


def test_a_service_without_ray_is_not_ended_by_another_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--stop", "--file", "service.json"]) in (1, 2)
    assert "--file ends when its command is interrupted" in capsys.readouterr().err


def test_a_service_without_a_cluster_names_the_ways_to_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with quiet_ray():
        services = pytest.importorskip("ray._private.services")
    monkeypatch.setattr(services, "find_gcs_addresses", functools.cache(set))  # whatever clusters this machine has
    monkeypatch.setattr(services, "find_bootstrap_address", lambda _: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    said = error_of(["serve", "--root", "/data", "--cpus", "1"], capsys)
    assert "can't join the Ray cluster 'auto': none runs here; start one with `ray start --head`, or give" in said
    assert len(terminal_lines(said)) <= 3


@pytest.mark.parametrize("resource", ["CPU=2", "GPU=1"])
def test_a_resource_that_a_service_takes_otherwise_is_refused_by_name(
    resource: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", "--root", "/data", "--cpus", "1", "--resource", resource]) in (1, 2)
    assert f"resources can't have {resource[:3]}: give " in capsys.readouterr().err


_FIXED = 210  # characters of 240, so that paths, keys and numbers have some of the three lines


def test_messages_leave_room_for_names() -> None:
    found = {}
    for path in (ROOT / "feeder").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                found[f"{path.relative_to(ROOT)}:{node.lineno}"] = max(map(_fixed, node.exc.args), default=0)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Fault":
                found[f"{path.relative_to(ROOT)}:{node.lineno}"] = sum(map(_fixed, node.args))  # reason and advice
    assert len(found) > 300
    assert {place: length for place, length in found.items() if length > _FIXED} == {}


def _fixed(message: ast.expr) -> int:
    """The number of characters of a message that do not depend on values."""
    if isinstance(message, ast.JoinedStr):
        return sum(map(_fixed, message.values))
    if isinstance(message, ast.BinOp):
        return _fixed(message.left) + _fixed(message.right)
    if isinstance(message, ast.IfExp):
        return max(_fixed(message.body), _fixed(message.orelse))
    return len(message.value) if isinstance(message, ast.Constant) and isinstance(message.value, str) else 0
