"""Draws the README's chart, docs/images/one-core.svg, from bench/results/decode.json.

python scripts/draw_chart.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["TO", "chart"]

ROOT = Path(__file__).resolve().parents[1]
TO = ROOT / "docs/images/one-core.svg"
ROWS = {
    "feeder-packed": "feeder, packed shards",
    "feeder-seekable": "feeder, seekable shards",
    "feeder-keep": "feeder, shards of unchanged JPEGs",
    "torch": "torch DataLoader, Pillow",
    "dali": "DALI on the CPU",
}
WIDTH, LEFT, ROW, TOP = 760, 270, 34, 44
STYLE = """text { font: 15px system-ui, sans-serif; fill: #24292f } .ours { fill: #1f883d } .others { fill: #8c959f }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .ours { fill: #3fb950 } .others { fill: #6e7681 } }"""


def chart(result: dict[str, Any]) -> str:
    """Returns the chart of a result of bench/decode.py as SVG: a bar for each way, images per CPU-second."""
    rates = {name: result["images_per_cpu_s"][name]["median"] for name in ROWS}
    cpu = f"{result['machine']['processor']} ({result['machine']['cpu']['microarchitecture']})"
    title = f"Random crops to 224, flipped and normalized: images a second on one core, {cpu}"
    scale = (WIDTH - LEFT - 80) / max(rates.values())

    bars = []
    for number, (name, rate) in enumerate(rates.items()):
        top, width = TOP + number * ROW, round(rate * scale, 1)
        kind = "ours" if name.startswith("feeder") else "others"
        bars += [
            f'<text x="{LEFT - 10}" y="{top + 17}" text-anchor="end">{ROWS[name]}</text>',
            f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{width}" height="24" rx="3"/>',
            f'<text x="{LEFT + width + 8}" y="{top + 17}">{rate:,.0f}</text>',
        ]
    height = TOP + len(rates) * ROW + 4
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">'
    return "\n".join([head, f"<style>{STYLE}</style>", f'<text x="10" y="22">{title}</text>', *bars, "</svg>", ""])


if __name__ == "__main__":
    TO.write_text(chart(json.loads((ROOT / "bench/results/decode.json").read_text())))
