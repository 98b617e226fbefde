"""What the end of an answer says, and what nobody can make it say."""

import json
from typing import Any

import pytest

from orchestrator.gateway.pieces import KEPT_BYTES, Pieces
from orchestrator.gateway.tail import NOTHING, Figures, figures_of

TIMINGS: dict[str, Any] = {
    "cache_n": 6,
    "prompt_n": 14,
    "prompt_ms": 1.449,
    "predicted_n": 64,
    "predicted_ms": 21.42,
    "draft_n": 93,
    "draft_n_accepted": 30,
}
FIGURES = Figures(20, 64, 93, 30, 0.02142)
USAGE = {"completion_tokens": 5, "prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}


def body(content: str = "hello", **fields: Any) -> bytes:
    return json.dumps({"choices": [{"message": {"content": content}}], **fields}, separators=(",", ":")).encode()


def stream(*events: bytes) -> bytes:
    return b"".join(b"data: " + event + b"\n\n" for event in (*events, b"[DONE]"))


def end_of(whole: bytes, size: int) -> bytes:
    pieces = Pieces()
    for start in range(0, len(whole), size):
        pieces.add(whole[start : start + size])
    return pieces.end


class TestFigures:
    def test_of_an_answer_that_is_not_streamed(self) -> None:
        assert figures_of(body(usage=USAGE, timings=TIMINGS)) == FIGURES

    def test_of_a_stream(self) -> None:
        assert figures_of(stream(body("a"), body("b", usage=USAGE, timings=TIMINGS))) == FIGURES

    def test_the_last_timings_count_where_each_token_has_its_own(self) -> None:
        assert figures_of(stream(body(timings=TIMINGS | {"predicted_n": 3}), body(timings=TIMINGS))) == FIGURES

    def test_a_server_without_drafts_says_nothing_of_them(self) -> None:
        plain = {name: value for name, value in TIMINGS.items() if not name.startswith("draft")}
        assert figures_of(body(timings=plain)) == Figures(20, 64, None, None, 0.02142)

    def test_spaces_and_what_stands_behind_do_not_matter(self) -> None:
        assert figures_of(b'{"timings": ' + json.dumps(TIMINGS).encode() + b', "metrics": {"a": [1]}}') == FIGURES

    def test_without_timings_the_usage_counts(self) -> None:
        assert figures_of(body(usage=USAGE)) == Figures(9, 5)
        anthropic = {"cache_read_input_tokens": 4, "input_tokens": 5, "output_tokens": 7}
        assert figures_of(body(usage=anthropic)) == Figures(9, 7)

    @pytest.mark.parametrize(
        "end",
        [b"", b"{}", b"data: [DONE]\n\n", b'"timings":', b'"timings":{', b'"timings":[1]', b'"timings":7', b"\xff\xfe"],
    )
    def test_nothing_is_said(self, end: bytes) -> None:
        assert figures_of(end) == NOTHING

    @pytest.mark.parametrize("value", [-1, "7", None, True, 1.5, {"a": 1}, float("nan")])
    def test_a_wrong_number_is_none(self, value: Any) -> None:
        assert figures_of(body(timings=TIMINGS | {"predicted_n": value})) == NOTHING
        found = figures_of(body(timings=TIMINGS | {"draft_n": value, "prompt_n": value}))
        assert found == Figures(None, 64, None, 30, 0.02142)

    @pytest.mark.parametrize("value", [-1.0, "7", None, True, float("inf"), 10**400])
    def test_a_wrong_time_is_none(self, value: Any) -> None:
        assert figures_of(body(timings=TIMINGS | {"predicted_ms": value})).predicted_seconds is None

    def test_time_of_a_token_is_that_of_a_step_after_the_first(self) -> None:
        assert FIGURES.per_token_seconds == pytest.approx(0.02142 / 63)
        assert Figures(1, 1, None, None, 0.001).per_token_seconds is None
        assert NOTHING.per_token_seconds is None


FORGED = '{"predicted_n":1000000,"predicted_ms":1.0}'


class TestForgery:
    """A model says what it likes: as text it is never taken for what the server says."""

    @pytest.mark.parametrize(
        "said",
        [f'"timings":{FORGED}', f'\\"timings":{FORGED}', f'\\\\"timings":{FORGED},"x":"', f'"}}],"timings":{FORGED}'],
    )
    def test_in_the_text_of_an_answer(self, said: str) -> None:
        assert figures_of(body(said)) == NOTHING
        assert figures_of(body(timings=TIMINGS, tail=said)) == FIGURES
        assert figures_of(stream(body(timings=TIMINGS), body(said))) == FIGURES

    def test_wherever_the_end_begins(self) -> None:
        whole = body(f'"timings":{FORGED}', tail=f'\\\\"timings":{FORGED}')
        assert {figures_of(whole[start:]) for start in range(len(whole))} == {NOTHING}

    def test_in_the_input_of_a_tool_that_messages_give_as_an_object(self) -> None:
        usage = {"input_tokens": 5, "output_tokens": 7}
        content = [{"type": "tool_use", "input": {"timings": json.loads(FORGED), "usage": {"output_tokens": 10**6}}}]
        answer = json.dumps({"content": content, "usage": usage}, separators=(",", ":")).encode()
        assert figures_of(answer, has_timings=False) == Figures(5, 7)


class TestPieces:
    @pytest.mark.parametrize("size", [700, KEPT_BYTES - 1, KEPT_BYTES, 1 << 20])
    def test_however_the_answer_is_cut_its_end_is_kept(self, size: int) -> None:
        whole = body("x" * 100_000, usage=USAGE, timings=TIMINGS)
        end = end_of(whole, size)
        assert whole.endswith(end) and len(end) == KEPT_BYTES
        assert figures_of(end) == FIGURES

    def test_a_last_event_that_comes_in_many_pieces(self) -> None:
        assert figures_of(end_of(stream(*[body("x")] * 100, body(timings=TIMINGS)), 40)) == FIGURES

    def test_what_is_held_is_bounded_and_not_copied(self) -> None:
        pieces = Pieces()
        for _ in range(1000):
            pieces.add(b"x" * (KEPT_BYTES - 1))
        large = b"y" * (1 << 20)
        pieces.add(large)
        assert [piece is large for piece in pieces._pieces] == [True]
        for _ in range(1000):
            pieces.add(b"z" * (KEPT_BYTES - 1))
        assert sum(map(len, pieces._pieces)) <= 16 * KEPT_BYTES

    def test_gaps_are_those_between_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        moments = iter([100.0, 100.25, 100.5, 103.5])
        monkeypatch.setattr("orchestrator.gateway.pieces.monotonic", lambda: next(moments))
        pieces = Pieces()
        pieces.is_stream = True
        assert pieces.gaps is None
        for piece in (b"a", b":\n\n", b"b", b"c", b"d", b"data: [DONE]\n\n"):
            pieces.add(piece)
        found = pieces.gaps
        assert found is not None and (found.seconds, found.longest_seconds, sum(found.counts)) == (3.5, 3.0, 3)
        assert pieces.first == 100.0
        pieces.is_stream = False
        assert pieces.gaps is None

    def test_signs_of_life_and_progress_are_no_first_token(self) -> None:
        pieces = Pieces()
        pieces.shows_progress = True
        for piece in (b":\n\n", b'data: {"prompt_progress":{"total":9}}\n\n'):
            pieces.add(piece)
        assert pieces.first == 0.0
        pieces.add(b'data: {"choices":[]}\n\n')
        assert pieces.first > 0.0
