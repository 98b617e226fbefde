"""Every route of the document and of llama-server, asked over real sockets without a key and with the wrong kind."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.gateway.routes import is_data
from tests import FAKE_SERVER
from tests.support.orchestrator import Orchestrator, running_orchestrator
from tests.support.scripted import write_script

pytestmark = pytest.mark.integration

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
OPEN = {"/healthz", "/readyz"}
# The page holds no data where keys are set.
PAGE = ("/", "/page/page.js")
# What the pinned llama-server registers besides our data plane (tools/server/server.cpp): none of it may be reached.
LLAMA_SERVER = (
    *("/", "/health", "/v1/health", "/props", "/slots", "/slots/0", "/lora-adapters", "/cors-proxy", "/tools"),
    *("/models/load", "/models/unload", "/models/sse", "/v1/stream", "/v1/streams/lookup", "/v1/systemone"),
    *("/v1/chat/completions/control", "/index.html", "/bundle.js"),
)
# Other spellings of what is there. `//v1/models` and `/api/../v1/models` must not be taken for the data plane.
SPELLINGS = (
    *("//v1/models", "//api/servers", "/v1//models", "/api//servers", "/api/servers/", "/API/servers", "/V1/models"),
    *(
        "/v1/../api/servers",
        "/healthz/../api/servers",
        "/api/../v1/models",
        "/./api/servers",
        "/healthz/",
        "/healthz;x",
    ),
    *(
        "/%61pi/servers",
        "/api%2Fservers",
        "/v1%2fmodels",
        "/healthz%2F..%2Fapi/servers",
        "/api/servers%00",
        "/healthz%00",
    ),
    *("/api/servers?key=user-key", "/v1/models/../../api/servers", "/v1/%2e%2e/api/servers", "/api/%ff"),
)
ADMIN, USER = "admin-key-of-the-scan", "user-key-of-the-scan"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orchestrator]:
    home = tmp_path_factory.mktemp("scan")
    for name, key in (("admin", ADMIN), ("user", USER)):
        (home / name).write_text(key + "\n")
    write_script(home / "fake.gguf", {"slots_page": "[]", "seen": str(home / "seen")})
    settings = {"ADMIN_KEYS_FILE": str(home / "admin"), "API_KEYS_FILE": str(home / "user")}
    house = Orchestrator(home, FAKE_SERVER, settings | {"SHUTDOWN_TIMEOUT_SECONDS": "1"})
    house.write_model("fake", home / "fake.gguf")
    with running_orchestrator(house):
        yield house
        house.require_alive()


def documented(house: Orchestrator) -> list[str]:
    """Every path of the document, parameters filled in."""
    document = house.http.get("/api/openapi.json", headers=bearer(ADMIN)).raise_for_status().json()
    paths = [re.sub(r"{\w+}", "fake", path) for path in document["paths"]]
    assert {"/api/servers", "/api/audit", "/v1/chat/completions", "/metrics", "/healthz"} <= set(paths)
    return paths


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def ask(house: Orchestrator, method: str, path: str, key: str | None = None) -> tuple[int, str]:
    """Status and everything that was said; nothing of it may lead to our folders, our keys or our code."""
    body = b'{"model": "fake"}' if method in ("POST", "PUT", "PATCH") else None
    headers = {"content-type": "application/json"} | (bearer(key) if key else {})
    # The target is sent as it is: httpx would otherwise tidy it up.
    request = house.http.build_request(method, "/", content=body, headers=headers)
    request.extensions["target"] = path.encode()
    response = house.http.send(request)
    text = f"{response.headers} {response.text}"
    leaks = (str(house.home), str(Path(__file__).parents[3]), ADMIN, USER, "Traceback", ".py")
    assert not [word for word in leaks if word in text], (method, path, text)
    return response.status_code, text


def test_a_stranger_gets_401_everywhere(guarded: Orchestrator) -> None:
    wrong = []
    for path in {*documented(guarded), *LLAMA_SERVER, *SPELLINGS, *PAGE, "/page/live"}:
        for method in METHODS:
            for key in (None, "a-wrong-key"):
                status, _ = ask(guarded, method, path, key)
                if path in PAGE:
                    expected: tuple[int, ...] = (200,) if method in ("GET", "HEAD") else (405,)
                elif path in OPEN:
                    expected = (200,) if method == "GET" else (405,)
                else:
                    expected = (401,)
                if status not in expected:
                    wrong.append((method, path, key, status))
    assert wrong == []
    assert guarded.http.get("/api/servers/fake", headers=bearer(ADMIN)).json()["state"] == "stopped"


def test_an_inference_key_opens_no_admin_route(guarded: Orchestrator) -> None:
    wrong = []
    for path in {*documented(guarded), *LLAMA_SERVER, "/page/live"}:
        if path in OPEN or path in PAGE or path == "/metrics" or is_data(path):
            continue
        wrong += [(m, path, s) for m in METHODS if (s := ask(guarded, m, path, USER)[0]) != 403]
    assert wrong == []


@pytest.mark.parametrize("key", [USER, ADMIN])
def test_other_routes_of_llama_server_are_not_there(guarded: Orchestrator, key: str) -> None:
    guarded.http.post("/api/servers/fake/start", headers=bearer(ADMIN)).raise_for_status()
    for path in set(LLAMA_SERVER) - set(PAGE):
        for method in METHODS:
            status, text = ask(guarded, method, path, key)
            # `/slots` is ours, for admins; without `?model=` it is told so.
            allowed = {400, 405} if path == "/slots" and key == ADMIN else {403, 404, 405}
            assert status in allowed, (method, path, status, text)
    assert not (guarded.home / "seen").exists()


def test_other_spellings_open_nothing(guarded: Orchestrator) -> None:
    for path in SPELLINGS:
        status, text = ask(guarded, "GET", path, USER)
        # A path is decided by as it is routed: decoded once, and nothing taken out of it.
        is_answer = path in ("/v1%2fmodels",)
        assert (status == 200) is is_answer, (path, status, text)
        if not is_answer:
            assert status in (403, 404), (path, status, text)
