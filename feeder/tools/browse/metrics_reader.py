"""Metrics of feeder, read from where a loader or a service serves them to Prometheus.

Note [Asking for metrics]
    Only the addresses that the command was given are asked: no proxy, no redirection. An answer has a limit in size and
    in time, and whatever its labels say is text.
"""

from __future__ import annotations

import http.client
import re
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from feeder.errors import ArgumentError

__all__ = ["LONG_WAIT", "Values", "metrics_url", "read_metrics", "value_of"]

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Values by name and by labels other than the loader's."""

LONG_WAIT = repr((1 << 28) / 1e9)  # an edge of the histograms, in seconds
_TIMEOUT_S = 3.0
_MOST_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 16
_LARGEST = 1e18


def metrics_url(place: str) -> str:
    """Returns the URL of metrics.

    Args:
        place: A port of this machine, HOST:PORT, or a URL; without a path it is that of ``/metrics``.

    Raises:
        ArgumentError: if it is none of these, or has a user's name.
    """
    text = f"127.0.0.1:{place}" if re.fullmatch(r"[0-9]+", place) else place
    is_whole = "://" in text
    text = text if is_whole else f"http://{text}"
    try:
        parts = urlsplit(text)
        has_port = is_whole or parts.port is not None
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None and has_port
    except ValueError:  # a wrong port
        is_url = False
    if not is_url or not re.fullmatch(r"[!-~]+", text):
        raise ArgumentError(
            f"--live {place!r}: expected the port of a loader's or service's metrics, HOST:PORT or a URL. "
            "DataLoader(..., metrics_port=9090) and feeder serve --metrics-port 9090 serve them"
        )
    return text if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/metrics"


def read_metrics(url: str) -> dict[str, Values]:
    """Asks for metrics, see Note [Asking for metrics].

    Returns:
        Values of each loader by its label, and of a service by the empty one. Of histograms there are the sums, the
        counts, and the waits for batches of up to :data:`LONG_WAIT` seconds.

    Raises:
        OSError: with the reason, if they can't be had.
    """
    try:
        return _parsed(_fetched(url))
    except urllib.error.HTTPError as error:
        error.close()
        raise OSError(error.reason or f"status {error.code}") from None
    except (urllib.error.URLError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise OSError(str(getattr(reason, "strerror", None) or reason) or type(error).__name__) from None


def value_of(values: Values, name: str, **labels: str) -> float:
    """Returns a value; 0 if there is none, or no number that feeder could have counted."""
    value = values.get((name, frozenset(labels.items())), 0.0)
    return value if abs(value) < _LARGEST else 0.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Makes a redirection an error."""


def _fetched(url: str) -> str:
    ends = time.monotonic() + _TIMEOUT_S
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    data = bytearray()
    with opener.open(url, timeout=_TIMEOUT_S) as answer:
        while chunk := answer.read1(_CHUNK_BYTES):
            data += chunk
            if len(data) > _MOST_BYTES:
                raise ValueError("its answer is too long for metrics")
            if time.monotonic() > ends:
                raise ValueError("its answer takes too long")
    return data.decode("utf-8", "replace")


def _parsed(text: str) -> dict[str, Values]:
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, Values] = {}
    try:
        for family in text_string_to_metric_families(text):
            for name, labels, value, *_ in family.samples if family.name.startswith("feeder_") else ():
                edge = labels.get("le")
                if edge is None or (labels.get("stage") == "wait_batch" and edge in (LONG_WAIT, "+Inf")):
                    rest = frozenset((key, each) for key, each in labels.items() if key != "loader")
                    found.setdefault(labels.get("loader", ""), {})[name, rest] = float(value)
    except (ValueError, KeyError, IndexError, TypeError):
        raise ValueError("its answer is no metrics") from None
    if not found:
        raise ValueError("it serves no metrics of feeder, or its loader has ended")
    return found
