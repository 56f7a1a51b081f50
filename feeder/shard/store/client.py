"""Clients of obstore: options, certificates and credentials, as other tools take them from the environment.

Note [Redirects]
obstore follows redirects, and nothing can tell it to stop. The other host may be one that only this machine can reach.
On the way there obstore drops the signature, but not a session's token of S3, nor a signature of Azure, which is part
of the URL that referred there. So clients get a proxy at an address where nobody listens, for all hosts but their own
and those that give credentials: a redirect to any other host fails there. Of a store with credentials that is an error.
A web server is asked once more by redirect_of(), which checks the address that it redirects to, and obstore gets the
URL there. So each object costs two small requests, and the ranges of a known entry are asked for where it lies.

Where the environment names a proxy for the store, that one gets all requests, also those to hosts of NO_PROXY: what a
redirect reaches is up to its rules. Hosts below the store's own (a.host of host) count as its own. obstore asks again
for the address of a name that was checked, so over plain http its owner can lead it elsewhere by then; over https the
certificate would be another one.
"""

from __future__ import annotations

import datetime
import functools
import ipaddress
import os
import ssl
import urllib.parse
import urllib.request
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from feeder.errors import StoreError
from feeder.shard.store.fault import GUARD_ADDRESS
from feeder.shard.store.url import Url

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client
    from obstore.store import S3Store

CONNECT_S = 2
STALL_S = 5  # without a byte; then the request is repeated
_STALL_WRITING_S = 60  # the whole of a part is sent before the answer comes
REQUEST_S = 60
IDLE_S = 30.0  # servers close connections that nobody uses for longer, and what lies between forgets them
HUB = "https://huggingface.co"
_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_SKIP_SIGNATURE")  # fmt: skip
# Give credentials to the containers of ECS, to instances, and to users of Azure and of Google.
_CONTAINERS, _INSTANCES = "http://169.254.170.2", "http://169.254.169.254"
_AUTHORITY = "https://login.microsoftonline.com"
_AUTHORITIES = ("AZURE_AUTHORITY_HOST", "AZURE_STORAGE_AUTHORITY_HOST", "AZURE_IDENTITY_ENDPOINT", "AZURE_MSI_ENDPOINT",
                "IDENTITY_ENDPOINT", "MSI_ENDPOINT", "AZURE_FABRIC_TOKEN_SERVICE_URL")  # fmt: skip
_GOOGLE = ("https://googleapis.com", "https://accounts.google.com", "http://metadata.google.internal")
_GOOGLE_METADATA = ("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP")


def make_client(
    url: Url,
    base: str = "",
    *,
    allow_http: bool,
    writing: bool,
    request_s: float = REQUEST_S,
    headers: dict[str, str] | None = None,
) -> Client:
    """Returns a client for the objects below a URL; it repeats nothing when reading.

    Args:
        url: The URL.
        base: The URL of a web server that has redirected to there; empty for its own.
        allow_http: True to talk to it without encryption.
        writing: True to write.
        request_s: Seconds that a request may take with its answer, however steadily that drips.
        headers: Headers of each request to a web server.

    Raises:
        StoreError: if credentials are asked for that can't be had.
    """
    from obstore.store import AzureStore, GCSStore, HTTPStore

    seconds = datetime.timedelta
    options = _options(allow_http, writing, request_s)
    backoff = {"init_backoff": seconds(milliseconds=50), "max_backoff": seconds(seconds=1), "base": 2}
    retry: dict[str, Any] = {
        "max_retries": 10 if writing else 0,
        "retry_timeout": seconds(seconds=20),
        "backoff": backoff,
    }
    common: dict[str, Any] = {"client_options": options, "retry_config": retry}

    prefix = url.prefix or None
    if url.scheme in ("http", "https", "hf"):
        base = base or base_url(url)
        options.update(_guard(base, []) | {"default_headers": headers or {}})
        return HTTPStore(base, **common)

    if url.scheme == "gs":
        endpoint = {"base_url": url.endpoint} if url.endpoint else {}
        if url.service:  # else it is Google's own
            metadata = [f"http://{host}" for host in map(os.environ.get, _GOOGLE_METADATA) if host]
            options.update(_guard(url.service, [_INSTANCES, *_GOOGLE, *metadata]))
        return GCSStore(url.place, prefix=prefix, **endpoint, **common)  # type: ignore[arg-type]

    if url.scheme == "az":
        endpoint = {"endpoint": url.endpoint} if url.endpoint else {}
        if url.service:  # else it is an emulator
            fabric = url.service.replace("core.windows.net", "fabric.microsoft.com")
            options.update(_guard(url.service, [_INSTANCES, fabric, _AUTHORITY, *map(os.environ.get, _AUTHORITIES)]))
        return AzureStore(url.place, prefix=prefix, **endpoint, **common)  # type: ignore[arg-type]
    return _s3(url, options, common)


def _options(allow_http: bool, writing: bool, request_s: float) -> dict[str, Any]:
    """Returns what all clients have: time limits and the authorities to trust."""
    seconds = datetime.timedelta
    options: dict[str, Any] = {
        "allow_http": allow_http,
        "allow_invalid_certificates": False,
        "connect_timeout": seconds(seconds=CONNECT_S),
        "read_timeout": seconds(seconds=_STALL_WRITING_S if writing else STALL_S),
        "timeout": seconds(seconds=request_s),
    }
    bundle = _authorities()
    if bundle:
        try:
            with open(bundle, "rb") as file:
                options["root_certificate"] = file.read()
        except OSError as error:
            raise StoreError(
                f"{bundle}: can't be read: {error.strerror}; AWS_CA_BUNDLE or SSL_CERT_FILE names it"
            ) from None
    return options


def _s3(url: Url, options: dict[str, Any], common: dict[str, Any]) -> S3Store:
    """Returns a client of an S3 store."""
    from obstore.store import S3Store

    config: dict[str, Any] = {}
    if url.service:  # obstore knows not all of the names that boto3 has for it
        config["endpoint"] = url.service
    provider, region = _profile(url)
    region = url.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or region
    if region:
        config["region"] = region
    region = region or "us-east-1"
    sts = os.environ.get("AWS_STS_ENDPOINT") or f"https://sts.{region}.amazonaws.com"
    givers = [
        sts,
        _CONTAINERS,
        _INSTANCES,
        *map(os.environ.get, ("AWS_METADATA_ENDPOINT", "AWS_CONTAINER_CREDENTIALS_FULL_URI")),
    ]
    options.update(_guard(url.service or f"https://s3.{region}.amazonaws.com", givers))
    return S3Store(url.place, prefix=url.prefix or None, credential_provider=provider, **config, **common)


def tls_context() -> ssl.SSLContext:
    """Returns the settings of Python's own encrypted connections, with the authorities that obstore trusts, too."""
    bundle = _authorities()
    return _tls_context(bundle, os.stat(bundle).st_mtime_ns if bundle else 0)


@functools.lru_cache(1)
def _tls_context(bundle: str | None, _modified_ns: int) -> ssl.SSLContext:
    context = ssl.create_default_context()  # reads all authorities, in some 20 ms
    if bundle:
        context.load_verify_locations(bundle)
    return context


def proxy_of(url: str) -> str:
    """Returns the proxy that the environment names for a URL; empty for none."""
    pieces, proxies = urllib.parse.urlsplit(url), urllib.request.getproxies_environment()
    host = pieces.hostname or ""
    is_direct = any(_is_in(host, each.strip()) for each in proxies.get("no", "").split(","))
    if is_direct or urllib.request.proxy_bypass(host):
        return ""
    return proxies.get(pieces.scheme) or proxies.get("all") or ""


def base_url(url: Url) -> str:
    """Returns the URL to ask a web server or the Hub, its path percent-encoded as the user typed it."""
    if url.scheme == "hf":
        repository, revision, path = url.repository()
        place = f"{url.service or HUB}/datasets/{repository}/resolve/{urllib.parse.quote(revision, safe='')}"
        return f"{place}/{urllib.parse.quote(path)}".rstrip("/")
    path = urllib.parse.quote(url.prefix, safe="/%~!$&'()*+,;=:@")
    return f"{url.scheme}://{url.place}/{path}"


def _authorities() -> str | None:
    """Returns the path of the certificates of further authorities to trust, as the environment names it."""
    return os.environ.get("AWS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE")


def _is_in(host: str, network: str) -> bool:
    """Returns whether an address lies in a network, such as 10.0.0.0/8, as NO_PROXY may name it."""
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network)
    except ValueError:
        return False


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
        givers: Base URLs of what gives credentials.
    """
    proxy = proxy_of(service)
    places = [each for each in (service, *givers) if each and not (proxy and proxy_of(each))]
    own = [urllib.parse.urlsplit(each).hostname for each in places]
    return {"proxy_url": proxy or f"http://{GUARD_ADDRESS}", "proxy_excludes": ",".join(filter(None, own))}
