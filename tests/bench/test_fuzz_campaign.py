"""A fuzzing campaign counts executions of new inputs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support import ROOT

# As libFuzzer: -runs counts the empty input and the corpus, which every start runs first.
TARGET = """#!/bin/sh
for argument; do case "$argument" in -runs=*)
    echo "${argument#-runs=}" >> "$(dirname "$0")/runs"
    echo "stat::number_of_executed_units: ${argument#-runs=}" >&2
esac; done
"""


def test_the_corpus_that_a_leg_starts_with_is_not_counted(tmp_path: Path) -> None:
    target = tmp_path / "build/kernels/fuzz/fuzz_x"
    target.parent.mkdir(parents=True)
    target.write_text(TARGET)
    target.chmod(0o755)
    (tmp_path / "corpus_x").mkdir()
    for number in range(7):
        (tmp_path / "corpus_x" / str(number)).write_bytes(b"x")
    options = ["--leg", "4", "--dir", str(tmp_path), "--json", str(tmp_path / "x.json")]
    command = [sys.executable, "kernels/fuzz/campaign.py", "x", "10", *options]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert [int(runs) for runs in (target.parent / "runs").read_text().split()] == [8 + 4, 8 + 4, 8 + 2]
    result = json.loads((tmp_path / "x.json").read_text())
    assert result["executions"] == sum(result["by_tree"].values()) == 10
