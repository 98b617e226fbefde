"""The command line in a terminal of its own: a conversation, Ctrl-C, Ctrl-D, the live line of a start."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.unit.api_stub import Answer, ApiStub, chat_answer, chunk, problem, server_view

CHAT = "/v1/chat/completions"
DEADLINE_SECONDS = 20.0
# What a terminal obeys instead of showing.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\x1b[=>]")


@dataclass
class Terminal:
    """A command whose three streams are a terminal."""

    process: "subprocess.Popen[bytes]"
    fd: int
    shown: str = ""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def expect(self, text: str) -> str:
        """Read until `text` is shown; what was shown up to its end, which later calls do not see again."""
        end = time.monotonic() + DEADLINE_SECONDS
        while text not in self.shown:
            ready, _, _ = select.select([self.fd], [], [], max(0.0, end - time.monotonic()))
            if not ready or not (read := self._read()):
                raise AssertionError(f"expected {text!r}; the terminal shows {self.shown!r}")
            # Over the whole text, since a sequence may come in two pieces.
            self.shown = _CONTROL.sub("", self.shown + read)
        before, _, self.shown = self.shown.partition(text)
        return before + text

    def _read(self) -> str:
        try:
            return os.read(self.fd, 65536).decode(errors="replace")
        except OSError:  # the other end is closed
            return ""


@contextmanager
def terminal(url: str, *arguments: str, columns: int = 100) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLIPSTREAM_")}
    env |= {"TERM": "xterm", "COLUMNS": str(columns), "SLIPSTREAM_URL": url}
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli", *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=env
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def said(stub: ApiStub) -> list[list[tuple[str, str]]]:
    """The messages of every request."""
    return [[(m["role"], m["content"]) for m in body["messages"]] for body in stub.bodies(CHAT)]


def test_a_conversation_is_kept_until_ctrl_d(stub: ApiStub) -> None:
    stub.routes[f"POST {CHAT}"] = chat_answer(chunk("I am a toy."), chunk(finish="stop"))
    with terminal(stub.url, "chat", "toy", "--system", "Be a toy.") as t:
        t.expect("> ")
        t.type("Who are you?\n")
        t.expect("I am a toy.\n↳ no drafts\n")
        t.expect("> ")
        t.type("\n")
        t.expect("> ")
        t.type("Really?\n")
        t.expect("↳ no drafts\n")
        t.expect("> ")
        t.type("\x04")
        assert t.process.wait(DEADLINE_SECONDS) == 0
    begin = [("system", "Be a toy."), ("user", "Who are you?")]
    assert said(stub) == [begin, [*begin, ("assistant", "I am a toy."), ("user", "Really?")]]


def test_ctrl_c_ends_the_answer_not_the_conversation(stub: ApiStub) -> None:
    stub.routes[f"POST {CHAT}"] = chat_answer(chunk("half an"), chunk(" answer"), between=threading.Event())
    with terminal(stub.url, "chat", "toy") as t:
        t.expect("> ")
        t.type("first\n")
        t.expect("half an")
        t.interrupt()
        t.expect("> ")
        assert stub.hung_up.wait(DEADLINE_SECONDS), "the server is told that nobody listens"
        stub.routes[f"POST {CHAT}"] = chat_answer(chunk("whole", "stop"))
        t.type("second\n")
        t.expect("whole\n↳")
    assert said(stub)[1] == [("user", "first"), ("assistant", "half an"), ("user", "second")]


def test_an_error_ends_its_answer_not_the_conversation(stub: ApiStub) -> None:
    stub.routes[f"POST {CHAT}"] = Answer({"error": {"message": "not now", "code": "server_stopped"}}, 503)
    with terminal(stub.url, "chat", "toy") as t:
        t.expect("> ")
        t.type("first\n")
        t.expect("error: not now\n")
        stub.routes[f"POST {CHAT}"] = chat_answer(chunk("now", "stop"))
        t.expect("> ")
        t.type("second\n")
        t.expect("now\n↳")
    assert said(stub)[1] == [("user", "second")]


def test_ctrl_c_ends_one_answer_with_130(stub: ApiStub) -> None:
    stub.routes[f"POST {CHAT}"] = chat_answer(chunk("half"), chunk(" an answer"), between=threading.Event())
    with terminal(stub.url, "chat", "toy", "hi") as t:
        t.expect("half")
        t.interrupt()
        assert t.process.wait(DEADLINE_SECONDS) == 130
        assert stub.hung_up.wait(DEADLINE_SECONDS)


def test_json_needs_a_prompt_in_a_terminal(stub: ApiStub) -> None:
    with terminal(stub.url, "chat", "toy", "--json") as t:
        t.expect("--json needs a PROMPT")
        assert t.process.wait(DEADLINE_SECONDS) == 2


def test_a_prompt_that_is_no_utf_8_is_an_error(stub: ApiStub) -> None:
    command = [sys.executable, "-m", "orchestrator.cli", "chat", "toy", "--url", stub.url]
    done = subprocess.run(command, input=b"\xff", capture_output=True, timeout=DEADLINE_SECONDS)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"error: the request holds text that is no UTF-8\n"


def test_a_full_disk_under_stdout_is_an_error(stub: ApiStub) -> None:
    stub.routes["GET /api/jobs"] = Answer({"jobs": []})
    command = [sys.executable, "-m", "orchestrator.cli", "jobs", "--json", "--url", stub.url]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=DEADLINE_SECONDS)
    assert (done.returncode, done.stderr) == (1, b"error: No space left on device\n")


def test_a_narrow_terminal_shows_ids_whole(stub: ApiStub) -> None:
    view = {"id": "0123456789abcdef", "kind": "verify", "subject": "a model with a long name" * 3, "state": "queued"}
    stub.routes["GET /api/jobs"] = Answer({"jobs": [view | {"created": 1.0}]})
    with terminal(stub.url, "jobs", columns=40) as t:
        assert view["subject"] in t.expect(view["subject"]).replace("\n", "")
        assert t.process.wait(DEADLINE_SECONDS) == 0


def test_the_first_question_shows_the_model_loading(stub: ApiStub) -> None:
    """An inference key may not ask for the state; then there is no live line, and the answer comes all the same."""
    gate = threading.Event()
    stub.routes["GET /api/servers/toy"] = Answer(server_view(state="loading"))
    stub.routes[f"POST {CHAT}"] = chat_answer(chunk("loaded", "stop"), gate=gate)
    with terminal(stub.url, "chat", "toy", "hi") as t:
        t.expect("toy: loading")
        stub.routes["GET /api/servers/toy"] = problem("forbidden", "needs an admin key", 403)
        gate.set()
        t.expect("loaded\n↳")
        assert t.process.wait(DEADLINE_SECONDS) == 0


def test_ctrl_c_ends_the_wait_for_a_start(stub: ApiStub) -> None:
    gate = threading.Event()
    stub.routes["GET /api/servers/toy"] = Answer(server_view(state="loading"))
    stub.routes["POST /api/servers/toy/start"] = Answer(server_view(), gate=gate)
    with terminal(stub.url, "start", "toy") as t:
        t.expect("toy: loading")
        t.interrupt()
        t.expect("slipstream status toy")
        assert t.process.wait(DEADLINE_SECONDS) == 130
    gate.set()
