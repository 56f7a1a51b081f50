"""feeder doctor on scripts: nothing to say of clean ones, and each planted mistake found on its line, and no other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from feeder.errors import SourceError
from feeder.tools.cli import main
from feeder.tools.doctor import check_script, render
from feeder.tools.doctor.script_check import RULES, check_source
from feeder.tools.instrument.script_file import parse
from tests.support import ROOT

SCRIPTS = ROOT / "tests/scripts"
CLEAN = sorted((SCRIPTS / "clean").glob("*.py"))
PLANTED = sorted((SCRIPTS / "planted").glob("*.py"))


FORUM = [path for path in PLANTED if path.stem.startswith("forum_")]


def expected(path: Path, mark: str = "expect") -> list[tuple[int, str]]:
    """Returns the lines and rules of comments that begin so: "expect", or "missed" for mistakes that are not found."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := re.search(rf"# {mark}: (.+)$", line):
            found += [(number, rule.strip()) for rule in match[1].split(",")]
    return sorted(found)


@pytest.mark.parametrize("path", CLEAN, ids=lambda path: path.stem)
def test_nothing_is_said_of_a_clean_script(path: Path) -> None:
    assert [(f.line, f.name, f.excerpt) for f in check_script(str(path))] == []


@pytest.mark.parametrize("path", PLANTED, ids=lambda path: path.stem)
def test_each_planted_mistake_is_found_and_nothing_else(path: Path) -> None:
    assert sorted((f.line, f.name) for f in check_script(str(path))) == expected(path)


def test_nine_of_ten_mistakes_are_found_in_ten_scripts_as_forums_show_them() -> None:
    shares = {}
    for path in FORUM:
        planted = expected(path) + expected(path, "missed")
        assert 8 <= len(planted) <= 12, path
        found = {(finding.line, finding.name) for finding in check_script(str(path))}
        shares[path.stem] = sum(mistake in found for mistake in planted) / len(planted)
    assert len(shares) == 10
    assert {name: share for name, share in shares.items() if share < 0.9} == {}
    assert sum(path.stem.startswith("public_") for path in CLEAN) == 5


def test_every_rule_is_planted_somewhere() -> None:
    assert {rule for path in PLANTED for _, rule in expected(path)} == set(RULES)


def test_findings_give_a_reason_and_a_rewrite() -> None:
    for path in PLANTED:
        findings = check_script(str(path))
        assert all(f.why and f.remedy and f.excerpt for f in findings)
        lines = [line for line in render(findings, 80).splitlines() if not line.lstrip().startswith("fix: ")]
        assert max(map(len, lines)) <= max(80, len(str(path)) + 20)


def test_problems_and_with_strict_warnings_make_the_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(SCRIPTS / "planted/no_set_epoch.py")]) == 1
    assert "1 problem, 0 warnings, 0 notes" in capsys.readouterr().out
    assert main(["doctor", str(SCRIPTS / "planted/copies.py")]) == 0
    assert main(["doctor", "--strict", str(SCRIPTS / "planted/copies.py")]) == 1
    assert main(["doctor", "--strict", str(SCRIPTS / "clean/plain_loop.py")]) == 0
    capsys.readouterr()
    assert main(["doctor", "--json", str(SCRIPTS / "planted/copies.py")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["counts"]["warning"] == 3
    assert {f["name"] for f in found["findings"]} == {"blocking-copy"}
    assert found["findings"][0]["line"] == 8


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"import torch\nfor x in\n", "train.py:2: not valid Python"),
        (
            b"x = 1\nname = '\xe9'\n",
            "train.py: can't be read as text: 'utf-8' .* byte 0xe9 in position 14",
        ),
        (b"# -*- coding: klingon -*-\n", "unknown encoding.*; save it as UTF-8"),
        (b"x = '\x00'\n", "null byte"),
        (b"(" * 5000 + b")" * 5000, "train.py"),
    ],
)
def test_what_is_no_python_is_named(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(data)
    with pytest.raises(SourceError, match=message):
        check_script(str(path))


def test_other_encodings_are_read(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes("# coding: latin-1\nname = 'é'\n".encode("latin-1"))
    assert check_script(str(path)) == []


def test_an_absent_script_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path / "none.py")]) == 1
    assert "can't read" in capsys.readouterr().err


def test_recursion_and_odd_code_end(tmp_path: Path) -> None:
    code = """
import torch
class A(B): pass
class B(A): pass
def f(x): return f(x)
def g(x): return h(x)
def h(x): return g(x)
model = model = A()
a = b
b = a
for batch in a.loader:
    f(batch); g(batch); model(batch).cuda().item(); a(b)(1); (lambda: 0)().x.y()
    [p for p, in zip(*batch)]; x = y = *z, w = batch
    loss.backward()
"""
    assert isinstance(check_source(parse("odd.py", code)), list)
