import json
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from orchestrator.api.guard import Guard
from tests.support.asgi import Call

HOSTS = ("localhost", "127.0.0.1", "[::1]")
# What anybody may ask, keys or no keys. A new entry here is a decision.
# The page and its files hold no data; tests/unit/page/test_page.py holds the list to the files.
OPEN = ("/healthz", "/readyz", "/", "/page/page.js", "/page/page.css")
DATA = ("/v1/chat/completions", "/v1/models")
ADMIN = (
    "/api/servers",
    "/api/models",
    "/api/flags",
    "/api/openapi.json",
    "/docs",
    "/page/live",
    "/page/",
    "/v1",
    "/unknown",
)


async def answers(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"in"})


async def ask(
    path: str, admin: Any = ("root-key",), api: Any = ("user-key",), hosts: Any = HOSTS, **headers: str
) -> Call:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await Call(Guard(answers, admin, api, hosts), "GET", path, headers=named).run()


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", [*OPEN, *DATA, *ADMIN, "/metrics"])
async def test_without_any_key_everything_is_open(path: str) -> None:
    assert (await ask(path, admin=(), api=())).content == b"in"


@pytest.mark.parametrize("path", OPEN)
async def test_probes_need_no_key(path: str) -> None:
    assert (await ask(path)).status == 200


@pytest.mark.parametrize("path", [*DATA, *ADMIN, "/metrics"])
async def test_everything_else_needs_a_key(path: str) -> None:
    call = await ask(path)
    assert call.status == 401
    assert call.header("www-authenticate") == ["Bearer"]
    assert (await ask(path, **bearer("wrong"))).status == 401
    assert (await ask(path, **bearer(""))).status == 401


@pytest.mark.parametrize("path", [*DATA, "/metrics"])
@pytest.mark.parametrize("key", ["user-key", "root-key"])
async def test_both_kinds_of_key_open_the_data_plane(path: str, key: str) -> None:
    assert (await ask(path, **bearer(key))).status == 200
    assert (await ask(path, x_api_key=key)).status == 200


@pytest.mark.parametrize("path", ADMIN)
async def test_only_admin_keys_open_the_control_plane(path: str) -> None:
    assert (await ask(path, **bearer("root-key"))).status == 200
    assert (await ask(path, **bearer("user-key"))).status == 403


async def test_with_inference_keys_alone_the_control_plane_is_closed() -> None:
    assert (await ask("/api/servers", admin=(), **bearer("user-key"))).status == 403
    assert (await ask("/api/servers", admin=())).status == 401
    assert (await ask("/v1/models", admin=(), **bearer("user-key"))).status == 200


async def test_with_admin_keys_alone_the_data_plane_is_not_open() -> None:
    assert (await ask("/v1/models", api=())).status == 401
    assert (await ask("/v1/models", api=(), **bearer("root-key"))).status == 200


@pytest.mark.parametrize(
    "value", ["root-key", "Basic root-key", "Bearer root", "Bearer root-key2", "Bearer ROOT-KEY", "Bearer", "Bearer é"]
)
async def test_a_key_counts_only_as_it_is(value: str) -> None:
    assert (await ask("/api/servers", authorization=value)).status == 401


@pytest.mark.parametrize("value", ["bearer root-key", "Bearer  root-key "])
async def test_the_scheme_is_not_case_sensitive(value: str) -> None:
    assert (await ask("/api/servers", authorization=value)).status == 200


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "LOCALHOST:1", "127.0.0.1:8080", "[::1]:8080", "[::1]"]
)
async def test_our_own_hosts_are_answered(host: str) -> None:
    assert (await ask("/healthz", host=host)).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "localhost.evil.example", "", "127.0.0.2", "[", "a@b:c", "localhost@evil"],
)
@pytest.mark.parametrize("path", ["/healthz", "/v1/models", "/api/servers", "/metrics"])
async def test_strange_hosts_are_refused_everywhere(path: str, host: str) -> None:
    call = await ask(path, admin=(), api=(), host=host)
    assert call.status == 403
    assert "SLIPSTREAM_ALLOWED_HOSTS" in call.content.decode()


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://localhost.evil.example", "file://"])
async def test_without_keys_a_strangers_page_is_refused(origin: str) -> None:
    assert (await ask("/v1/models", admin=(), api=(), origin=origin)).status == 403


async def test_our_own_page_is_not_a_stranger() -> None:
    assert (await ask("/v1/models", admin=(), api=(), origin="http://localhost:8080")).status == 200


async def test_with_keys_the_key_decides_not_the_origin() -> None:
    assert (await ask("/v1/models", origin="http://app.example", **bearer("user-key"))).status == 200
    assert (await ask("/v1/models", origin="http://app.example")).status == 401


async def test_a_star_answers_any_host() -> None:
    assert (await ask("/healthz", hosts=("*",), host="any.example")).status == 200


async def test_a_star_does_not_let_strangers_pages_in() -> None:
    call = await ask("/v1/models", admin=(), api=(), hosts=("*",), host="any.example", origin="http://evil.example")
    assert call.status == 403


@pytest.mark.parametrize("path, kind", [("/v1/models", "application/json"), ("/api/x", "application/problem+json")])
async def test_a_refusal_has_the_shape_of_its_path(path: str, kind: str) -> None:
    call = await ask(path)
    assert call.header("content-type") == [kind]
    body = json.loads(call.content)
    assert ("error" in body) == path.startswith("/v1/")
    assert "key" not in str(call.answer_headers).replace("www-authenticate", "")


async def test_no_key_is_in_any_refusal() -> None:
    for call in [await ask("/api/x", **bearer("user-key")), await ask("/api/x", **bearer("sent-by-me"))]:
        assert not any(word in call.content for word in (b"user-key", b"root-key", b"sent-by-me"))
