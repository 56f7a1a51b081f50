"""Clients of obstore: options, certificates and credentials, as other tools take them from the environment.

Note [Redirects]
obstore follows redirects. On the way to another host it drops the signature, but not a session's token of S3, nor a
signature of Azure, which is part of the URL that referred there; and nothing can tell it to stop. So stores with such
credentials get a proxy at an address where nobody listens, for all hosts but their own and those that give credentials:
a redirect to any other host fails there. Where the environment names a proxy for the store, that one is kept, and it
may pass a redirect on.
"""

from __future__ import annotations

import datetime
import os
import urllib.parse
import urllib.request
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from feeder.errors import StoreError
from feeder.shard.store.fault import GUARD_ADDRESS
from feeder.shard.store.url import Url

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

__all__ = ["CONNECT_S", "REQUEST_S", "STALL_S", "authorities", "has_proxy", "make_client"]

CONNECT_S = 2
STALL_S = 5  # without a byte; then the request is repeated
_STALL_WRITING_S = 60  # the whole of a part is sent before the answer comes
REQUEST_S = 60
_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_SKIP_SIGNATURE")  # fmt: skip
# Give credentials to the containers of ECS, to instances, and to users of Azure.
_CONTAINERS, _INSTANCES = "http://169.254.170.2", "http://169.254.169.254"
_AUTHORITY = "https://login.microsoftonline.com"
_AUTHORITIES = ("AZURE_AUTHORITY_HOST", "AZURE_STORAGE_AUTHORITY_HOST", "AZURE_IDENTITY_ENDPOINT", "AZURE_MSI_ENDPOINT",
                "IDENTITY_ENDPOINT", "MSI_ENDPOINT", "AZURE_FABRIC_TOKEN_SERVICE_URL")  # fmt: skip


def make_client(url: Url, *, allow_http: bool, writing: bool, request_s: float = REQUEST_S) -> Client:
    """Returns a client for the objects below a URL; it repeats nothing when reading.

    Args:
        url: The URL.
        allow_http: True to talk to it without encryption.
        writing: True to write.
        request_s: Seconds that a request may take with its answer, however steadily that drips.

    Raises:
        StoreError: if credentials are asked for that can't be had.
    """
    seconds = datetime.timedelta
    options: dict[str, Any] = {
        "allow_http": allow_http,
        "allow_invalid_certificates": False,
        "connect_timeout": seconds(seconds=CONNECT_S),
        "read_timeout": seconds(seconds=_STALL_WRITING_S if writing else STALL_S),
        "timeout": seconds(seconds=request_s),
    }
    bundle = authorities()
    if bundle:
        try:
            with open(bundle, "rb") as file:
                options["root_certificate"] = file.read()
        except OSError as error:
            raise StoreError(
                f"{bundle}: can't be read: {error.strerror}; AWS_CA_BUNDLE or SSL_CERT_FILE names it"
            ) from None
    backoff = {"init_backoff": seconds(milliseconds=50), "max_backoff": seconds(seconds=1), "base": 2}
    retry: dict[str, Any] = {
        "max_retries": 10 if writing else 0,
        "retry_timeout": seconds(seconds=20),
        "backoff": backoff,
    }
    common: dict[str, Any] = {"client_options": options, "retry_config": retry}
    prefix = url.prefix or None
    if url.scheme in ("http", "https"):
        return HTTPStore(_base(url), **common)
    if url.scheme == "gs":
        base = {"base_url": url.endpoint} if url.endpoint else {}
        return GCSStore(url.place, prefix=prefix, **base, **common)  # type: ignore[arg-type]
    if url.scheme == "az":
        endpoint = {"endpoint": url.endpoint} if url.endpoint else {}
        if url.service:  # else it is an emulator
            fabric = url.service.replace("core.windows.net", "fabric.microsoft.com")
            options.update(_guard(url.service, [fabric, _AUTHORITY, *map(os.environ.get, _AUTHORITIES)]))
        return AzureStore(url.place, prefix=prefix, **endpoint, **common)  # type: ignore[arg-type]
    config: dict[str, Any] = {}
    if url.service:  # obstore knows not all of the names that boto3 has for it
        config["endpoint"] = url.service
    provider, region = _profile(url)
    region = url.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or region
    if region:
        config["region"] = region
    region = region or "us-east-1"
    sts = os.environ.get("AWS_STS_ENDPOINT") or f"https://sts.{region}.amazonaws.com"
    givers = [sts, _CONTAINERS, *map(os.environ.get, ("AWS_METADATA_ENDPOINT", "AWS_CONTAINER_CREDENTIALS_FULL_URI"))]
    options.update(_guard(url.service or f"https://s3.{region}.amazonaws.com", givers))
    return S3Store(url.place, prefix=prefix, credential_provider=provider, **config, **common)


def authorities() -> str | None:
    """Returns the path of the certificates of further authorities to trust, as the environment names it."""
    return os.environ.get("AWS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE")


def has_proxy(host: str) -> bool:
    """Returns whether the environment names a proxy for a host."""
    proxies = urllib.request.getproxies_environment()
    named = proxies.get("https") or proxies.get("http") or proxies.get("all")
    return bool(named) and not urllib.request.proxy_bypass(host)


def _base(url: Url) -> str:
    """Returns the URL to ask a web server, its path percent-encoded as the user typed it."""
    path = urllib.parse.quote(url.prefix, safe="/%~!$&'()*+,;=:@")
    return f"{url.scheme}://{url.place}/{path}"


def _profile(url: Url) -> tuple[Any, str]:
    """Returns what gives the credentials of a profile, and its region; None if obstore's own ways come first."""
    if any(os.environ.get(name) for name in _CREDENTIALS):
        return None, ""
    named = os.environ.get("AWS_PROFILE")
    shared = os.path.expanduser(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials")
    if not named and not os.path.isfile(shared):
        return None, ""
    asked = f"the profile {named!r} (AWS_PROFILE)" if named else f"the credentials in {shared}"
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ModuleNotFoundError:
        raise StoreError(
            f"{url}: {asked} can only be read with boto3: pip install 'feeder-data[remote-aws]', or set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from None
    try:
        session = boto3.Session()
        return Boto3CredentialProvider(session), session.region_name or ""
    except (BotoCoreError, ValueError) as error:
        raise StoreError(f"{url}: {asked} can't be used: {error}") from None


def _guard(service: str, givers: Iterable[str | None]) -> dict[str, str]:
    """Returns the options that keep redirects from other hosts; see Note [Redirects].

    Args:
        service: Base URL of the store.
        givers: Base URLs of what gives credentials, beside the metadata of an instance.
    """
    host = urllib.parse.urlsplit(service).hostname or ""
    if has_proxy(host):
        return {}
    own = [host, *(urllib.parse.urlsplit(each).hostname for each in (_INSTANCES, *givers) if each)]
    return {"proxy_url": f"http://{GUARD_ADDRESS}", "proxy_excludes": ",".join(filter(None, own))}
