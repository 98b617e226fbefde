"""The audit log: written before anything is done, completed by the answer, and nothing in it that was secret."""

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from orchestrator import db
from orchestrator.api import Context, Guard
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import AuditEntry
from tests.support.asgi import Call
from tests.unit.conftest import World

ADMIN, USER = "the-admin-secret", "the-user-secret"
LABEL = hashlib.sha256(ADMIN.encode()).hexdigest()[:8]
AS_ADMIN = {"authorization": f"Bearer {ADMIN}"}


@pytest.fixture
def guarded(api: FastAPI) -> Guard:
    context: Context = api.state.context
    return Guard(api, (ADMIN,), (USER,), ("localhost",), (), context.audit.refused)


@pytest.fixture
async def admin(guarded: Guard) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(guarded, raise_app_exceptions=False, client=("10.0.0.7", 4711))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=AS_ADMIN) as client:
        yield client


async def entries(admin: httpx.AsyncClient, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await admin.get(f"/api/audit{query}")).raise_for_status().json()["entries"]
    return found


async def call_from(
    guarded: Guard, client: str, path: str = "/api/store/gc", method: str = "POST", **headers: str
) -> int:
    transport = httpx.ASGITransport(guarded, client=(client, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        return (await http.request(method, path, headers=headers)).status_code


async def test_a_call_is_noted_before_it_is_done(
    admin: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.model("a")
    seen: list[AuditEntry] = []
    stop = world.manager.stop

    async def watched(name: str, **options: Any) -> Any:
        seen.extend(await world.database.audit_entries(10))
        return await stop(name, **options)

    monkeypatch.setattr(world.manager, "stop", watched)
    await admin.post("/api/servers/a/stop?drain_seconds=0")
    (before,) = seen
    assert (before.status, before.milliseconds) == (None, None)
    (after,) = await entries(admin)
    assert 0 <= after.pop("milliseconds") < 10_000
    assert after == before.model_dump(exclude={"milliseconds"}) | {"status": 200}
    assert (after["method"], after["path"], after["key"]) == ("POST", "/api/servers/a/stop", LABEL)
    assert (after["client"], after["count"], after["dry_run"]) == ("10.0.0.7", 1, False)


async def test_whatever_was_answered_is_noted_and_reading_is_not(
    admin: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(name: str) -> None:
        raise RuntimeError("the details")

    monkeypatch.setattr(world.manager, "clear", broken)
    for path in ("/api/servers", "/api/audit", "/metrics", "/healthz"):
        await admin.get(path)
    calls: list[tuple[str, str, bytes]] = [
        ("POST", "/api/servers/nobody/stop", b""),
        ("PUT", "/api/servers/a", b"{"),
        ("DELETE", "/api/servers", b""),
        ("PATCH", "/api/nowhere", b""),
        ("POST", "/api/swap", b" " * (300 << 10)),
        ("POST", "/api/servers/a/clear", b""),
    ]
    statuses = [(await admin.request(method, path, content=body)).status_code for method, path, body in calls]
    assert statuses == [404, 400, 405, 404, 413, 500]
    found = [(e["method"], e["path"], e["status"]) for e in reversed(await entries(admin))]
    assert found == [(method, path, status) for (method, path, _), status in zip(calls, statuses, strict=True)]


async def test_a_client_that_leaves_is_not_answered(guarded: Guard, admin: httpx.AsyncClient) -> None:
    call = Call(guarded, "POST", "/api/swap", b"{", AS_ADMIN, more=True)
    call.left.set()
    await call.run()
    (entry,) = await entries(admin)
    assert (entry["path"], entry["status"]) == ("/api/swap", None)


async def test_nothing_secret_is_on_disk(guarded: Guard, admin: httpx.AsyncClient, world: World) -> None:
    await admin.put("/api/servers/a?x=query-secret", json={"flags": {"ctx-size": "body-secret"}})
    await admin.post("/api/swap?dry_run=true&y=query-secret", json={"start": "body-secret"})
    await call_from(guarded, "10.0.0.8", "/api/swap?z=query-secret", authorization="Bearer wrong-secret")
    await call_from(guarded, "10.0.0.8", "/api/swap", x_api_key="header-secret")
    text = (await admin.get("/api/audit")).text
    assert "secret" not in text and LABEL in text
    assert [e["dry_run"] for e in await entries(admin)][-2:] == [True, False]
    files = [*(world.folder / "state").glob("slipstream.db*")]
    raw = b"".join(file.read_bytes() for file in files)
    assert LABEL.encode() in raw and b"-secret" not in raw


async def test_refused_calls_share_entries(guarded: Guard, admin: httpx.AsyncClient) -> None:
    for _ in range(50):
        assert await call_from(guarded, "10.0.0.8", "/api/servers/a/stop") == 401
    for _ in range(3):
        assert await call_from(guarded, "10.0.0.8", "/api/servers", "GET", authorization=f"Bearer {USER}") == 403
    assert await call_from(guarded, "10.0.0.9", authorization="Bearer wrong") == 401
    assert await call_from(guarded, "10.0.0.9", "/v1/models", "GET") == 401
    found = {(e["client"], e["key"], e["status"]): e["count"] for e in await entries(admin)}
    user = hashlib.sha256(USER.encode()).hexdigest()[:8]
    # A minute may have ended in between.
    assert set(found) == {("10.0.0.8", "none", 401), ("10.0.0.8", user, 403), ("10.0.0.9", "unknown", 401)}
    assert sum(found.values()) <= 54


async def test_a_scanner_pushes_nothing_out(
    guarded: Guard, admin: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes = iter(range(10**6))
    monkeypatch.setattr(guarded.__dict__["_on_refusal"].__self__, "_clock", lambda: next(minutes) * 60.0)
    monkeypatch.setattr(db, "_KEPT_AUDIT_ENTRIES", {False: 5, True: 3})
    await admin.post("/api/servers/nobody/stop")
    for _ in range(20):
        await call_from(guarded, "10.0.0.8")
    found = await entries(admin)
    assert [e["status"] for e in found] == [401, 401, 401, 404]
    for _ in range(8):
        await admin.post("/api/servers/nobody/start")
    found = await entries(admin)
    assert [e["status"] for e in found] == [404] * 5 + [401] * 3
    assert len({e["number"] for e in found}) == 8


async def test_addresses_beyond_a_bound_share_entries(guarded: Guard, admin: httpx.AsyncClient) -> None:
    trail = guarded.__dict__["_on_refusal"].__self__
    trail._clock = lambda: 600.0
    for number in range(100):
        await call_from(guarded, f"10.0.1.{number}")
    found = {e["client"]: e["count"] for e in await entries(admin)}
    assert len(found) == 65 and found["others"] == 36


async def test_pages(admin: httpx.AsyncClient) -> None:
    for _ in range(5):
        await admin.post("/api/servers/nobody/stop")
    numbers = [e["number"] for e in await entries(admin)]
    assert numbers == sorted(numbers, reverse=True) and len(numbers) == 5
    assert [e["number"] for e in await entries(admin, "?limit=2")] == numbers[:2]
    assert [e["number"] for e in await entries(admin, f"?limit=2&before={numbers[1]}")] == numbers[2:4]
    assert await entries(admin, f"?before={numbers[-1]}") == []
    for query in ("limit=0", "limit=1001", "before=0", f"before={1 << 63}"):
        assert (await admin.get(f"/api/audit?{query}")).status_code == 400


async def test_a_full_disk_does_not_shut_out_what_makes_room(
    admin: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def full(*_: object, **__: object) -> int:
        raise SlipstreamError(Code.DISK_FULL, "the disk of the state folder is full")

    monkeypatch.setattr(world.database, "add_audit_entry", full)
    assert (await admin.post("/api/store/gc")).status_code == 200
    assert "/api/store/gc" in caplog.text and LABEL in caplog.text
