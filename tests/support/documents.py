"""The blocks of code in the documents, and running what stands there with less data and fewer cores."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support import PYTHON_PATH, ROOT

__all__ = ["PAGES", "SMALLER", "Block", "block", "blocks", "run_shell", "smaller"]

PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("*/README.md"))]
]

# For few cores and little data.
SMALLER = {
    "num_workers=8": "num_workers=1",
    'num_workers="auto"': "num_workers=1",
    "batch_size=256": "batch_size=4",
    "batch_size=64": "batch_size=4",
    "batch_size=16": "batch_size=4",
    "[480, 544, 608, 672, 736, 800], max_size=1333": "[48, 54], max_size=133",
    "--cpus 16": "--cpus 1",
    "--nproc-per-node 8": "--nproc-per-node 2",
    "--stages 4 --microbatches 8": "--stages 2 --microbatches 2",
    "--out runs/": "--epochs 1 --image-size 24 --batch-size 4 --workers 1 --out runs/",
}

# What they install is here: these look at names alone. Ray's nodes are those of tests.support.ray_cluster.
_PIP = """#!{python}
import re, sys
sys.path.insert(0, {root!r})
from tests.support.requirements import pins, pyproject
extras, pinned = pyproject()["project"]["optional-dependencies"], pins()
assert sys.argv[1] == "install", sys.argv
for argument in sys.argv[2:]:
    name, _, wanted = re.fullmatch(r"([^\\[]*)(\\[(.*)\\])?", argument).groups("")
    if name == "feeder-data":
        assert {{*filter(None, wanted.split(","))}} <= extras.keys(), argument
    else:
        assert name in pinned, argument
"""
_PROGRAMS = {
    "python": '#!/bin/sh\nexec {python} "$@"\n',
    "feeder": '#!/bin/sh\nexec {python} -m feeder "$@"\n',
    "torchrun": '#!/bin/sh\nexec {python} -m torch.distributed.run "$@"\n',
    "register-python-argcomplete": """#!{python}
import sys
from argcomplete.shell_integration import shellcode
print(shellcode(sys.argv[1:]))
""",
    "ray": '#!/bin/sh\n[ "$1" = start ]\n',
    "pip": _PIP,
}


class Block(NamedTuple):
    """A block of code.

    Attributes:
        page: Path of its document from the root.
        language: What its fence says, such as "python"; may be empty.
        text: Its lines, without the indentation of the whole.
    """

    page: str
    language: str
    text: str


def blocks(page: str, language: str | None = None) -> list[Block]:
    """The blocks of a page, or those of one language."""
    text = (ROOT / page).read_text()
    found = [
        Block(page, match[2], textwrap.dedent(match[3]))
        for match in re.finditer(r"^( *)```(.*)\n((?:.*\n)*?)\1```$", text, re.MULTILINE)
    ]
    assert 2 * len(found) == len(re.findall(r"```|~~~", text)), f"{page}: a fence that does not open or end a block"
    return [each for each in found if language in (None, each.language)]


def block(page: str, sign: str, language: str = "python") -> str:
    """The text of the one block of a page and language that has this sign."""
    (found,) = [each.text for each in blocks(page, language) if sign in each.text]
    return found


def smaller(code: str, further: Mapping[str, str] | None = None) -> str:
    """Returns code for few cores and little data, with further replacements."""
    for large, small in {**SMALLER, **(further or {})}.items():
        code = code.replace(large, small)
    return code


def run_shell(script: str, folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """Runs lines of a shell in a folder, and returns what they print.

    Args:
        script: The lines. The first that fails fails the test.
        folder: Where they run; gets a folder ``bin`` with the programs that they call.
        environment: Further variables.
    """
    bin = folder / "bin"
    bin.mkdir()
    for name, text in _PROGRAMS.items():
        (bin / name).write_text(text.format(python=sys.executable, root=str(ROOT)))
        (bin / name).chmod(0o755)
    (folder / "examples").symlink_to(ROOT / "examples")
    env = {**os.environ, "PATH": f"{bin}:{os.environ['PATH']}", "PYTHONPATH": PYTHON_PATH, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail\n{script}"],
        cwd=folder,
        env=env | dict(environment or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
