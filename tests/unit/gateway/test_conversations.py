from typing import Any

import pytest

from orchestrator.gateway.conversations import Conversation, conversation_of


def said(*texts: str, system: str | None = None, **fields: Any) -> Conversation:
    """A chat whose turns are the user's and the assistant's in turns."""
    turns = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    first = [] if system is None else [{"role": "system", "content": system}]
    found = conversation_of({"messages": first + turns, **fields})
    assert found is not None
    return found


def prompt(text: str) -> Conversation:
    found = conversation_of({"prompt": text})
    assert found is not None
    return found


HELD = said("a", "b", "c", system="s").kept()
LONG = "x" * 3000 + "y"


@pytest.mark.parametrize(
    "later, goes_on, is_edit",
    [
        (said("a", "b", "c", "d", "e", system="s"), True, True),
        (said("a", "b", "c", "d", system="s"), True, True),
        (said("a", "b", "c", system="s"), False, True),
        (said("a", "b", "other", system="s"), False, True),
        (said("a", "b", system="s"), False, True),
        (said("a", system="s"), False, False),
        (said("other", "b", "c", "d", "e", system="s"), False, False),
        (said("a", "b", "c", "d", "e", system="t"), False, False),
        (said("a", "b", "c", "d", "e"), False, False),
        (said("a", "b", "c", "d", "e", system="s", tools=[{"name": "t"}]), False, False),
    ],
)
def test_chats(later: Conversation, goes_on: bool, is_edit: bool) -> None:
    assert (later.extends(HELD), later.edits(HELD)) == (goes_on, is_edit)


@pytest.mark.parametrize(
    "held, later, goes_on",
    [
        ("hello", "hello world", True),
        ("hello", "hello", False),
        ("hello", "hell", False),
        ("hello", "help me with", False),
        (LONG, LONG + "z", True),
        (LONG, LONG + "z" * 3000, True),
        (LONG, LONG, False),
        (LONG, "x" * 6000, False),
        (LONG, "x" * 3000, False),
        ("x" * 1024, "x" * 1025, True),
        ("x" * 1024, "x" * 2048, True),
        ("x" * 1024, "x" * 1024, False),
        ("", "hello", False),
    ],
)
def test_prompts(held: str, later: str, goes_on: bool) -> None:
    assert prompt(later).extends(prompt(held).kept()) == goes_on


def test_prompts_with_one_preamble_are_two_conversations() -> None:
    assert not prompt(LONG + "one" * 1000).edits(prompt(LONG + "two" * 1000).kept())
    assert prompt(LONG).edits(prompt(LONG).kept())


def test_what_is_kept_holds_no_text() -> None:
    assert prompt(LONG).kept().text == ""


@pytest.mark.parametrize(
    "request_", [{"prompt": ["a", "b"]}, {"prompt": [1, 2]}, {"prompt": "a", "n": 2}, {"messages": [], "n_cmpl": 3}, {}]
)
def test_what_is_no_one_conversation(request_: dict[str, Any]) -> None:
    assert conversation_of(request_) is None


def test_responses_and_infills() -> None:
    first = [{"role": "user", "content": "a"}]
    held = conversation_of({"input": first, "instructions": "s"})
    later = conversation_of({"input": [*first, {"role": "assistant", "content": "b"}], "instructions": "s"})
    assert held is not None and later is not None and later.extends(held)
    infill = conversation_of({"input_prefix": "a", "input_suffix": "b"})
    assert infill is not None and not later.extends(infill) and not infill.extends(infill)


@pytest.mark.parametrize("messages", [[1, None, "x"], [{"role": ["system"]}], [{}], [{"content": "\ud800"}]])
def test_odd_messages_are_the_servers_to_refuse(messages: list[Any]) -> None:
    assert conversation_of({"messages": messages}) is not None
