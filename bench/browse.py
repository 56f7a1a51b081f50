"""Measures how long the pages of ``feeder browse`` take to come, by a set's size.

The set lists a few tiny images again and again, in a thousand classes, as in bench.size. Each repeat starts the
command anew and asks it for pages as a browser does: the first one, before anything was read, and those that follow.
Of a search that takes several requests the slowest one counts. The first search comes while names are still read,
sooner than a person types.
The index is in the page cache.

    python -m bench.browse [--samples 1000,1000000] [--repeats 7] [--json OUT]
"""

from __future__ import annotations

import html
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

from bench.size import prepare
from bench.smoke import arguments
from feeder.tools.bench.result_file import save, spread
from feeder.tools.terminal import table

# In this order: the first one comes to a process that has read nothing.
PAGES = {
    "first page": "",
    "first page again": "",
    "samples": "samples",
    "samples of a class": "samples?label=7",
    "samples of a shape, by size": "samples?kind=wide&order=largest",
    "samples of a class and a size": "samples?label=7&kind=side-0",
    "search without a find": "samples?text=nowhere",
    "search for another text": "samples?text=elsewhere",
    "sample": "sample/5",
    "batch": "batch",
}
_NONE = b"<p>None"
EXPECTED = {
    "first page": b"<dt>samples</dt>",
    "search without a find": _NONE,
    "search for another text": _NONE,
}


def measure(folder: Path) -> dict[str, float]:
    """Starts the command for a set and returns seconds: until it has said its address, and of each page."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "feeder", "browse", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().rpartition("open ")[2].strip()
            found = {"start": time.perf_counter() - began}
            plain = urllib.request.ProxyHandler({})
            opener = urllib.request.build_opener(plain, urllib.request.HTTPCookieProcessor(CookieJar()))
            place, _, token = url.partition("?")
            opener.open(f"{place}static/browse.css?{token}").close()  # for the cookie
            for name, first in PAGES.items():
                page: str | None = first
                found[name] = 0.0
                while page is not None:
                    began = time.perf_counter()
                    with opener.open(f"{place}{page}") as answer:
                        text = answer.read()
                    found[name] = max(found[name], time.perf_counter() - began)
                    further = re.search(rb'href="/([^"]+)">Search on<', text)
                    page = html.unescape(further[1].decode()) if further else None
                if EXPECTED.get(name, b"</html>") not in text:
                    raise SystemExit(f"{name}: not the page that was asked for")
        finally:
            process.kill()
    return found


def main() -> None:
    options = arguments(
        __doc__, "browse", smoke={"samples": "70000", "repeats": 1}, samples="1000,1000000", repeats=7,
    )  # fmt: skip
    samples = [int(count) for count in options.samples.split(",")]
    found: dict[int, list[dict[str, float]]] = {count: [] for count in samples}
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name), samples)
        for turn in range(options.repeats):
            for count, rows in found.items():
                rows.append(measure(Path(name) / str(count)))
                print(f"  {turn + 1}/{options.repeats} {count} samples: first page {rows[-1]['first page']:.3f} s")
    results: dict[str, Any] = {
        "seconds": {
            str(count): {page: spread([row[page] for row in rows]) for page in rows[0]} for count, rows in found.items()
        }
    }
    lines = [["seconds", *(f"{count:,} samples" for count in samples)]]
    for page in ("start", *PAGES):
        medians = [results["seconds"][str(count)][page]["median"] for count in samples]
        lines.append([page, *(f"{median:.3f}" for median in medians)])
    print(table(lines))
    print(f"written to {save('browse', results, options.json)}")


if __name__ == "__main__":
    main()
