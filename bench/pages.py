"""Writes the tables of the documents from the committed results.

A table stands between `<!-- NAME: python -m bench.pages -->` and `<!-- end -->`.

    python -m bench.pages
"""

from __future__ import annotations

import json
from pathlib import Path

from bench import recipes, switch, training
from bench.gpu.tables import filled

__all__ = ["TABLES", "documents"]

ROOT = Path(__file__).resolve().parents[1]
TABLES = {  # each of the result of the same name
    "recipes": recipes.markdown,
    "recipes overview": recipes.overview,
    "switch": switch.passage,
    "training": training.markdown,
}


def documents(root: Path = ROOT) -> dict[Path, str]:
    """Returns the documents with the tables of the results that there are, by path."""

    def table(name: str, _: str) -> str:
        result = root / f"bench/results/{name.split()[0]}.json"
        return TABLES[name](json.loads(result.read_text())) if result.exists() else ""

    paths = (root / "README.md", *sorted((root / "docs").glob("*.md")))
    return {path: filled(path.read_text(), "bench.pages", table) for path in paths}


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text)
