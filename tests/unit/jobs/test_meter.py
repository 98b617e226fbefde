import pytest

from orchestrator.jobs.meter import Meter
from orchestrator.schemas import JobProgress

MB = 1_000_000


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meter(clock: Clock) -> Meter:
    return Meter(clock)


def run(meter: Meter, clock: Clock, seconds: float, rate: float, start: int = 0, step_seconds: float = 0.2) -> int:
    """Report bytes at a steady rate; bytes done at the end."""
    for i in range(1, round(seconds / step_seconds) + 1):
        clock.now += step_seconds
        meter.advance(start + round(i * step_seconds * rate))
    return start + round(seconds * rate)


def read(meter: Meter) -> JobProgress:
    progress = meter.read()
    assert progress is not None
    return progress


def test_nothing_is_known_at_first(meter: Meter, clock: Clock) -> None:
    assert meter.read() is None
    meter.begin("fetching", 100 * MB, "a.gguf", 0)
    meter.advance(MB)
    assert read(meter) == JobProgress(phase="fetching", total_bytes=100 * MB, file="a.gguf", done_bytes=MB)


@pytest.mark.parametrize("seconds", [1, 5, 60])
@pytest.mark.parametrize("step_seconds", [0.2, 0.01])
def test_a_steady_rate(meter: Meter, clock: Clock, seconds: float, step_seconds: float) -> None:
    meter.begin("fetching", 1000 * MB, None, 0)
    run(meter, clock, seconds, 10 * MB, step_seconds=step_seconds)
    progress = read(meter)
    assert progress.rate_bytes_per_second == pytest.approx(10 * MB, rel=0.05)
    assert progress.eta_seconds == pytest.approx(100 - seconds, rel=0.06)


def test_the_rate_is_that_of_the_last_seconds(meter: Meter, clock: Clock) -> None:
    meter.begin("fetching", None, None, 0)
    done = run(meter, clock, 60, 100 * MB)
    run(meter, clock, 6, MB, done)
    progress = read(meter)
    assert progress.rate_bytes_per_second == pytest.approx(MB, rel=0.05)
    assert progress.eta_seconds is None, "without a total nobody knows"


def test_a_stall_is_seen_without_a_report(meter: Meter, clock: Clock) -> None:
    meter.begin("fetching", 100 * MB, None, 0)
    run(meter, clock, 5, 10 * MB)
    clock.now += 2.5
    assert read(meter).rate_bytes_per_second == pytest.approx(5 * MB, rel=0.1)
    clock.now += 2.6
    stalled = read(meter)
    assert (stalled.rate_bytes_per_second, stalled.eta_seconds) == (0, None)


def test_what_an_earlier_run_has_done_counts_for_no_rate(meter: Meter, clock: Clock) -> None:
    meter.begin("fetching", 1000 * MB, None, 900 * MB)
    run(meter, clock, 2, MB, 900 * MB)
    assert read(meter).rate_bytes_per_second == pytest.approx(MB, rel=0.05)
    assert read(meter).eta_seconds == pytest.approx(98, rel=0.05)


def test_the_next_file_goes_on_at_the_rate_of_the_last(meter: Meter, clock: Clock) -> None:
    meter.begin("fetching", 20 * MB, "1", 0)
    run(meter, clock, 2, 10 * MB)
    meter.begin("fetching", 20 * MB, "2", 0)
    progress = read(meter)
    assert (progress.file, progress.done_bytes) == ("2", 0)
    assert progress.rate_bytes_per_second == pytest.approx(10 * MB, rel=0.05)
    assert progress.eta_seconds == pytest.approx(2, rel=0.05)


def test_another_phase_begins_anew(meter: Meter, clock: Clock) -> None:
    meter.begin("fetching", 20 * MB, "1", 0)
    run(meter, clock, 2, 10 * MB)
    meter.begin("hashing", 20 * MB, "1", 0)
    assert read(meter).rate_bytes_per_second is None


def test_work_that_starts_over_has_no_negative_rate(meter: Meter, clock: Clock) -> None:
    meter.begin("fetching", 100 * MB, None, 0)
    run(meter, clock, 1, 10 * MB)
    meter.advance(0)
    run(meter, clock, 1, 10 * MB)
    progress = read(meter)
    assert progress.done_bytes == 10 * MB
    assert progress.rate_bytes_per_second == pytest.approx(10 * MB, rel=0.05)


def test_bytes_without_a_phase_are_shown_too(meter: Meter) -> None:
    meter.advance(5)
    assert read(meter).done_bytes == 5


def test_memory_is_bounded(meter: Meter, clock: Clock) -> None:
    meter.begin("fetching", None, None, 0)
    run(meter, clock, 20, 10 * MB, step_seconds=0.001)
    assert len(meter._samples) < 60
