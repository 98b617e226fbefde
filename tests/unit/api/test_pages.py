"""Web pages of other sites, and requests that a guard could be made to read in two ways."""

from typing import Any

import pytest
from starlette.types import Message

from orchestrator.api.guard import Guard
from tests.support.asgi import Call
from tests.unit.api.test_guard import HOSTS, answers, bearer

PAGE, STRANGER = "https://chat.example", "https://evil.example"
KEYS: dict[str, Any] = {"admin_keys": ("root-key",), "api_keys": ("user-key",)}
NO_KEYS: dict[str, Any] = {"admin_keys": (), "api_keys": ()}
WISH = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}


async def ask(
    method: str, path: str, keys: dict[str, Any], headers: dict[str, str], origins: tuple[str, ...] = (PAGE,)
) -> Call:
    guard = Guard(answers, **keys, allowed_hosts=HOSTS, cors_origins=origins)
    return await Call(guard, method, path, headers=headers).run()


def granted(call: Call) -> list[str]:
    return [name.decode() for name, _ in call.answer_headers if name.startswith(b"access-control-")]


@pytest.mark.parametrize("keys", [KEYS, NO_KEYS])
async def test_a_preflight_of_a_named_page_needs_no_key(keys: dict[str, Any]) -> None:
    call = await ask("OPTIONS", "/v1/chat/completions", keys, {"origin": PAGE} | WISH)
    assert (call.status, call.header("access-control-allow-origin")) == (200, [PAGE])
    assert "authorization" in call.header("access-control-allow-headers")[0]
    # Another page must not be answered from a cache with what was said to this one.
    assert "Origin" in call.header("vary")[0]
    assert call.header("access-control-allow-credentials") == []


async def test_its_requests_need_a_key_where_there_are_keys() -> None:
    path, page = "/v1/models", {"origin": PAGE}
    refused = await ask("GET", path, KEYS, page)
    assert (refused.status, refused.header("access-control-allow-origin")) == (401, [PAGE])
    call = await ask("GET", path, KEYS, page | bearer("user-key"))
    assert (call.content, call.header("access-control-allow-origin")) == (b"in", [PAGE])
    assert (await ask("GET", path, NO_KEYS, page)).content == b"in"


@pytest.mark.parametrize(
    "path", ["/api/servers", "/api/swap", "/metrics", "/slots", "/page/live", "/v1", "//v1/models"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_it_may_use_nothing_else(method: str, path: str) -> None:
    for keys, status in ((KEYS, 401), (NO_KEYS, 403)):
        call = await ask(method, path, keys, {"origin": PAGE} | WISH)
        assert (call.status, granted(call)) == (status, [])
    # A key opens what it opens; the page's script still may not read it.
    assert granted(await ask(method, path, KEYS, {"origin": PAGE} | WISH | bearer("root-key"))) == []


@pytest.mark.parametrize(
    "origin",
    [
        *(
            STRANGER,
            "null",
            "",
            PAGE + "/",
            PAGE + ":444",
            PAGE.upper(),
            "http://chat.example",
            "https://x.chat.example",
        ),
        *(f"{PAGE}.evil.example", f"{PAGE} {STRANGER}", f"{STRANGER}#{PAGE}"),
    ],
)
async def test_an_origin_counts_only_as_it_is(origin: str) -> None:
    for method in ("GET", "OPTIONS"):
        call = await ask(method, "/v1/models", NO_KEYS, {"origin": origin} | WISH)
        assert (call.status, granted(call)) == (403, [])
        with_keys = await ask(method, "/v1/models", KEYS, {"origin": origin} | WISH | bearer("user-key"))
        assert granted(with_keys) == []


async def test_off_by_default() -> None:
    call = await ask("OPTIONS", "/v1/models", KEYS, {"origin": PAGE} | WISH, ())
    assert (call.status, granted(call)) == (401, [])


async def test_a_star_lets_pages_in_where_there_are_keys_alone() -> None:
    call = await ask("GET", "/v1/models", KEYS, {"origin": STRANGER} | bearer("user-key"), ("*",))
    assert call.content == b"in" and granted(call)
    assert (await ask("GET", "/v1/models", KEYS, {"origin": STRANGER}, ("*",))).status == 401
    assert (await ask("GET", "/v1/models", NO_KEYS, {"origin": STRANGER}, ("*",))).status == 403


async def test_a_named_page_does_not_excuse_a_strange_host() -> None:
    call = await ask("GET", "/v1/models", NO_KEYS, {"origin": PAGE, "host": "evil.example"})
    assert (call.status, granted(call)) == (403, [])


@pytest.mark.parametrize("name", [b"host", b"origin", b"authorization", b"x-api-key"])
async def test_a_header_that_decides_must_be_there_once(name: bytes) -> None:
    guard = Guard(answers, **KEYS, allowed_hosts=HOSTS)
    value = {b"host": b"localhost", b"origin": b"http://localhost"}.get(name, b"Bearer root-key")
    own = {b"host": b"localhost", b"authorization": b"Bearer root-key"}
    headers = [(n, v) for n, v in own.items() if n != name] + [(name, value)]
    for extra, status in (([], 200), ([(name, value)], 400), ([(name, b"x")], 400)):
        sent: list[Message] = []
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/servers",
            "headers": headers + extra,
            "query_string": b"",
        }

        async def send(message: Message, sent: list[Message] = sent) -> None:
            sent.append(message)

        await guard(scope, None, send)  # type: ignore[arg-type]
        assert sent[0]["status"] == status, extra


async def test_a_websocket_is_closed_unread() -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    for keys in (KEYS, NO_KEYS):
        await Guard(answers, **keys, allowed_hosts=HOSTS)(
            {"type": "websocket", "path": "/v1/models", "headers": [(b"host", b"localhost")]}, receive, send
        )
    assert [m["type"] for m in sent] == ["websocket.close"] * 2


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "GET"])
@pytest.mark.parametrize(
    "path", ["/api/../v1/models", "//v1/models", "/V1/models", "/healthz/", "/healthz/../api", "/readyz\0", "/metrics/"]
)
async def test_what_is_nearly_open_is_not(method: str, path: str) -> None:
    assert (await ask(method, path, KEYS, {})).status == 401
    assert (await ask(method, path, KEYS, bearer("user-key"))).status == 403
