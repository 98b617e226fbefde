"""What an answer means: bytes that may be written, another try, a new start, or an error."""

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from orchestrator.errors import Code, SlipstreamError
from orchestrator.store.http.addresses import origin
from orchestrator.store.http.retry import BUSY_STATUSES, Headers, Retry, asked_wait_seconds
from orchestrator.store.http.session import Answer
from orchestrator.store.http.tokens import hub_token
from orchestrator.store.remote import RemoteFile

_VERSION_CHARACTERS = 512
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")


class StartOver(Exception):
    """What is there cannot be continued with what the server answers. `str()` says why."""


@dataclass(frozen=True)
class Asked:
    """The bytes that a request asked for; `stop` is None for all that follow."""

    start: int
    stop: int | None
    is_ranged: bool

    def headers(self, version: str | None) -> dict[str, str]:
        """Range and If-Range."""
        if not self.is_ranged:
            return {}
        last = "" if self.stop is None else str(self.stop - 1)
        etag = strong_etag(version)
        return {"Range": f"bytes={self.start}-{last}"} | ({"If-Range": etag} if etag else {})


@dataclass(frozen=True)
class Body:
    """Bytes that an answer brings: from where, to where if known, of a file of how many."""

    start: int
    stop: int | None
    total_bytes: int | None
    version: str | None
    allows_ranges: bool


def version_of(headers: Headers) -> str | None:
    """What tells one version of a file from another: its ETag, strong or weak, else when it was last modified."""
    value = headers.get("ETag") or headers.get("Last-Modified")
    return value if value and len(value) <= _VERSION_CHARACTERS else None


def strong_etag(value: str | None) -> str | None:
    """An ETag that stands for the very bytes; None for a weak one."""
    return value if value and value.startswith('"') and value.endswith('"') else None


def accept(answer: Answer, remote: RemoteFile, asked: Asked, total_bytes: int | None, version: str | None) -> Body:
    """What may be written of `answer`, where `total_bytes` and `version` are what was seen so far.

    Raises Retry, StartOver, or SlipstreamError for what no second try can mend.
    """
    if answer.status == 206 and asked.is_ranged:
        return _part(answer, remote, asked, total_bytes, version)
    if answer.status == 200:
        body = _whole(answer, remote)
        if version is not None:
            _compare(body.version, version, remote)
        if total_bytes is not None and body.total_bytes not in (None, total_bytes):
            raise StartOver(f"the file had {total_bytes} bytes, now it has {body.total_bytes}")
        if asked.is_ranged:
            raise StartOver("the server sent the whole file where the rest of it was asked for")
        return body
    if answer.status == 416 and asked.is_ranged:
        raise StartOver("the server has no such range (416)")
    raise refusal(answer, remote)


def _part(answer: Answer, remote: RemoteFile, asked: Asked, total_bytes: int | None, version: str | None) -> Body:
    _refuse_encoded(answer.headers, remote)
    found = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", "").strip())
    if not found:
        raise StartOver("a part came without a Content-Range that can be read")
    start, last, total = (int(group) for group in found.groups())
    if start != asked.start or last < start or last >= total or (asked.stop is not None and last >= asked.stop):
        wanted = f"{asked.start}-{'' if asked.stop is None else asked.stop - 1}"
        raise StartOver(f"bytes {wanted} were asked for, {start}-{last}/{total} came")
    if total_bytes is not None and total != total_bytes:
        raise StartOver(f"the file had {total_bytes} bytes, now it has {total}")
    seen = version_of(answer.headers)
    _compare(seen, version, remote)
    length = _length(answer.headers)
    if length is not None and length > last + 1 - start:
        raise StartOver("a part is longer than its Content-Range")
    return Body(start, last + 1, total, seen, True)


def _compare(seen: str | None, before: str | None, remote: RemoteFile) -> None:
    """StartOver if two answers speak of two versions of a file.

    Where a digest proves what was put together, only strong ETags count: hosts of a CDN may differ in anything else.
    """
    is_same = seen == before
    if remote.sha256 is not None:
        is_same = strong_etag(before) in (None, strong_etag(seen))
    if not is_same:
        raise StartOver("the ETag of the file has changed, or its Last-Modified")


def _refuse_encoded(headers: Headers, remote: RemoteFile) -> None:
    encoding = headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise SlipstreamError(
            Code.SOURCE_FAILED, f"{remote.name}: {remote.host} sent it encoded as {encoding!r}; expected plain bytes"
        )


def _whole(answer: Answer, remote: RemoteFile) -> Body:
    headers = answer.headers
    length = _length(headers)
    _refuse_page(headers.get("Content-Type", ""), remote, length)
    _refuse_encoded(headers, remote)
    if length is not None and remote.size_bytes is not None and length != remote.size_bytes:
        raise SlipstreamError(
            Code.SOURCE_FAILED,
            f"{remote.name}: {remote.host} offers {length} bytes, expected {remote.size_bytes}",
            details={"size_bytes": length, "expected_size_bytes": remote.size_bytes},
        )
    total = length if length is not None else remote.size_bytes
    if total is None and remote.sha256 is None and headers.get("Transfer-Encoding", "").lower() != "chunked":
        raise SlipstreamError(
            Code.SOURCE_FAILED,
            f"{remote.name}: {remote.host} does not say how long it is, so a cut could not be told from its end",
            hint="name the sha256 of the file",
        )
    return Body(0, length, total, version_of(headers), headers.get("Accept-Ranges", "").strip().lower() == "bytes")


def _refuse_page(content_type: str, remote: RemoteFile, length: int | None) -> None:
    """A sign-in or error page that comes with 200 in place of a file."""
    kind = content_type.partition(";")[0].strip().lower()
    is_page = kind in ("text/html", "application/xhtml+xml") and not remote.name.lower().endswith((".html", ".htm"))
    if is_page and not (length is not None and length == remote.size_bytes):
        raise in_place_of_the_file("a web page", remote)


def in_place_of_the_file(what: str, remote: RemoteFile) -> SlipstreamError:
    """The answer is `what`, and says that all is well."""
    wrong = next((part for part in ("/blob/", "/raw/") if part in urlsplit(remote.url).path), None)
    return SlipstreamError(
        Code.SOURCE_FAILED,
        f"{remote.name}: {remote.host} answered with {what} in place of the file",
        hint=f"on a Hugging Face hub the address of the file itself has /resolve/ in place of {wrong}"
        if wrong
        else "a proxy or a sign-in page may stand between; open the address in a browser",
    )


def refusal(answer: Answer, remote: RemoteFile) -> Exception:
    """Retry or SlipstreamError for a status that brings no bytes."""
    status, host = answer.status, urlsplit(answer.url).hostname
    is_own_host = answer.origin == origin(remote.url)
    if status in BUSY_STATUSES:
        return Retry(f"{host} answered {status}", asked_wait_seconds(answer.headers))
    if status in (401, 403) and not is_own_host:
        # An address signed for a while has run out; the next try gets a new one.
        return Retry(f"{host}, where {remote.host} sent us, answered {status}")
    if status in (401, 403):
        return _forbidden(answer, remote)
    if status in (404, 410):
        return _absent(answer, remote)
    return SlipstreamError(Code.SOURCE_FAILED, f"{remote.name}: {host} answered {status}, expected 200 or 206")


def _forbidden(answer: Answer, remote: RemoteFile) -> SlipstreamError:
    if remote.token_host is None:
        hint = "this address wants a password or a token, which Slipstream does not send to it"
        return SlipstreamError(Code.SOURCE_GATED, f"{remote.name}: {remote.host} answered {answer.status}", hint=hint)
    return gated(_page(remote), answer.status, answer.headers)


def gated(page: str, status: int, headers: Headers) -> SlipstreamError:
    """Access is refused to a repository of the hub, whose page is at `page`."""
    # A mirror may have a path of its own before the repository's.
    repository = "/".join(unquote(urlsplit(page).path).split("/")[-2:])
    if headers.get("X-Error-Code") == "GatedRepo":
        what, hint = "is gated", f"accept its terms at {page}, then set HF_TOKEN to a token of that account"
    elif "invalid credentials" in headers.get("X-Error-Message", "").lower():
        what, hint = "was asked for with a token that the hub does not know", "set HF_TOKEN to a valid one, or unset it"
    elif status == 401:
        what = "is gated or private, or does not exist: the hub tells that only to who may read it"
        hint = f"see {page}; set HF_TOKEN to a token that may read it, or SLIPSTREAM_HF_TOKEN_FILE to a file with one"
    elif hub_token() is None:
        what, hint = "may not be read without a token", f"see {page}; set HF_TOKEN to a token that may read it"
    else:
        what = "may not be read with this token"
        hint = f"see {page}; the token in HF_TOKEN needs read access to it"
    return SlipstreamError(Code.SOURCE_GATED, f"{repository} {what} ({status})", hint=hint)


def _absent(answer: Answer, remote: RemoteFile) -> SlipstreamError:
    host = urlsplit(answer.url).hostname
    what = {
        "RepoNotFound": "the repository does not exist there",
        "RevisionNotFound": "the repository has no such revision",
        "EntryNotFound": "the repository has no such file at that revision",
    }.get(answer.headers.get("X-Error-Code", ""), "there is no such file")
    return SlipstreamError(Code.SOURCE_NOT_FOUND, f"{remote.name}: {host} answered {answer.status}: {what}")


def _page(remote: RemoteFile) -> str:
    """Page of the repository that a file of the hub is in."""
    return remote.url.partition("/resolve/")[0].partition("?")[0]


def _length(headers: Headers) -> int | None:
    value = headers.get("Content-Length", "").strip()
    return int(value) if value.isascii() and value.isdigit() and len(value) <= 19 else None
