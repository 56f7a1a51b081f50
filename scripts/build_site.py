"""Builds the site of the documents: python scripts/build_site.py [FOLDER, build/site if not given]

The documents go to build/site-source in the folders that they have in the repository, so that their links hold there,
too. Examples become pages, and so does the help of each command.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "build/site-source"
_COPIED = (
    "LICENSE",
    "CHANGELOG.md",
    "Dockerfile",
    "licenses/*",
    "docs/*.css",
    "docs/*.json",
    "docs/*.md",
    "docs/*/*.md",
    "docs/*/*.svg",
    "docs/*/*.jpg",
    "*/README.md",
)
_COPIED += ("bench/results/*.*", "bench/results/gpu/*")
_HELP = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}


def copy_documents() -> None:
    """Copies what the documents are, and what they link to."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    for pattern in _COPIED:
        for path in ROOT.glob(pattern):
            _write(path.relative_to(ROOT), path.read_bytes())
    _write(Path("index.md"), (ROOT / "README.md").read_bytes())
    for path in (ROOT / "examples").glob("*.py"):
        page = f"# {path.name}\n\n```python\n{path.read_text()}```\n"
        _write(Path(f"examples/{path.stem}.md"), page.encode())
    licenses = [f"- [{path.name}]({path.name})\n" for path in sorted((ROOT / "licenses").iterdir())]
    _write(Path("licenses/index.md"), ("# Licenses of what wheels contain\n\n" + "".join(licenses)).encode())
    for path in SOURCE.rglob("*.md"):
        text = re.sub(r"(\]\((?:\.\./)*examples/\w+)\.py\)", r"\1.md)", path.read_text())
        text = text.replace("](../licenses)", "](../licenses/index.md)")
        path.write_text(text.replace("](README.ijg)", "](libjpeg-turbo-README.ijg)"))


def _write(name: Path, data: bytes) -> None:
    (SOURCE / name).parent.mkdir(parents=True, exist_ok=True)
    (SOURCE / name).write_bytes(data)


def write_commands() -> None:
    """Writes the page with the help of each command."""
    names = re.findall(r"^    (\w+) ", _help(), re.MULTILINE)
    pages = [f"## feeder {name}\n\n```text\n{_help(name)}```\n" for name in names]
    text = "# Commands\n\n```text\n" + _help() + "```\n\n" + "\n".join(pages)
    _write(Path("docs/reference/commands.md"), text.encode())


def _help(*command: str) -> str:
    call = [sys.executable, "-m", "feeder", *command, "--help"]
    return subprocess.run(call, cwd=ROOT, env=_HELP, stdout=subprocess.PIPE, text=True, check=True).stdout


def on_page_content(html: str, **_: Any) -> str:
    """Returns a page, as mkdocs calls it, without the roles of Sphinx that docstrings have."""
    return re.sub(r":(?:attr|class|data|func|meth|mod):<code>~?", "<code>", html)


def main() -> None:
    copy_documents()
    write_commands()
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/site").resolve()
    call = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(call, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    print(f"written to {folder}")


if __name__ == "__main__":
    main()
