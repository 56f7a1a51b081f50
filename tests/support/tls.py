"""TLS before a server: HAProxy, with certificates of an authority of its own."""

from __future__ import annotations

import datetime
import ipaddress
import shutil
from pathlib import Path
from typing import Any

from tests.support.daemons import Daemon, answers, free_port

__all__ = ["TlsProxy", "haproxy_is_installed", "write_certificates"]

_CONF = """
global
    maxconn 512
    nbthread 1
defaults
    mode http
    timeout connect 5s
    timeout client 120s
    timeout server 120s
{frontends}
backend server
    server server 127.0.0.1:{port}
"""
_FRONTEND = """
frontend {name}
    bind 127.0.0.1:{port} ssl crt {folder}/{name}.pem
    default_backend server
"""


def haproxy_is_installed() -> bool:
    """True if there is all that a proxy for TLS needs."""
    return all(map(shutil.which, ("haproxy", "setpriv")))


class TlsProxy:
    """HAProxy before an HTTP server on 127.0.0.1.

    Args:
        folder: An empty folder.
        port: TCP port of the server.

    Attributes:
        authority: Path of the authority's certificate, for clients to trust.
        good: URL with a certificate for 127.0.0.1 and localhost.
        wrong_host: URL with a certificate for another host.
        expired: URL with a certificate that was good until yesterday.
    """

    def __init__(self, folder: Path, port: int) -> None:
        first = free_port(3)
        self.good, self.wrong_host, self.expired = (f"https://127.0.0.1:{first + k}" for k in range(3))
        self.authority = folder / "authority.pem"
        names = ("good", "wrong_host", "expired")
        write_certificates(folder, self.authority)
        frontends = "".join(_FRONTEND.format(name=name, port=first + k, folder=folder) for k, name in enumerate(names))
        conf = folder / "haproxy.cfg"
        conf.write_text(_CONF.format(frontends=frontends, port=port))
        self._daemon = Daemon(["haproxy", "-db", "-f", str(conf)], folder / "haproxy.out")
        self._daemon.wait_until(lambda: all(answers(first + k) for k in range(3)))

    def close(self) -> None:
        """Ends the proxy."""
        self._daemon.close()


def write_certificates(folder: Path, authority: Path) -> None:
    """Writes certificates, good.pem, wrong_host.pem and expired.pem with their keys, and that of their authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "feeder's tests")])

    def signed(name: x509.Name, key: Any, until: datetime.datetime, *extensions: tuple[Any, bool]) -> x509.Certificate:
        made = x509.CertificateBuilder().subject_name(name).issuer_name(authority_name).public_key(key.public_key())
        made = made.serial_number(x509.random_serial_number()).not_valid_before(until - 9 * day).not_valid_after(until)
        for extension, is_critical in extensions:
            made = made.add_extension(extension, is_critical)
        own = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
        return made.add_extension(own, False).sign(authority_key, hashes.SHA256())

    may = dict.fromkeys(("data_encipherment", "encipher_only", "decipher_only", "key_agreement"), False)
    usage = x509.KeyUsage(True, False, False, key_cert_sign=True, crl_sign=True, **may)
    own = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    root = signed(
        authority_name, authority_key, now + day, (x509.BasicConstraints(True, None), True), (usage, True), (own, False)
    )
    authority.write_bytes(root.public_bytes(serialization.Encoding.PEM))
    here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    kinds: dict[str, tuple[list[x509.GeneralName], datetime.datetime]] = {
        "good": ([*here], now + day),
        "wrong_host": ([x509.DNSName("other.example")], now + day),
        "expired": ([*here], now - day),
    }
    for kind, (hosts, until) in kinds.items():
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, kind)])
        server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        basic = x509.BasicConstraints(False, None)
        found = signed(name, key, until, (x509.SubjectAlternativeName(hosts), False), (server, False), (basic, True))
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (folder / f"{kind}.pem").write_bytes(found.public_bytes(serialization.Encoding.PEM) + private)
