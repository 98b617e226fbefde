"""Prompts by kind: what drafting brings depends on how much of an answer can be foreseen, so they differ in that."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

Messages = list[dict[str, str]]

_HARBOUR = (
    "The harbour office opens at {hour} in the morning. Boats that stay for more than one night sign the book and pay "
    "at the desk. Water and power are on every second pole of the east pier; the west pier has neither. The crane "
    "lifts up to {number} tonnes and is booked a day ahead. In strong wind from the north-west the outer berths are "
    "closed, and boats lying there move to the inner basin. The bakery on the quay sells bread until noon. "
)
_ORCHARD = (
    "In the second week of {month} the early apples are ripe. {name} picks the lower branches by hand and the upper "
    "ones from a ladder, never more than {number} crates a day. Fruit that has fallen goes to the press on the same "
    "evening. The juice is heated once, filled into bottles and kept in the cellar, where it stays good for a year. "
    "Late apples hang until the first frost and are stored on wooden shelves, not touching each other. "
)
_MINUTES = (
    "Minutes, {month} {number}. Present: {name}, Ines and Okan. {name} will repair the gate before the {number}th. "
    "Ines asks for {number} metres of fence and 40 posts; the price is 312.50. Okan counts the tools: three spades, "
    "two rakes, one wheelbarrow with a flat tyre. The next meeting is at {hour} o'clock in the shed. "
)
_CODE = '''def total_price(items, discount={number}):
    """Price of all items, with the discount in per cent taken off."""
    total = 0.0
    for item in items:
        if item["count"] < 0:
            raise ValueError("count is negative: " + item["name"])
        total += item["count"] * item["price"]
    return total * (100 - discount) / 100


def cheapest(items):
    best = None
    for item in items:
        if best is None or item["price"] < best["price"]:
            best = item
    return best
'''
_TEXTS = (_HARBOUR, _ORCHARD, _MINUTES)
_NAMES = ("Ada", "Bela", "Chidi", "Dorte", "Emre", "Farah", "Goran", "Hilde")
_MONTHS = ("March", "May", "July", "August", "September", "October")
_EDITS = (
    "Replace every number by the word for it",
    "Put all of it into the past tense",
    "Add a title line and change nothing else",
    "Swap the first and the last sentence",
)
_REFACTORINGS = (
    "add type annotations to both functions",
    "rename `items` to `lines` everywhere",
    "make both functions raise ValueError for an empty list",
)
_QUESTIONS = (
    "My bread is flat although the dough had risen well. What could {name} and I have done wrong?",
    "How would you spend {number} days in a small town by the sea with two children?",
    "Explain to {name} why the tide comes twice a day.",
    "I want to learn the accordion at the age of {number}. How do I begin?",
)
_SUBJECTS = ("a lighthouse keeper", "the last ferry of the year", "a clock that runs backwards", "a very patient dog")
_SHORT = (
    "Which is longer, a mile or {number} hundred metres? Answer in one word.",
    "Name one month that has 30 days.",
    "Is {number} an even number? Yes or no.",
    "Translate `good morning, {name}` into French.",
)


@dataclass(frozen=True)
class Kind:
    """One kind of request: how its messages are made, how long its answer may be, and what of it a drafter can know."""

    make: Callable[[Random], Messages]
    max_tokens: int
    about: str


def _filled(text: str, source: Random) -> str:
    return text.format(
        name=source.choice(_NAMES),
        month=source.choice(_MONTHS),
        number=source.randint(2, 28),
        hour=source.choice(("six", "seven", "eight", "nine")),
    )


def _user(content: str) -> Messages:
    return [{"role": "user", "content": content}]


def _repeat(source: Random) -> Messages:
    return _user(f"Repeat this text word for word:\n\n{_filled(source.choice(_TEXTS), source)}")


def _edit(source: Random) -> Messages:
    return _user(f"{source.choice(_EDITS)}. Write the whole text.\n\n{_filled(source.choice(_TEXTS), source)}")


def _code(source: Random) -> Messages:
    code = _CODE.replace("{number}", str(source.randint(0, 30)))
    return _user(f"In this module, {source.choice(_REFACTORINGS)}. Write the whole module.\n\n```python\n{code}```")


def _chat(source: Random) -> Messages:
    question = _filled(source.choice(_QUESTIONS), source)
    more = [{"role": "assistant", "content": "Gladly. Tell me more."}, {"role": "user", "content": question}]
    return [{"role": "system", "content": "You answer kindly and briefly."}, *_user("May I ask you something?"), *more]


def _extract(source: Random) -> Messages:
    text = _filled(_MINUTES, source)
    return _user(f'List every person and task as JSON, [{{"person": ..., "task": ...}}], and nothing else.\n\n{text}')


def _long(source: Random) -> Messages:
    return _user(f"Write a story about {source.choice(_SUBJECTS)} and {source.choice(_NAMES)}, in many chapters.")


def _short(source: Random) -> Messages:
    return _user(_filled(source.choice(_SHORT), source))


KINDS: Mapping[str, Kind] = {
    "repeat": Kind(_repeat, 256, "the answer is the prompt"),
    "edit": Kind(_edit, 256, "the prompt with changes"),
    "code": Kind(_code, 320, "a module with changes"),
    "chat": Kind(_chat, 192, "a turn of a conversation"),
    "extract": Kind(_extract, 160, "JSON from a text"),
    "long": Kind(_long, 768, "a long answer, all of it new"),
    "short": Kind(_short, 24, "a few words"),
}


def make(kind: str, source: Random) -> tuple[Messages, dict[str, Any]]:
    """Messages of a kind, and the fields that go with them."""
    found = KINDS[kind]
    return found.make(source), {"max_tokens": found.max_tokens}
