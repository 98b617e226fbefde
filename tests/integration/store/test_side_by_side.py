"""huggingface_hub's own client and ours against one hub, in every way a download goes wrong.

Of ours it is demanded that it ends with the right bytes or the right error. What the other does is recorded as a fact:
it is why the bytes are brought by our own fetcher, and a version that behaves otherwise shows here.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code
from tests.integration.store.clients import Outcome, ours, real
from tests.support.fetching import NAME, REPOSITORY, made
from tests.support.hub import Hub, Kind, running_hub

pytestmark = pytest.mark.integration

CONTENT = made(30_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
OTHER = made(len(CONTENT), seed=2)
HALF = 15_000_000
RIGHT = Outcome(sha256=SHA256)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as server:
        server.add(REPOSITORY, NAME, CONTENT)
        yield server


@dataclass(frozen=True)
class Case:
    """What is ordered of the hub before each download, and how the two end: right bytes, or an error of this name."""

    name: str
    order: Callable[[Hub], object]
    ours: str
    real: str
    words: str = ""


def cut_then(kind: Kind, **fields: Any) -> Callable[[Hub], object]:
    """A connection that is cut in the middle, and trouble when the rest is asked for."""

    def order(hub: Hub) -> None:
        hub.fault(Kind.CUT, after_bytes=HALF)
        hub.fault(kind, **fields)

    return order


def fault(kind: Kind, **fields: Any) -> Callable[[Hub], object]:
    return lambda hub: hub.fault(kind, **fields)


def move(hub: Hub) -> None:
    """Between the halves the file becomes another of the same size."""
    hub.fault(Kind.CUT, after_bytes=HALF, then=lambda: hub.replace(REPOSITORY, NAME, OTHER))


OK, WRONG = "right", "silently wrong"
CASES = [
    Case("cut three times", fault(Kind.CUT, after_bytes=5_000_000, times=3), OK, OK),
    Case("206 with another start", cut_then(Kind.OTHER_START, after_bytes=1000), OK, WRONG),
    Case("206 shorter than it says", cut_then(Kind.SHORT, after_bytes=1000), OK, "OSError", "Consistency check failed"),
    Case("200 on resume", cut_then(Kind.WHOLE), OK, OK),
    Case("206 with another ETag", cut_then(Kind.OTHER_ETAG), OK, OK),
    Case("the file moved meanwhile", move, Code.WRONG_BYTES, WRONG),
    Case("416 on resume", cut_then(Kind.STATUS, status=416), OK, "HfHubHTTPError", "416"),
    Case("429 with Retry-After", fault(Kind.STATUS, status=429, retry_after="1"), OK, OK),
    Case("503 once", fault(Kind.STATUS, status=503), OK, "HfHubHTTPError", "503"),
    Case("503 after a cut", cut_then(Kind.STATUS, status=503), OK, "HfHubHTTPError", "503"),
    Case("503 for good", fault(Kind.STATUS, status=503, times=50), Code.SOURCE_FAILED, "HfHubHTTPError", "503"),
    Case("403 of the content host once", fault(Kind.STATUS, status=403), OK, "HfHubHTTPError", "403"),
    Case("stall", fault(Kind.STALL, after_bytes=HALF), OK, OK),
    Case("stall before the first byte", fault(Kind.STALL, after_bytes=0), OK, OK),
    Case("wrong bytes", fault(Kind.WRONG_BYTES), Code.WRONG_BYTES, WRONG),
    Case(
        "a web page in place of the file", fault(Kind.PAGE), Code.SOURCE_FAILED, "OSError", "Consistency check failed"
    ),
    Case("a web page on resume", cut_then(Kind.PAGE), Code.SOURCE_FAILED, "OSError", "Consistency check failed"),
]


def verdict(outcome: Outcome) -> str:
    if outcome.error is not None:
        return outcome.error
    return OK if outcome.sha256 == SHA256 else WRONG


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_fault(hub: Hub, tmp_path: Path, case: Case) -> None:
    verdicts = {}
    for client in (ours(hub, tmp_path), real(hub, tmp_path)):
        hub.faults.clear()
        hub.replace(REPOSITORY, NAME, CONTENT)
        case.order(hub)
        outcome = client.fetch()
        verdicts[client.name] = verdict(outcome)
        assert outcome.error is None or client.final_files() == []
        if client.name == "real" and case.words:
            assert case.words in outcome.message
        if outcome.error == Code.WRONG_BYTES:
            assert SHA256 in outcome.message
            [note] = (client.folder / "models" / "quarantine").glob("*.json")
            assert json.loads(note.read_text())["expected_sha256"] == SHA256
    assert verdicts == {"ours": case.ours, "real": case.real}
