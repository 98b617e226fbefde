"""Which slot a conversation gets. The gateway is the only client of a server, so it knows what each slot holds.

llama-server itself takes the slot whose tokens are most like the prompt's. Of two conversations with one system prompt
the second then takes the first one's slot, which costs a hybrid model the whole prompt, as it cannot go back.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

from orchestrator.gateway.conversations import Conversation


@dataclass(eq=False)
class Slot:
    """`is_clean`: known to be empty. A slot that holds something unknown is neither clean nor has it `held`."""

    number: int
    held: Conversation | None = None
    is_clean: bool = False
    is_busy: bool = False
    used: int = 0


@dataclass(eq=False)
class Place:
    """Where a request goes. Without a slot llama-server chooses; `goes_on` says that nothing has to be undone there."""

    slot: Slot | None
    goes_on: bool = False

    @property
    def must_erase(self) -> bool:
        """Whether the slot holds what this request does not go on from."""
        return self.slot is not None and not self.goes_on and not self.slot.is_clean


def choose(slots: Sequence[Slot], conversation: Conversation) -> Slot | None:
    """Of the free slots the one that holds most of the conversation and nothing else; then the one with an earlier
    version of it; then an empty one; then the one that was used longest ago. None when no slot is free.
    """
    return max((s for s in slots if not s.is_busy), key=partial(_rank, conversation), default=None)


def _rank(conversation: Conversation, slot: Slot) -> tuple[int, int, int]:
    if slot.held is None:
        return 1, 0, -slot.used
    if conversation.extends(slot.held):
        return 3, len(slot.held), slot.used
    if conversation.edits(slot.held):
        return 2, conversation.shared(slot.held), slot.used
    return 0, 0, -slot.used


@dataclass(eq=False)
class _Waiter:
    future: "asyncio.Future[Place]"
    conversation: Conversation
    wanted: int | None


class Slots:
    """The slots of one server. Requests that fit no slot wait here, in order, not on the server."""

    def __init__(self, count: int) -> None:
        self.slots = [Slot(number) for number in range(count)]
        self._waiting: deque[_Waiter] = deque()
        self._unplaced = 0
        self._clock = 0

    async def take(self, conversation: Conversation | None, wanted: int | None = None) -> Place:
        """A place for a request; `wanted` is the slot its client asks for. Cancel-safe; `give_back` ends it.

        A request that is no one conversation runs where llama-server puts it, and so does every other while it runs:
        which slots are free is not known then.
        """
        if conversation is None or self._unplaced or not self.slots:
            return self._unknown()
        if not self._waiting and (place := self._placed(conversation, wanted)) is not None:
            return place
        waiter = _Waiter(asyncio.get_running_loop().create_future(), conversation, wanted)
        self._waiting.append(waiter)
        self._grant()
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled():
                self.give_back(waiter.future.result(), None)
            raise
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def erased(self, place: Place) -> None:
        """The slot of this place is empty now."""
        if place.slot is not None:
            place.slot.held, place.slot.is_clean = None, True

    def give_back(self, place: Place, holds: Conversation | None) -> None:
        """The request of this place has ended; `holds` is what it left in its slot, None if it did nothing there."""
        if place.slot is None:
            self._unplaced -= 1
            self._forget()
        else:
            place.slot.is_busy = False
            if holds is not None:
                place.slot.held, place.slot.is_clean = holds.kept(), False
        self._grant()

    def _grant(self) -> None:
        for waiter in list(self._waiting):
            if waiter.future.done():
                continue
            place = self._unknown() if self._unplaced else self._placed(waiter.conversation, waiter.wanted)
            if place is not None:
                self._waiting.remove(waiter)
                waiter.future.set_result(place)

    def _placed(self, conversation: Conversation, wanted: int | None) -> Place | None:
        # llama-server takes a number beyond its slots modulo their count.
        slots = self.slots if wanted is None else [self.slots[wanted % len(self.slots)]]
        slot = choose(slots, conversation)
        if slot is None:
            return None
        self._clock += 1
        slot.is_busy, slot.used = True, self._clock
        return Place(slot, slot.held is not None and conversation.extends(slot.held))

    def _unknown(self) -> Place:
        self._unplaced += 1
        self._forget()
        return Place(None)

    def _forget(self) -> None:
        for slot in self.slots:
            if not slot.is_busy:
                slot.held, slot.is_clean = None, False


class Affinity:
    """The slots of every server that has affinity; what is known of one ends with it."""

    def __init__(self) -> None:
        self._slots: WeakKeyDictionary[object, Slots] = WeakKeyDictionary()

    def of(self, instance: object, count: int) -> Slots:
        """The slots of a server that has `count` of them."""
        found = self._slots.get(instance)
        if found is None:
            found = self._slots[instance] = Slots(count)
        return found
