"""Closed doors and missing things, side by side: what each client says when there is nothing to download."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.errors import Code
from tests.integration.store.clients import ours, real
from tests.support.fetching import NAME, REPOSITORY, made
from tests.support.hub import Hub, running_hub

pytestmark = pytest.mark.integration

CONTENT = made(100_000)
TOKEN, OTHER_TOKEN = "hf_secretsecret", "hf_otherother"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as server:
        server.add(REPOSITORY, NAME, CONTENT)
        server.tokens |= {TOKEN, OTHER_TOKEN}
        yield server


@dataclass(frozen=True)
class Door:
    """How the hub is closed, who knocks with what, and what both are told."""

    name: str
    close: Callable[[Hub], object]
    real: str
    code: Code
    words: str
    token: str = ""
    revision: str | None = None
    file: str = NAME


def gated(hub: Hub) -> None:
    hub.gate(REPOSITORY, "gated", TOKEN)


def private(hub: Hub) -> None:
    hub.gate(REPOSITORY, "private", TOKEN)


def nothing(hub: Hub) -> None:
    pass


def gone(hub: Hub) -> None:
    del hub.repositories[REPOSITORY]


TERMS = f"{REPOSITORY} is gated"
DOORS = [
    Door("gated, no token (401)", gated, "GatedRepoError", Code.SOURCE_GATED, TERMS),
    Door("gated, another's token (403)", gated, "GatedRepoError", Code.SOURCE_GATED, TERMS, OTHER_TOKEN),
    Door("private, no token (401)", private, "RepositoryNotFoundError", Code.SOURCE_GATED, "gated or private"),
    Door(
        "private, another's token (404)", private, "RepositoryNotFoundError", Code.SOURCE_NOT_FOUND,
        "has no repository", OTHER_TOKEN,
    ),
    Door(
        "a token nobody knows (401)", nothing, "HfHubHTTPError", Code.SOURCE_GATED,
        "a token that the hub does not know", "hf_nobody",
    ),
    Door(
        "no such repository (404)", gone, "RepositoryNotFoundError", Code.SOURCE_NOT_FOUND, "has no repository", TOKEN
    ),
    Door(
        "no such revision (404)", nothing, "RevisionNotFoundError", Code.SOURCE_NOT_FOUND,
        "no branch, tag or commit 'mian' (it has main)", revision="mian",
    ),
    Door(
        "no such file (404)", nothing, "RemoteEntryNotFoundError", Code.SOURCE_NOT_FOUND,
        "has no file 'toy.ggfu' (did you mean toy.gguf?)", file="toy.ggfu",
    ),
]  # fmt: skip


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_a_closed_door(hub: Hub, tmp_path: Path, door: Door) -> None:
    door.close(hub)
    found = {}
    for client in (ours(hub, tmp_path), real(hub, tmp_path)):
        outcome = client.fetch(door.revision, door.file, HF_TOKEN=door.token)
        found[client.name] = outcome
        assert client.final_files() == [] and "secret" not in outcome.message
    assert (found["ours"].error, found["real"].error) == (door.code, door.real)
    assert door.words in found["ours"].message
    assert hub.asked("content") == []


@pytest.mark.parametrize("close", [gated, private])
def test_the_right_token_opens_and_goes_no_further(hub: Hub, tmp_path: Path, close: Callable[[Hub], None]) -> None:
    close(hub)
    for client in (ours(hub, tmp_path), real(hub, tmp_path)):
        outcome = client.fetch(HF_TOKEN=TOKEN)
        assert outcome.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert {request.host for request in hub.requests if TOKEN in str(request.headers)} == {"hub"}
    assert len(hub.asked("content")) == 2


def test_a_token_file_serves_ours(hub: Hub, tmp_path: Path) -> None:
    private(hub)
    secret = tmp_path / "token"
    secret.write_text(f"{TOKEN}\n")
    outcome = ours(hub, tmp_path).fetch(HF_TOKEN="", SLIPSTREAM_HF_TOKEN_FILE=str(secret))
    assert outcome.sha256 == hashlib.sha256(CONTENT).hexdigest()
