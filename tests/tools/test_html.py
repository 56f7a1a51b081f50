"""The page stands alone, shows hostile names as text, and stays readable in every scheme."""

from __future__ import annotations

import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from feeder.errors import ArgumentError
from feeder.system.files import check_writable, write_text
from feeder.tools.html import page as report
from feeder.tools.html.charts import Bar, Interval, Line, Point, Stack, bar_chart, line_chart, stacked_bar, timeline

HOSTILE = """</title><script>alert(1)</script><img src=x onerror="a">'"&\x00\x1b[31m\ud800 ]]>"""
_VOID = {"meta", "br", "img", "link", "base"}


class _Checked(HTMLParser):
    """Collects elements and text; fails on tags that don't match."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.drawings: list[dict[str, str | None]] = []
        self.text = ""
        self.feed(document)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"an attribute of <{tag}> is given twice"
        if tag == "svg" and "svg" not in self.open:
            self.drawings.append(dict(attrs))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"an attribute of <{tag}/> is given twice"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def everything(label: str) -> str:
    """A page with all there is, and this label wherever one can stand."""
    points = [Point(1, 10, 9, 11), Point(2, 19, 17, 22), Point(4, 30)]
    return report.page(
        label,
        [
            report.Section(
                label,
                [
                    report.text(label),
                    report.code(label),
                    report.facts({label: label}),
                    report.table([[label, label], [label, "1"]], caption=label),
                    line_chart(label, [Line(label, points), Line(label, points, True)], x_label=label, y_label=label),
                    bar_chart(label, [Bar(label, 3, 2, 4, note=label), Bar(label, 2)], unit=label, note=label),
                    stacked_bar(label, [Stack(label, {label: 1.0, "b": 2.0})], unit=label, note=label),
                    timeline(label, [Interval(label, 0, 1, label), Interval("b", 1, 3, label)], unit=label, note=label),
                ],
            )
        ],
        lead=label,
        top=[report.callout(label, label, "bad")],
        foot=label,
    )


def test_a_page_shows_hostile_names_as_text_and_is_well_formed():
    parsed = _Checked(everything(HOSTILE))
    tags = {tag for tag, _ in parsed.tags}
    assert not tags & {"script", "img", "link", "iframe", "object", "base"}
    assert not any(name.startswith("on") for _, attributes in parsed.tags for name in attributes)
    assert parsed.text.count("<script>alert(1)</script>") > 15
    assert not re.search("[\x00-\x08\x0b-\x1f\ud800-\udfff]", parsed.text)
    everything(HOSTILE).encode()


def test_a_page_refers_to_nothing_outside_of_itself():
    document = everything("plain")
    parsed = _Checked(document)
    assert not re.search(r"https?:|//[a-z]|@import", document)
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", document))
    assert not any({"src", "href", "data", "action"} & set(attributes) for _, attributes in parsed.tags)
    policy = next(a["content"] for t, a in parsed.tags if t == "meta" and a.get("http-equiv"))
    assert policy is not None
    assert "default-src 'none'" in policy
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    used = set(re.findall(r"url\(#(\w+)\)", document))
    used |= {key for _, a in parsed.tags for key in (a.get("aria-labelledby") or "").split()}
    assert used <= set(ids)


def test_drawings_have_names_or_are_hidden_from_screen_readers():
    drawings = _Checked(everything("plain")).drawings
    assert len(drawings) > 10
    assert all(d.get("aria-hidden") == "true" or (d.get("role") == "img" and "aria-labelledby" in d) for d in drawings)


@pytest.mark.parametrize("text", ["text", "quiet", "good", "bad", "note"])
def test_text_has_enough_contrast_in_every_scheme(text: str):
    for scheme in _schemes():
        for ground in ("page", "panel"):
            assert _contrast(scheme[text], scheme[ground]) >= 4.5


@pytest.mark.parametrize("series", [f"s{i}" for i in range(8)])
def test_series_stand_out_from_the_page_and_carry_readable_letters(series: str):
    for scheme in _schemes():
        assert _contrast(scheme[series], scheme["page"]) >= 3
        assert _contrast(scheme["on-series"], scheme[series]) >= 4.5


def test_every_scheme_sets_every_colour():
    schemes = _schemes()
    assert len(schemes) == 3
    assert all(set(scheme) == set(schemes[0]) for scheme in schemes)


def test_figures_that_are_not_finite_are_left_out_or_dashes():
    nan, inf = math.nan, math.inf
    chart = line_chart("t", [Line("a", [Point(1, nan), Point(2, 5, 4, inf), Point(3, 7)])], x_label="x", y_label="y")
    assert chart.count("<circle") == 2  # in the legend and at 3
    assert "nan" not in chart
    bars = bar_chart("t", [Bar("a", nan), Bar("b", 2, nan, 3)], unit="s")
    assert "nan" not in bars
    assert "– s" in bars
    assert "nan" not in stacked_bar("t", [Stack("a", {"x": nan, "y": 1.0})], unit="s")
    assert "inf" not in timeline("t", [Interval("a", 0, inf, "k"), Interval("a", 0, 1, "k")])
    assert report.number(None) == report.number(nan) == "–"


def test_charts_of_nothing_say_so():
    for chart in (
        line_chart("t", [], x_label="x", y_label="y"),
        bar_chart("t", [], unit="s"),
        stacked_bar("t", [Stack("a", {})], unit="s"),
        timeline("t", []),
    ):
        assert "Nothing was measured." in chart
        _Checked(chart)


def test_a_chart_of_one_point_or_of_zeros_has_axes():
    for y in (0.0, 3.0, 1e-9, 1e12):
        chart = line_chart("t", [Line("a", [Point(4, y)])], x_label="x", y_label="y")
        assert ">4</text>" in chart
        places = [float(place) for place in re.findall(r'[xy][12]?="(-?[\d.]+)%"', chart)]
        assert all(0 <= place <= 100 for place in places)
    _Checked(bar_chart("t", [Bar("a", 0.0, 0.0, 0.0)], unit="s"))
    _Checked(timeline("t", [Interval("a", 5, 5, "k")]))


@pytest.mark.parametrize(
    ("xs", "labels"),
    [
        ([1, 2, 4], ["1", "2", "4"]),
        ([0.2, 0.34, 1.2], ["0.2", "0.4", "0.6", "0.8", "1", "1.2"]),
        ([0.253019, 0.510167, 0.763138, 0.82654], ["0.4", "0.6", "0.8"]),
    ],
)
def test_ticks_are_the_measured_places_if_their_labels_do_not_touch(xs: list[float], labels: list[str]) -> None:
    chart = line_chart("t", [Line("a", [Point(x, 1) for x in xs])], x_label="x", y_label="y")
    assert re.findall(r'dy="1.6em"[^>]*>([^<]*)<', chart) == labels


def test_lengths_are_in_proportion():
    bars = bar_chart("t", [Bar("a", 10, 8, 20), Bar("b", 5)], unit="s")
    assert re.findall(r'<rect width="([\d.]+)%', bars) == ["50.000", "25.000"]
    assert re.findall(r'<line class="whisker" x1="([\d.]+)%" x2="([\d.]+)%"', bars)[0] == ("40.000", "100.000")
    stacks = stacked_bar("t", [Stack("a", {"x": 1.0, "y": 3.0}), Stack("b", {"y": 2.0})], unit="s")
    assert [round(float(x)) for x in re.findall(r'<rect x="([\d.]+)%"[^>]*fill="var', stacks)] == [0, 25, 0]


def test_neighbours_that_no_screen_tells_apart_become_one_shape():
    spans = [Interval("a", i / 1000, (i + 0.9) / 1000, "step") for i in range(10_000)]
    assert timeline("t", spans).count("<rect") < 10
    apart = timeline("t", [Interval("a", 0, 1, "step"), Interval("a", 2, 3, "step")])
    assert apart.count('<rect x="') == 2


def test_a_table_sets_figures_to_the_right():
    found = report.table([["name", "rate"], ["1", "1,234"], ["b", "–"]])
    assert found.count('class="number"') == 3


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0"), (1234.6, "1,235"), (99.96, "100.0"), (3.14159, "3.14"), (0.00123, "0.0012")]
)
def test_numbers_keep_three_digits(value: float, shown: str):
    assert report.number(value) == shown


def test_a_report_replaces_what_was_there_or_leaves_it(tmp_path: Path):
    path = tmp_path / "new" / "report.html"
    check_writable(str(path))
    assert write_text(str(path), "one") == str(path)
    check_writable(str(path))
    write_text(str(path), "two")
    assert path.read_text() == "two"
    assert os.listdir(path.parent) == ["report.html"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "report.html", tmp_path):
        for check in (check_writable, lambda p: write_text(p, "x")):
            with pytest.raises(ArgumentError, match=re.escape(f"{path}: can't be written")):
                check(str(path))
    assert write_text("/dev/null", "x") == "/dev/null"
    assert not os.path.isfile("/dev/null")


def _schemes() -> list[dict[str, str]]:
    style = (Path(report.__file__).parent / "report.css").read_text()
    return [
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", style, re.S)
    ]


def _contrast(one: str, other: str) -> float:
    """WCAG 2.2's contrast ratio."""

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)
