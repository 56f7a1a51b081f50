"""Settings and fixtures for every test."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import multiprocessing
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import PYTHON_PATH, ROOT
from tests.support.pairwise import pairwise
from tests.support.remote import bucket, fault_proxy, google, read, real_bucket, s3_server, tls_proxy

__all__ = [
    "bucket",
    "fault_proxy",
    "few_objects",
    "google",
    "one_torch_thread",
    "own_folders",
    "read",
    "real_bucket",
    "s3_server",
    "seed_0",
    "tls_proxy",
]

# A shell starts background jobs with SIGINT ignored, and their children inherit that; tests interrupt their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Python 3.14 starts processes by a server unless told, to which tests' own classes can't be sent. Tests that are of
# another way ask for it by name.
multiprocessing.set_start_method("fork", force=True)

# The same examples in every run, however slow the machine is: a failure comes from a change, not from chance.
with contextlib.suppress(ImportError):  # bench/gpu.sh does without
    from hypothesis import HealthCheck, settings

    settings.register_profile("feeder", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("feeder")


# Files that take minutes come first, then the rooms whose files take longest, so that no runner of several is left with
# a long one at the end. Those with a cluster of Ray's keep the cores busy: one runner has them, one after the other.
_RAY = ("scenarios/test_ray_examples", "service/test_ray", "shard/test_ray")
_FIRST = (
    *(*_RAY, "remote/test_outage", "project/test_site"),
    *("kernels/test_cuda", "remote", "service", "scenarios", "loader/fast", "tools", "shard", "loader", "bench"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="run every case of the products marked pairwise")


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Finds tests without looking for garbage, which would take as long again: there is none."""
    gc.disable()
    yield
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out cases of products, and sorts files so that runners end at about the same time."""
    if not config.getoption("whole"):
        left_out = _left_out(items)
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]

    def place(item: pytest.Item) -> int:
        path = item.path.relative_to(ROOT / "tests").as_posix()
        return next((number for number, first in enumerate(_FIRST) if path.startswith(first)), len(_FIRST))

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)  # bench/gpu.sh does without pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives a runner whole files, and all of Ray's to one."""
    if config.getvalue("dist") != "loadfile":
        return None
    made: Any = importlib.import_module("xdist.scheduler").LoadFileScheduling(config, log)
    file_of = made._split_scope

    def scope(nodeid: str) -> str:
        file: str = file_of(nodeid)
        return "ray" if file.removeprefix("tests/").startswith(_RAY) else file

    made._split_scope = scope
    return made


def _left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Returns the cases of functions marked ``pairwise`` that have no pair of values which others have not."""
    products: dict[str, list[Any]] = {}
    for item in items:
        if item.get_closest_marker("pairwise"):
            products.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out: set[pytest.Item] = set()
    for cases in products.values():
        # Decorators that stand above each other give the same object for the same value.
        values = [{name: id(value) for name, value in case.callspec.params.items()} for case in cases]
        chosen = set(pairwise(values))
        left_out.update(case for number, case in enumerate(cases) if number not in chosen)
    return left_out


def _remove_own_folder(pid: int) -> None:
    if os.getpid() == pid:  # and no child that ends as Python does
        shutil.rmtree(_OWN_FOLDER, ignore_errors=True)


# Registered before multiprocessing's, and so called after it: that has files there until the end.
_OWN_FOLDER = tempfile.mkdtemp(prefix="feeder-")
atexit.register(_remove_own_folder, os.getpid())

# What processes of a fork server would each import, at 1.5 s of CPU.
multiprocessing.get_context("forkserver").set_forkserver_preload(
    ["__main__", "torch", "tests.support.interrupted_runs"]
)


@pytest.fixture(scope="session", autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Gives each runner a home, caches and temporary files of its own, where other users may pass through."""
    tmp_path_factory.getbasetemp()  # which stays where pytest keeps it for a while
    with pytest.MonkeyPatch.context() as patch:
        os.chmod(_OWN_FOLDER, 0o711)
        for name in ("HOME", "TMPDIR"):
            patch.setenv(name, os.path.join(_OWN_FOLDER, name.lower()))
            os.mkdir(os.environ[name], 0o711)
        patch.delenv("XDG_CACHE_HOME", raising=False)
        patch.setenv("PYTHONPATH", PYTHON_PATH.partition(os.pathsep)[0], prepend=os.pathsep)
        patch.setattr(tempfile, "tempdir", None)
        yield


_brought_back: list[str] = []


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a run on a free-threaded Python if a module that it imported has brought the GIL back."""
    if sysconfig.get_config_var("Py_GIL_DISABLED") and sys._is_gil_enabled():  # type: ignore[attr-defined]
        _brought_back.append("")
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["brought_back"] = bool(_brought_back)
    elif _brought_back:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print("\nfailed: a module that the tests have imported has brought the GIL back", file=sys.stderr)


@pytest.hookimpl(optionalhook=True)  # bench/gpu.sh does without pytest-xdist
def pytest_testnodedown(node: Any) -> None:
    """Takes from a runner what it says of its GIL."""
    if getattr(node, "workeroutput", {}).get("brought_back"):
        _brought_back.append(node.gateway.id)


@pytest.fixture(scope="session", autouse=True)
def seed_0() -> Iterator[None]:
    """Loaders without a seed have 0 in place of one that they draw, so that those of a test are alike."""
    from feeder.loader import run_seed
    from feeder.loader.random_state import draw_seed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_seed, "draw_seed", lambda generator: 0 if generator is None else draw_seed(generator))
        yield


@pytest.fixture(scope="module")
def few_objects() -> Iterator[None]:
    """Garbage collections look at what a module's tests make: with torch and all tests each would take 0.3 s."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """Torch computes in one thread: in several, many small operations on a busy machine wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
