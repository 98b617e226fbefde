import email.utils
import time
from email.message import Message
from threading import Event

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.store.http.limits import Limits
from orchestrator.store.http.retry import Patience, asked_wait_seconds


class Clock(Event):
    """Waits that are written down."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        return False


def patience(clock: Clock, **limits: float) -> Patience:
    return Patience("toy.gguf from hub", Limits(**limits), lambda text: None).until(clock)  # type: ignore[arg-type]


def test_waits_double_up_to_a_bound_and_end() -> None:
    clock = Clock()
    tries = patience(clock, retries=6, backoff_seconds=1.0, longest_backoff_seconds=8.0)
    for _ in range(6):
        tries.fail("connection refused")
    for wait, most in zip(clock.waits, (1, 2, 4, 8, 8, 8), strict=True):
        assert most / 2 <= wait <= most
    with pytest.raises(SlipstreamError, match=r"toy\.gguf from hub: connection refused, 7 times in a row") as caught:
        tries.fail("connection refused")
    assert caught.value.code is Code.SOURCE_FAILED


def test_only_bytes_that_are_new_fill_patience_up() -> None:
    tries = patience(Clock(), retries=2)
    for done in (10, 20, 30, 40, 50):
        tries.progress(done)
        tries.fail("cut")
    tries.progress(50)
    tries.fail("cut")
    tries.progress(20)
    with pytest.raises(SlipstreamError):
        tries.fail("cut")


def test_what_does_not_count_is_waited_for_all_the_same() -> None:
    clock = Clock()
    tries = patience(clock, retries=1, backoff_seconds=1.0)
    for _ in range(5):
        tries.fail("busy", counts=False)
    assert len(clock.waits) == 5 and max(clock.waits) <= 1.0
    tries.fail("busy")
    with pytest.raises(SlipstreamError):
        tries.fail("busy")


def test_what_a_server_asks_for_is_waited_but_not_for_ever() -> None:
    clock = Clock()
    tries = patience(clock, longest_wait_seconds=60.0)
    tries.fail("hub answered 429", 59.0)
    assert clock.waits == [59.0]
    with pytest.raises(SlipstreamError, match="hub answered 429, and asks to wait 61 s; at most 60 s") as caught:
        tries.fail("hub answered 429", 61.0)
    assert caught.value.retry_after_seconds == 61


def test_who_asks_for_no_wait_is_left_alone_for_a_while_all_the_same() -> None:
    clock = Clock()
    tries = patience(clock, backoff_seconds=1.0)
    for _ in range(3):
        tries.fail("hub answered 503", 0.0)
    assert clock.waits[0] >= 0.5 and clock.waits[2] >= 2.0


@pytest.mark.parametrize(
    "name, value, seconds",
    [
        ("Retry-After", "7", 7.0),
        ("Retry-After", " 120 ", 120.0),
        ("Retry-After", "soon", None),
        ("Retry-After", "-3", None),
        ("Retry-After", "Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("RateLimit", '"api";r=0;t=55', 55.0),
        ("RateLimit", '"api";r=17;t=55', None),
        ("X-Other", "7", None),
    ],
)
def test_wishes_of_a_server(name: str, value: str, seconds: float | None) -> None:
    headers = Message()
    headers[name] = value
    assert asked_wait_seconds(headers) == seconds


@pytest.mark.parametrize("until", ["Thu, 01 Jan 1970 00:02:00 GMT", "Thu Jan  1 00:02:00 1970"])
def test_a_date_is_measured_by_the_clock_of_whoever_names_it(until: str) -> None:
    headers = {"Retry-After": until, "Date": "Thu, 01 Jan 1970 00:01:30 GMT"}
    assert asked_wait_seconds(headers) == 30.0


def test_a_date_is_a_wait_until_then() -> None:
    headers = {"Retry-After": email.utils.formatdate(time.time() + 100, usegmt=True)}
    assert 95 < (asked_wait_seconds(headers) or 0) <= 100
