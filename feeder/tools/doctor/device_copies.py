"""Copies of tensors between the CPU and an accelerator, as calls in a script write them."""

from __future__ import annotations

import ast
import re

from feeder.tools.doctor.script import Script
from feeder.tools.doctor.script_names import arguments_of

__all__ = ["MAKERS", "is_async", "is_device", "is_device_name", "moves_tensor"]

MAKERS = {
    f"torch.{name}"
    for name in ("zeros", "ones", "full", "empty", "rand", "randn", "randint", "randperm", "arange", "linspace", "eye")
} | {"torch.tensor", "torch.as_tensor"}


def is_device(script: Script, call: ast.Call) -> bool | None:
    """Returns True if ``.to(...)`` or ``.cuda()`` moves to an accelerator, False if to the CPU, None if nowhere."""
    assert isinstance(call.func, ast.Attribute)
    if call.func.attr == "cuda":
        return True
    found, _ = arguments_of(call, "device")
    place = found.get("device")
    return None if place is None else is_device_name(script, place)


def is_device_name(script: Script, place: ast.expr) -> bool | None:
    """Returns True if an expression is an accelerator, False if the CPU, None if no device."""
    place = script.names.definition(place)
    if isinstance(place, ast.Call) and script.names.called(place) == "torch.device" and place.args:
        place = place.args[0]
    value = script.names.value(place)
    value = getattr(value, "value", value)
    if isinstance(value, str):
        return not value.startswith(("cpu", "mps")) if re.match(r"cpu|mps|cuda|xpu|hpu|npu", value) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return True
    word = ast.unparse(place).lower() if value is ... else ""
    if re.search(r"dtype|torch\.(float|half|bfloat|int|long|uint|bool|channels)", word) and "device" not in word:
        return None
    return True if re.search(r"device|cuda|gpu|rank|\bdev\b|accelerator", word) else None


def moves_tensor(script: Script, call: ast.Call) -> bool:
    """Returns True if a call moves a tensor to the device, unless the call itself has just made the tensor."""
    func = call.func
    if not isinstance(func, ast.Attribute) or func.attr not in ("to", "cuda") or not is_device(script, call):
        return False
    if re.search(r"model|net$|criterion|module", ast.unparse(func.value).lower()):
        return False
    return script.names.called(func.value) not in MAKERS


def is_async(call: ast.Call) -> bool:
    """Returns True if a copy has ``non_blocking``, or may have it in ``**arguments``."""
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg == "non_blocking":
            return not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
    is_cuda = isinstance(call.func, ast.Attribute) and call.func.attr == "cuda"
    return len(call.args) >= (2 if is_cuda else 3)
