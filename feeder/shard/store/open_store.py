"""Opens stores of objects, with obstore where it is installed."""

from __future__ import annotations

from typing import Any

from feeder.errors import StoreError
from feeder.shard.store.store import TIMEOUT_S, Store, refuse_web_server
from feeder.shard.store.url import Url


def open_store(
    url: Url | str,
    *,
    allow_http: bool | None = None,
    timeout: float = TIMEOUT_S,
    writes: bool = False,
    allow_private: bool = False,
) -> Store:
    """Opens a store. Nothing is sent yet, but to the Hub for a revision that is no commit.

    obstore, which it uses, hangs in a process that was forked after its use: open stores only in processes that fork
    nothing afterwards, such as command line tools and the fetcher.

    Args:
        url: Its URL.
        allow_http: True to talk to it without encryption; None takes ``AWS_ALLOW_HTTP`` from the environment.
        timeout: Seconds that each call goes on trying without an answer.
        writes: True for a store that will be written.
        allow_private: True to let a web server of the internet redirect to this machine and to private networks.

    Raises:
        NotFoundError: if there is no such repository or revision on the Hub.
        StoreError: if obstore is not installed, the URL is without encryption and that is not allowed, or a web server
            is to be written.
        ArgumentError: as :meth:`Url.parse`.
    """
    try:
        from feeder.shard.store.object_store import ObjectStore
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise StoreError(
            f"{url if isinstance(url, Url) else Url.parse(url)}: object stores need the package obstore: "
            "pip install 'feeder-data[remote]'"
        ) from None
    url = Url.parse(url) if isinstance(url, str) else url
    if writes:
        refuse_web_server(url)
    how: dict[str, Any] = {"allow_http": allow_http, "timeout": timeout, "allow_private": allow_private}
    if url.scheme == "hf":
        from feeder.shard.store.hub_store import HubStore

        return HubStore(url, **how)
    return ObjectStore(url, **how)
