"""An answer from its wait for a server to its last byte."""

import asyncio
import time
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import aiohttp

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gateway.affinity import Affinity, Place, Slots
from orchestrator.gateway.asking import Ask, aside
from orchestrator.gateway.body import additions, wants_logprobs, with_fields
from orchestrator.gateway.conversations import Conversation, conversation_of
from orchestrator.gateway.racing import unless
from orchestrator.gateway.reply import Reply
from orchestrator.gateway.routes import Work
from orchestrator.gateway.upstream import NotReached, Upstream
from orchestrator.servers import Lease, Manager

if TYPE_CHECKING:
    from orchestrator.telemetry.spans import Part

_END_NOTICED_SECONDS = 2.0
_POLL_SECONDS = 0.01


class Answering:
    """Finds a server for each request and passes its answer on."""

    def __init__(self, manager: Manager, upstream_timeout_seconds: float) -> None:
        self._manager = manager
        self._upstream = Upstream(upstream_timeout_seconds)
        self._affinity = Affinity()

    async def close(self) -> None:
        """Close its connections."""
        await self._upstream.close()

    async def answer(self, ask: Ask, reply: Reply) -> str:
        """The outcome for the counter; SlipstreamError when there is no answer, or no whole one."""
        try:
            return await self._through_lease(ask, reply)
        except NotReached:
            pass
        # The server died before it had heard of the request; another one gets it.
        try:
            return await self._through_lease(ask, reply)
        except NotReached as e:
            message = f"the server of {ask.spec.name!r} takes no connection"
            raise SlipstreamError(Code.UPSTREAM_FAILED, message, retry_after_seconds=1) from e

    async def _through_lease(self, ask: Ask, reply: Reply) -> str:
        lease = await self._lease(ask, reply)
        try:
            outcome = await unless(self._through_slot(lease, ask, reply), lease.cut.wait())
            if outcome is None:
                raise lease.cut_error()
            return outcome
        except NotReached:
            lease.release()
            await _end_noticed(lease)
            raise
        finally:
            lease.release()

    async def _lease(self, ask: Ask, reply: Reply) -> Lease:
        began = time.monotonic()
        with reply.account.part("wait") as part:
            try:
                leasing = self._manager.lease(ask.name, exemplar=reply.account.exemplar)
                lease = await reply.alive_while(leasing, partial(self._why, ask), Lease.release)
            finally:
                reply.account.waited(time.monotonic() - began)
            if part is not None:
                _note_load(part, began, lease)
            return lease

    async def _through_slot(self, lease: Lease, ask: Ask, reply: Reply) -> str:
        launch = lease.instance.goal.launch
        wanted = _wanted_slot(ask)
        if not launch.affinity or ask.route.work is Work.COUNT:
            reply.account.slot = _slot_of(wanted, lease)
            return await self._exchange(lease, ask, await _body(lease, ask, {}), reply)
        slots = self._affinity.of(lease.instance, lease.instance.slots)
        conversation = await _conversation(ask)
        with reply.account.part("slot"):
            place = await reply.alive_while(
                slots.take(conversation, wanted),
                partial(_why_slot, ask),
                partial(slots.give_back, holds=None),
            )
        reply.account.slot = _slot_of(wanted, lease) if place.slot is None else place.slot.number
        holds: Conversation | None = None
        try:
            body = await _body(lease, ask, _slot_field(place) if wanted is None else {})
            if launch.erases and place.must_erase:
                await self._erase(lease, slots, place)
            # Also of an answer that breaks off: the server has read some of the conversation, and nothing else.
            holds = conversation
            outcome = await self._exchange(lease, ask, body, reply)
            if outcome == "client_error":
                holds = None
            return outcome
        finally:
            slots.give_back(place, holds)

    async def _erase(self, lease: Lease, slots: Slots, place: Place) -> None:
        if place.slot is not None and await self._upstream.erase(lease, place.slot.number):
            slots.erased(place)

    async def _exchange(self, lease: Lease, ask: Ask, body: bytes, reply: Reply) -> str:
        account = reply.account
        with account.part(f"{ask.route.operation} {ask.spec.name}", is_client=True) as part:
            headers: dict[str, str] = {}
            if part is not None:
                part.note(_about(lease, ask))
                headers = part.headers()
            response = await reply.alive_while(
                self._upstream.send(lease, ask, body, headers),
                lambda: f"{ask.name!r} reads the prompt",
                aiohttp.ClientResponse.close,
                may_begin=False,
            )
            try:
                outcome = await self._upstream.relay(response, lease, reply)
                account.look(ask, outcome)
                return outcome
            finally:
                # Closes the connection unless the answer was read to its end.
                response.close()
                if part is not None:
                    part.note({"http.response.status_code": response.status} | account.usage())
                    if response.status >= HTTPStatus.BAD_REQUEST:
                        part.fail(str(response.status))

    def _why(self, ask: Ask) -> str:
        return f"waiting for {ask.name!r}: {self._manager.waits_for(ask.name) or 'its server'}"


def _note_load(part: "Part", began: float, lease: Lease) -> None:
    """The load of its server, as far as the request waited for it."""
    instance = lease.instance
    if instance.start_seconds is not None and instance.since_ready > began:
        start = max(began, instance.since_ready - instance.start_seconds)
        part.past("load", start, instance.since_ready, {"slipstream.host": instance.goal.host.name})


def _about(lease: Lease, ask: Ask) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": ask.route.operation,
        "gen_ai.provider.name": "llama.cpp",
        "gen_ai.request.model": ask.spec.name,
        "http.request.method": "POST",
        "url.full": lease.url + ask.route.upstream,
    }


async def _body(lease: Lease, ask: Ask, added: dict[str, Any]) -> bytes:
    if ask.request is None:
        return ask.raw
    if ask.route.work is Work.GENERATE:
        launch = lease.instance.goal.launch
        added = additions(ask.request, ask.spec.defaults) | added
        if wants_logprobs(ask.request | added) and launch.spec_type != "none" and not launch.is_patched:
            raise SlipstreamError(
                Code.INVALID_REQUEST,
                f"{ask.spec.name!r} drafts, and this llama-server gives no real logprobs while it does",
                hint="build the patched server with `make server`, or ask without logprobs",
            )
    return await aside(ask.raw, with_fields, ask.raw, ask.request, added)


async def _end_noticed(lease: Lease) -> None:
    """A server that is dead is ready no more as soon as its owner has seen it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_NOTICED_SECONDS):
            while lease.instance.is_ready:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_SECONDS)


async def _conversation(ask: Ask) -> Conversation | None:
    if ask.request is None or not ask.route.takes_id_slot:
        return None
    try:
        return await aside(ask.raw, conversation_of, ask.request)
    except RecursionError:
        return None


def _wanted_slot(ask: Ask) -> int | None:
    slot = None if ask.request is None else ask.request.get("id_slot")
    return slot if isinstance(slot, int) and not isinstance(slot, bool) and slot >= 0 else None


def _slot_of(wanted: int | None, lease: Lease) -> int | None:
    """Where a request with an `id_slot` of its own runs; the server takes a number beyond its slots modulo these."""
    return None if wanted is None or not lease.instance.slots else wanted % lease.instance.slots


def _slot_field(place: Place) -> dict[str, Any]:
    return {} if place.slot is None else {"id_slot": place.slot.number}


def _why_slot(ask: Ask) -> str:
    return f"waiting for {ask.name!r}: a free slot"
