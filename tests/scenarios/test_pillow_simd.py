"""Installing pillow-simd by the commands of the documents."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.support.documents import block

pytestmark = pytest.mark.slow


def test_the_block_of_the_docs_installs_it(tmp_path: Path) -> None:
    """In an environment of its own; only feeder, and what it needs besides, come from that of the tests."""
    venv.create(tmp_path, with_pip=True)
    with_feeder = (
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r}); "
        "import runpy; runpy.run_module('feeder', run_name='__main__')"
    )
    (tmp_path / "bin/feeder").write_text(f'#!/bin/sh\nexec {tmp_path}/bin/python -c "{with_feeder}" "$@"\n')
    (tmp_path / "bin/feeder").chmod(0o755)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block("docs/operations.md", "pillow-simd==", "sh")],
        # Not optimized, as it is compiled in half the time so.
        env=os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PIP_QUIET": "1", "CFLAGS": "-O0"},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = "".join(done.stdout.split())
    assert "pillow-simd12.1.1.post0,aSIMDbuild" in shown, done.stdout
    assert list(tmp_path.glob("lib/python*/site-packages/PIL/_imaging.*"))
