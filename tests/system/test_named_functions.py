"""Functions are found by name in allowed modules, and nothing else is."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from feeder.errors import ArgumentError
from feeder.system.named_functions import AllowedFunctions, function_name, module_digest
from tests.support import named_functions

MODULE = "tests.support.named_functions"
NAME = f"{MODULE}:inverted"


def test_a_modules_function_is_found_by_its_name() -> None:
    assert function_name(named_functions.inverted) == NAME
    assert AllowedFunctions([MODULE]).find(NAME, {MODULE: module_digest(MODULE)}) is named_functions.inverted


@pytest.mark.parametrize("function", [lambda image: image, functools.partial(named_functions.inverted), NAME, object()])
def test_what_has_no_name_is_refused(function: Any) -> None:
    with pytest.raises(ArgumentError):
        function_name(function)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("os:system", "feeder serve --allow-module os"),
        (f"{MODULE}.other:inverted", "feeder serve --allow-module"),
        (f"{MODULE}:system", "has no function"),
        (f"{MODULE}:os.system", "has no function"),
        (f"{MODULE}:np.load", "has no function"),
        (f"{MODULE}:__builtins__", "has no function"),
        (f"{MODULE}:inverted.__globals__", "has no function"),
        (f"{MODULE}:missing", "has no function"),
        (MODULE, "has no function"),
        (["os", "system"], "feeder serve --allow-module MODULE"),
        (None, "feeder serve --allow-module MODULE"),
    ],
)
def test_nothing_else_is_found(name: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        AllowedFunctions([MODULE]).find(name, {MODULE: module_digest(MODULE)})


@pytest.mark.parametrize("digests", [{}, {MODULE: "other"}, None, []])
def test_a_module_that_differs_is_refused(digests: Any) -> None:
    with pytest.raises(ArgumentError, match="has another content here"):
        AllowedFunctions([MODULE]).find(NAME, digests)
