"""Faults of stores: the kind of each error that obstore raises, and the reason to show."""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

# Nobody listens there. Redirects to other hosts end at it, see Note [Redirects] in client.py.
GUARD_ADDRESS = "127.0.0.1:1"

_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for a public bucket "
    "AWS_SKIP_SIGNATURE=true",
    "gs": "set GOOGLE_SERVICE_ACCOUNT, or run `gcloud auth application-default login`; for a public bucket set "
    "GOOGLE_SKIP_SIGNATURE=true",
    "az": "set AZURE_STORAGE_ACCOUNT_KEY; for a public container AZURE_SKIP_SIGNATURE=true",
}
_DEBUG = "Debug source:"
_STATUS = re.compile(r"status code: (\d{3})([^:\n]*)(?::\s*(.*))?", re.DOTALL)
_CODE = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE = re.compile(r"<Message>([^<\n]{1,400})[^<]*</Message>|\"message\":\s*\"([^\"]{1,400})\"")
_EXPIRED = re.compile(r"expired|TokenRefreshRequired|InvalidToken", re.IGNORECASE)
_CERTIFICATE = re.compile(r"certificate[^\n\"]*|UnknownIssuer|NotValidForName|CertExpired|Expired\b", re.IGNORECASE)
# Answers that are no range, or have not the headers that the store gives each object.
_PAGE = re.compile(
    r"NotPartial|RangeNotSupported|(No|Parse|Invalid)ContentRange|UnexpectedRange|Missing(Last|Etag|Conte)"
)
_GUARD = re.compile(rf"\b{re.escape(GUARD_ADDRESS)}\b")
_SYSTEM = re.compile(r"message: \"([^\"]{1,200})\"")


class FaultKind(enum.Enum):
    """The kinds of faults, by what is to be done about them."""

    TRANSIENT = enum.auto()  # may be over at the next attempt
    EXPIRED = enum.auto()  # new credentials may help
    MISSING = enum.auto()
    CONDITION = enum.auto()  # If-Match or If-None-Match does not hold
    PAGE = enum.auto()  # a whole page or object came in place of what was asked for
    REDIRECT = enum.auto()  # to another host
    FINAL = enum.auto()


class Fault(NamedTuple):
    """An error of a store: its kind, the reason, and the way out if there is one."""

    kind: FaultKind
    reason: str
    advice: str = ""


def fault_of(error: Exception, scheme: str) -> Fault:
    """Returns the fault that an error of obstore tells of.

    obstore has no attributes for them, so the texts are read. Only the store's own code and message get into the
    reason, as the rest may hold keys of access, tokens and signatures.

    Args:
        error: The error.
        scheme: That of the store's URL, such as "s3".
    """
    from obstore import exceptions

    text, _, debug = str(error).partition(_DEBUG)
    if isinstance(error, exceptions.PreconditionError | exceptions.AlreadyExistsError | exceptions.NotModifiedError):
        return Fault(FaultKind.CONDITION, "it is another object by now")
    if isinstance(error, exceptions.InvalidPathError):
        return Fault(FaultKind.FINAL, "the name of an object has an empty part, '.' or '..'", "rename such objects")
    asks_for_role = "169.254." in text or "/latest/api/token" in text or "metadata.google" in text
    if asks_for_role and scheme in _CREDENTIALS:
        return Fault(FaultKind.FINAL, "no credentials are found", _CREDENTIALS[scheme])
    if "MissingAccount" in debug:
        return Fault(FaultKind.FINAL, "no storage account is named", "set AZURE_STORAGE_ACCOUNT_NAME")
    status = _STATUS.search(text)
    if status is not None:
        return _of_status(int(status[1]), f"{status[1]}{status[2]}".strip(), status[3] or "")
    if isinstance(error, FileNotFoundError):
        return Fault(FaultKind.MISSING, "there is no such object")
    if "redirect without LOCATION" in text:
        return Fault(FaultKind.FINAL, "the bucket lies in another region", "set AWS_REGION, or ?region= in the URL")
    if _GUARD.search(debug):
        return Fault(FaultKind.REDIRECT, "the store redirects to another host, which must not get the credentials")
    if "TooManyRedirects" in debug:
        return Fault(FaultKind.FINAL, "the store redirects without end")
    if "BadScheme" in debug:
        return Fault(
            FaultKind.FINAL, "the store or a redirect is without encryption (http)", "set allow_http=True to allow it"
        )
    if _PAGE.search(debug):
        return Fault(FaultKind.PAGE, "a whole page came")
    certificate = _CERTIFICATE.search(debug)
    if certificate is not None and ("tls" in debug.lower() or "InvalidCertificate" in debug):
        return Fault(
            FaultKind.FINAL,
            f"the server's certificate is refused ({certificate[0].strip()})",
            "for a private authority name its file in AWS_CA_BUNDLE or SSL_CERT_FILE",
        )
    if isinstance(error, exceptions.BaseError) and ("HTTP error" in text or "HttpError" in debug):
        system = _SYSTEM.search(debug)
        timed_out = "TimedOut" in debug or "kind: Timeout" in debug
        reason = "no answer in time" if timed_out else system[1] if system else "the connection broke"
        return Fault(FaultKind.TRANSIENT, reason)
    return Fault(FaultKind.FINAL, text.partition("\n")[0].partition("://")[0][:200].strip() or type(error).__name__)


def _of_status(number: int, status: str, body: str) -> Fault:
    """Returns the fault of an answer that is an error."""
    code = _CODE.search(body)
    message = _MESSAGE.search(body)
    pieces = [status, code[1] if code else "", (message[1] or message[2]) if message else ""]
    reason = ": ".join(piece for piece in pieces if piece)
    name = code[1] if code else ""
    if _EXPIRED.search(name) or (number == 401 and not name):
        return Fault(FaultKind.EXPIRED, reason, "get new credentials and run again")
    if number == 404:
        if name in ("NoSuchBucket", "ContainerNotFound"):
            return Fault(FaultKind.FINAL, "there is no such bucket")
        return Fault(FaultKind.MISSING, "there is no such object")
    if number == 416:
        return Fault(FaultKind.FINAL, "the object is shorter than expected", "it was replaced, or is damaged")
    if number in (408, 429) or (number >= 500 and number != 501):
        return Fault(FaultKind.TRANSIENT, reason)
    advice = {
        301: "set AWS_REGION, or ?region= in the URL",
        307: "name the host that it redirects to as the endpoint",
        401: "check the credentials",
        403: "check the credentials and the bucket's permissions; a missing object can look the same",
    }
    return Fault(FaultKind.FINAL, reason, advice.get(number, ""))
