"""0009: a server ends when it is told to, also while it generates."""

import signal
import subprocess
from itertools import islice
from pathlib import Path

import pytest

from tests.support import ToyBox, running_server

pytestmark = pytest.mark.integration

ROUNDS = 25
END_SECONDS = 3.0
ENDLESS = {"ignore_eos": True, "n_predict": 1_000_000}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_patched_server_ends_in_the_middle_of_a_generation(
    number: signal.Signals, patched_server: Path, toys: ToyBox, tmp_path: Path
) -> None:
    # Without the patch about one round in twenty waits for itself: see the header of the patch.
    stuck = [i for i in range(ROUNDS) if not ends(patched_server, toys, tmp_path / f"{i}.log", number)]
    assert not stuck


def ends(binary: Path, toys: ToyBox, log: Path, number: signal.Signals) -> bool:
    """Whether a server that generates ends in time once it is told to."""
    try:
        with running_server(binary, toys.mtp().path, "--parallel", "1", "--context-shift", log=log) as server:
            body = {"prompt": "Once upon a time", "stream": True, **ENDLESS}
            with server.client.http.stream("POST", "/completion", json=body) as answer:
                list(islice(answer.iter_lines(), 20))
                server.process.send_signal(number)
                server.process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    except RuntimeError as e:
        # What the helper says of a server that ended by itself, which is what was asked of this one.
        assert "ended by itself with status 0" in str(e)
    return True
