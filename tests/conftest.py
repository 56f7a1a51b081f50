"""Settings and fixtures for every test."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import sysconfig
from collections.abc import Callable, Iterator

import pytest

from tests.support.remote import bucket, fault_proxy, google, read, real_bucket, s3_server, tls_proxy

__all__ = [
    "bucket",
    "fault_proxy",
    "google",
    "hide_native",
    "one_torch_thread",
    "read",
    "real_bucket",
    "s3_server",
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


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a run on a free-threaded Python if a module that it imported has brought the GIL back."""
    if sysconfig.get_config_var("Py_GIL_DISABLED") and sys._is_gil_enabled():  # type: ignore[attr-defined]
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print("\nfailed: a module that the tests have imported has brought the GIL back", file=sys.stderr)


@pytest.fixture
def hide_native(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes every later ``from feeder import _native`` fail, as if the native module was not built."""

    def hide() -> None:
        import feeder

        monkeypatch.setitem(sys.modules, "feeder._native", None)
        monkeypatch.delattr(feeder, "_native", raising=False)  # else the import would find it here

    return hide


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """Torch computes in one thread: in several, many small operations on a busy machine wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
