"""The lessons about devices: equal results before times, and what a machine without a GPU leaves out."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from bench import transfer

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def test_it_says_what_it_left_out() -> None:
    result = transfer.measure(1, tiny=True)
    text = transfer.render(result)
    if torch.cuda.is_available():
        assert set(result["left_out"]) <= {"two devices"}
    else:
        assert set(result["left_out"].values()) == {"no CUDA device"}
        assert text.startswith("CPU only\n")
        assert "left out, no CUDA device: two streams" in text
        assert "host" not in text
    assert json.loads(json.dumps(result)) == result


def _times(*names: str) -> dict[str, Any]:
    def times(factor: float) -> dict[str, Any]:
        return {name: {"median": factor * (k + 1), "min": 0.5, "max": 9999.0} for k, name in enumerate(names)}

    return {"ms": times(1000.0), "host_ms": times(0.125)}


def test_on_a_gpu_each_copy_has_the_time_until_the_host_goes_on() -> None:
    at_once = {f"GPU {kind}": times for kind, times in _times("one stream", "two streams").items()}
    at_once |= {f"CPU {kind}": times for kind, times in _times("one after the other", "two threads").items()}
    result = {
        "gpu": {"name": "NVIDIA H200"},
        "products": {"1000x1000": {"products": 1000, **_times("CPU", "GPU, data there", "GPU, with copies")}},
        "copies": {"bytes": 64 << 20, **_times("pageable", "pinned", "pinned, non_blocking")},
        "log": {"cuda": {"steps": 1000, **_times("fetched at each step", "once at the end", "feeder.DeviceLog")}},
        "at once": {"size": 512, "products": 100, **at_once},
        "left_out": {"two devices": "one CUDA device"},
    }
    lines = transfer.render(result).splitlines()
    assert lines[0] == "GPU: NVIDIA H200"
    assert lines[2].split() == ["ms", "min", "max", "host"]
    rows = {line.partition(": ")[2][:24].strip(): line.split()[-4:] for line in lines if ".00" in line}
    assert rows["pinned, non_blocking"] == ["3,000.00", "0.50", "9,999.00", "0.38"]
    assert rows["two streams"][-1] == rows["two threads"][-1] == "0.25"
    assert len(rows) == 3 + 3 + 3 + 4
    assert lines[-1] == "left out, one CUDA device: two devices"
    assert max(map(len, lines)) <= 80


def test_results_that_differ_are_not_timed() -> None:
    ones = torch.ones(3)
    with pytest.raises(AssertionError, match="copies: pinned, source"):
        transfer.must_agree("copies", {"source": ones, "pageable": ones.clone(), "pinned": 2 * ones})
