"""Docstrings open with their subject or a verb, and documents have short sentences of plain words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support import ROOT
from tests.support.sources import statements

_FOLDERS = ("bench", "examples", "feeder", "kernels", "scripts", "tests")
_QUESTIONS = {"What", "Whether", "How", "Where", "Which", "Why", "When"}

_MOST_WORDS = 40
_HARD_TO_READ = re.compile(r"\b([Ss]uch a|[Tt]he one that|[Ss]o, too|but for)\b|^So (do|does|is|are)\b")


def _docstrings() -> Iterator[tuple[str, str]]:
    """(file and line, docstring) of everything that has one."""
    for path in sorted(path for folder in _FOLDERS for path in (ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in (tree, *statements(tree)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node)
                if docstring:
                    yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", docstring


def test_no_docstring_opens_with_a_question() -> None:
    found = dict(_docstrings())
    assert len(found) > 1000
    assert [place for place, docstring in found.items() if docstring.split()[0] in _QUESTIONS] == []


def test_nothing_stops_the_clusters_of_others() -> None:
    """By ``ray stop``, which ends every cluster of the user's on a machine."""
    words = "ray", "stop"
    paths = (
        path for folder in _FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".sh", ".yml"}
    )
    for path in paths:
        text = path.read_text().replace('", "', " ")  # as a list of arguments, too
        assert " ".join(words) not in text or path.name == "test_words.py", path


def _sentences(text: str) -> Iterator[str]:
    """The sentences of a document's paragraphs, list items and cells of tables, without its code and headings."""
    text = re.sub(r"^( *)```.*?^\1```$|<!--.*?-->", "\n\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"(?<=\n\n)(?: {4}.*\n|\n(?= {4}))+", "\n", text)
    text = re.sub(r"^ *(?:[#!]|:::).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"^ *\|.*$", lambda row: row[0].replace("|", "\n\n"), text, flags=re.MULTILINE)
    text = re.sub(r"^ *(?:[-*]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n", text):
        plain = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", " ".join(paragraph.split())))
        yield from re.split(r"(?<=[.!?]) |(?<=[.!?][)*\"]) |(?<=[.!?]\*\*) ", plain)


def _faults(text: str) -> list[str]:
    """Sentences that are too long or have words that stop a reader."""
    return [each for each in _sentences(text) if len(each.split()) > _MOST_WORDS or _HARD_TO_READ.search(each)]


def test_documents_have_short_sentences_of_plain_words() -> None:
    files = (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("feeder/**/*.md"))
    paths = {path.relative_to(ROOT).as_posix(): path for path in files}
    pages = paths.keys() - {"CHANGELOG.md"}
    assert len(pages) > 30
    assert {page: faults for page in pages if (faults := _faults(paths[page].read_text()))} == {}


def test_a_long_sentence_is_found_wherever_it_stands() -> None:
    long = " ".join(["word"] * (_MOST_WORDS + 1))
    half = long[: len(long) // 2]
    for text in (
        long,
        f"- Short.\n- {long}",
        f"| a |\n\nShort. {long}, `code` [link](page.md).",
        "It is such\na thing.",
        f"| a | b |\n|---|---|\n| short | {long} |",
        "| Such a thing | short |",
    ):
        assert len(_faults(text)) == 1, text
    assert (
        _faults(
            f"# {long}\n\n```sh\n{long}\n```\n\n    {long}\n\n    {long}\n\n| {half} | {half} |\n\n**{half}.** {half}"
        )
        == []
    )
