"""Kernel or reference, by what is there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
import torch

from feeder.decoders.gpu import dispatch
from feeder.errors import ArgumentError

GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def _look_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for found in (dispatch.lacks, dispatch.say_once):
        found.cache_clear()
    yield
    for found in (dispatch.lacks, dispatch.say_once):
        found.cache_clear()


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [
        ("triton", r"pip install 'feeder-data\[gpu\]'"),
        ("gcc", "install gcc"),
        ("h", "python3-dev"),
        ("compiler", "unset it"),
    ],
)
def test_without_what_triton_needs_the_references_run_and_it_is_said_once(
    missing: str, remedy: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dispatch, "has_triton", lambda: missing != "triton")
    monkeypatch.delenv("CC", raising=False)
    if missing == "compiler":  # the interpreter would follow a GPU's addresses on the CPU
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(shutil, "which", lambda name: None if missing == "gcc" else f"/usr/bin/{name}")
    monkeypatch.setattr(os.path, "exists", lambda path: missing != "h")
    assert not dispatch.runs_triton(GPU, "auto")
    assert not dispatch.runs_triton(GPU, "auto")
    (record,) = caplog.records
    with pytest.raises(ArgumentError, match=remedy):
        dispatch.runs_triton(GPU, "triton")
    assert "references run" in record.message


def test_with_all_of_it_the_kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "has_triton", lambda: True)
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr(os.path, "exists", lambda path: path.endswith("Python.h"))
    assert dispatch.runs_triton(GPU, "auto")
    assert not dispatch.runs_triton(GPU, "torch")
    assert not dispatch.runs_triton(torch.device("cpu"), "auto")
