"""What every kind of answer is taken for."""

from email.message import Message
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.store.http.addresses import origin
from orchestrator.store.http.answers import Asked, StartOver, accept, strong_etag
from orchestrator.store.http.retry import Retry
from orchestrator.store.http.session import Answer
from orchestrator.store.remote import RemoteFile

URL = "http://hub/acme/toy/resolve/abc/toy.gguf"
REMOTE = RemoteFile(URL, "toy.gguf", 1000, "a" * 64, token_host="http://hub:80", path="toy.gguf")
REST = Asked(400, None, True)
PART = Asked(400, 600, True)
WHOLE = Asked(0, None, False)
ETAG = '"e"'


def answer(status: int, url: str = URL, **headers: str) -> Answer:
    message = Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return cast(Answer, SimpleNamespace(status=status, headers=message, url=url, origin=origin(url)))


def part(content_range: str = "bytes 400-999/1000", etag: str = ETAG, **headers: str) -> Answer:
    return answer(206, Content_Range=content_range, ETag=etag, **headers)


def refused(said: Answer, remote: RemoteFile = REMOTE, asked: Asked = WHOLE) -> SlipstreamError:
    with pytest.raises(SlipstreamError) as caught:
        accept(said, remote, asked, 1000, ETAG)
    return caught.value


def test_a_part_that_agrees_is_taken() -> None:
    body = accept(part(Content_Length="600"), REMOTE, REST, 1000, ETAG)
    assert (body.start, body.stop, body.total_bytes, body.version) == (400, 1000, 1000, ETAG)
    assert accept(part("bytes 400-599/1000"), REMOTE, PART, 1000, ETAG).stop == 600


def test_a_part_may_be_shorter_than_asked_for() -> None:
    assert accept(part("bytes 400-449/1000"), REMOTE, REST, 1000, ETAG).stop == 450


@pytest.mark.parametrize(
    "said",
    [
        part("bytes 399-999/1000"),
        part("bytes 401-999/1000"),
        part("bytes 0-999/1000"),
        part("bytes 400-399/1000"),
        part("bytes 400-1000/1000"),
        part("bytes 400-999/*"),
        part("bytes 400-999/1001"),
        part("bytes */1000"),
        part("items 400-999/1000"),
        part(""),
        part(etag='"f"'),
        part(etag='W/"e"'),
        part(etag=""),
        part(Content_Length="601"),
        answer(206, Content_Type="multipart/byteranges; boundary=x", ETag=ETAG),
        answer(200, Content_Length="1000", ETag=ETAG),
        answer(200, Content_Length="1000", ETag='"f"'),
        answer(416, Content_Range="bytes */1000"),
    ],
)
def test_a_part_that_does_not_agree_starts_the_file_over(said: Answer) -> None:
    with pytest.raises(StartOver):
        accept(said, REMOTE, REST, 1000, ETAG)


@pytest.mark.parametrize("said", [answer(200, ETag='"f"'), answer(200, Content_Length="1001", ETag=ETAG)])
def test_a_file_that_changed_before_its_first_byte_came_starts_over(said: Answer) -> None:
    with pytest.raises(StartOver):
        accept(said, RemoteFile(URL, "toy.gguf", sha256="a" * 64), WHOLE, 1000, ETAG)


def test_a_part_is_not_longer_than_asked_for() -> None:
    with pytest.raises(StartOver, match="bytes 400-599 were asked for, 400-999/1000 came"):
        accept(part(), REMOTE, PART, 1000, ETAG)


def test_without_an_etag_before_only_a_digest_lets_one_be_taken_over() -> None:
    assert accept(part(), REMOTE, REST, 1000, None).version == ETAG
    nameless = RemoteFile(URL, "toy.gguf", 1000)
    with pytest.raises(StartOver, match="ETag"):
        accept(part(), nameless, REST, 1000, None)


@pytest.mark.parametrize("headers", [{"ETag": 'W/"e"'}, {"Last_Modified": "Thu, 01 Jan 1970 00:00:00 GMT"}])
def test_without_a_digest_a_weaker_sign_of_another_version_counts(headers: dict[str, str]) -> None:
    nameless = RemoteFile(URL, "toy.gguf", 1000)
    said = answer(206, Content_Range="bytes 400-999/1000", **headers)
    [version] = headers.values()
    assert accept(said, nameless, REST, 1000, version).version == version
    with pytest.raises(StartOver, match="ETag of the file has changed, or its Last-Modified"):
        accept(said, nameless, REST, 1000, version.replace("0", "1").replace("e", "f"))
    assert accept(said, REMOTE, REST, 1000, 'W/"of another host of the CDN"').version == version


def test_the_whole_is_taken_with_what_it_says() -> None:
    body = accept(answer(200, Content_Length="1000", ETag=ETAG, Accept_Ranges="bytes"), REMOTE, WHOLE, None, None)
    assert (body.start, body.stop, body.total_bytes, body.version, body.allows_ranges) == (0, 1000, 1000, ETAG, True)
    assert not accept(answer(200, Content_Length="1000"), REMOTE, WHOLE, None, None).allows_ranges


def test_chunks_are_taken_where_size_or_digest_tell_the_end() -> None:
    chunked = answer(200, Transfer_Encoding="chunked")
    assert accept(chunked, REMOTE, WHOLE, None, None).total_bytes == 1000
    assert accept(chunked, RemoteFile(URL, "a"), WHOLE, None, None).total_bytes is None
    with pytest.raises(SlipstreamError, match="does not say how long it is"):
        accept(answer(200), RemoteFile(URL, "a"), WHOLE, None, None)


@pytest.mark.parametrize(
    "said, words",
    [
        (answer(200, Content_Length="999"), "toy.gguf: hub offers 999 bytes, expected 1000"),
        (answer(200, Content_Length="56", Content_Type="text/html; charset=utf-8"), "answered with a web page"),
        (answer(200, Content_Type="TEXT/HTML"), "answered with a web page"),
        (answer(200, Content_Length="1000", Content_Encoding="gzip"), "sent it encoded as 'gzip'"),
        (part("bytes 0-999/1000", Content_Encoding="gzip"), "sent it encoded as 'gzip'"),
        (answer(418), "toy.gguf: hub answered 418, expected 200 or 206"),
        (answer(206, Content_Range="bytes 0-999/1000", ETag=ETAG), "answered 206"),
    ],
)
def test_what_is_no_file_says_so(said: Answer, words: str) -> None:
    error = refused(said, asked=Asked(0, None, said.status == 206 and "Content-Encoding" in said.headers))
    assert error.code is Code.SOURCE_FAILED and words in error.message


def test_a_page_is_told_when_a_fetch_is_continued_too() -> None:
    assert "web page" in refused(answer(200, Content_Type="text/html"), asked=REST).message


@pytest.mark.parametrize(
    "status, headers, words, hint",
    [
        (401, {"X-Error-Code": "GatedRepo"}, "acme/toy is gated (401)", "accept its terms at http://hub/acme/toy"),
        (403, {"X-Error-Code": "GatedRepo"}, "acme/toy is gated (403)", "accept its terms at http://hub/acme/toy"),
        (401, {"X-Error-Code": "RepoNotFound"}, "acme/toy is gated or private, or does not exist", "HF_TOKEN"),
        (403, {}, "acme/toy may not be read without a token", "set HF_TOKEN"),
        (401, {"X-Error-Message": "Invalid credentials in Authorization header"}, "does not know", "valid"),
    ],
)
def test_a_closed_door_says_how_it_opens(status: int, headers: dict[str, str], words: str, hint: str) -> None:
    error = refused(answer(status, **headers))
    assert error.code is Code.SOURCE_GATED
    assert words in error.message and hint in (error.hint or "")


def test_a_token_that_opens_no_door_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecret")
    error = refused(answer(403))
    assert error.code is Code.SOURCE_GATED and "acme/toy may not be read with this token" in error.message
    assert "read access" in (error.hint or "")


def test_a_mirror_under_a_path_names_the_repository_alone() -> None:
    url = "http://hub/mirror/of/acme/toy/resolve/abc/toy.gguf"
    error = refused(answer(403, url), RemoteFile(url, "toy.gguf", token_host="http://hub:80"))
    assert error.message.startswith("acme/toy may") and "http://hub/mirror/of/acme/toy" in (error.hint or "")


@pytest.mark.parametrize(
    "part_of_path, words", [("blob", "in place of /blob/"), ("raw", "in place of /raw/"), ("x", "a proxy")]
)
def test_a_page_says_what_its_address_should_be(part_of_path: str, words: str) -> None:
    url = f"http://hub/acme/toy/{part_of_path}/main/toy.gguf"
    error = refused(answer(200, url, Content_Type="text/html"), RemoteFile(url, "toy.gguf"))
    assert words in (error.hint or "")


def test_a_closed_door_elsewhere_gets_no_token() -> None:
    address = "http://files/a.gguf"
    error = refused(answer(401, address), RemoteFile(address, "a.gguf"))
    assert error.code is Code.SOURCE_GATED and "a.gguf: files answered 401" in error.message


@pytest.mark.parametrize(
    "code, words",
    [
        ("RepoNotFound", "the repository does not exist there"),
        ("RevisionNotFound", "the repository has no such revision"),
        ("EntryNotFound", "the repository has no such file at that revision"),
        (None, "there is no such file"),
    ],
)
def test_what_is_not_there_is_told_apart(code: str | None, words: str) -> None:
    error = refused(answer(404, **({"X-Error-Code": code} if code else {})))
    assert error.code is Code.SOURCE_NOT_FOUND and words in error.message


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 520, 524])
def test_a_busy_server_is_asked_again(status: int) -> None:
    with pytest.raises(Retry, match=f"hub answered {status}") as caught:
        accept(answer(status, Retry_After="9"), REMOTE, WHOLE, None, None)
    assert caught.value.after_seconds == 9.0


@pytest.mark.parametrize("status", [401, 403])
def test_an_address_that_has_run_out_is_asked_for_again(status: int) -> None:
    with pytest.raises(Retry, match="content, where hub sent us"):
        accept(answer(status, "http://content/x?X-Signature=secret"), REMOTE, WHOLE, None, None)


@pytest.mark.parametrize("value, strong", [('"a"', '"a"'), ('W/"a"', None), ("a", None), ("", None), (None, None)])
def test_only_strong_etags_speak_of_bytes(value: str | None, strong: str | None) -> None:
    assert strong_etag(value) == strong


@pytest.mark.parametrize(
    "asked, etag, headers",
    [
        (WHOLE, ETAG, {}),
        (REST, ETAG, {"Range": "bytes=400-", "If-Range": ETAG}),
        (PART, None, {"Range": "bytes=400-599"}),
        (PART, 'W/"e"', {"Range": "bytes=400-599"}),
        (PART, "Thu, 01 Jan 1970 00:00:00 GMT", {"Range": "bytes=400-599"}),
    ],
)
def test_what_is_asked_for(asked: Asked, etag: str | None, headers: dict[str, Any]) -> None:
    assert asked.headers(etag) == headers
