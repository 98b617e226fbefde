"""The command line in this process, against a real HTTP server that speaks the API's shapes."""

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from tests.unit.api_stub import ApiStub, running_stub


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON value on stdout; fails when anything else is there."""
        return json.loads(self.out)

    @property
    def lines(self) -> dict[str, str]:
        """What a person reads, by its label."""
        return {line.split("  ")[0]: line.split("  ", 1)[-1].strip() for line in self.out.splitlines()}


Run = Callable[..., Outcome]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiStub]:
    """The API as the commands see it, by SLIPSTREAM_URL."""
    for name in ("SLIPSTREAM_KEY", "SLIPSTREAM_KEY_FILE", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    with running_stub() as stub:
        monkeypatch.setenv("SLIPSTREAM_URL", stub.url)
        yield stub


@pytest.fixture
def run(stub: ApiStub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs a command in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, stdin: str = "") -> Outcome:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = capsys.readouterr()
        assert "\x1b" not in out + err, "no terminal, no escape sequences"
        return Outcome(int(ended.value.code or 0), out, err)

    return run


def cells(line: str) -> list[str]:
    """What stands in a row of a table."""
    return line.split()
