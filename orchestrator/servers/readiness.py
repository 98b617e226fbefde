"""When a server is ready: it has loaded, and one drafted generation has worked on every slot.

`/health` alone says less than users need: MTP servers have answered it and then drafted nothing on slots above 0
(buun-llama-cpp#110), or died in their first generation.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx

from orchestrator.servers.drivers.base import Child
from orchestrator.servers.failures import on_processor
from orchestrator.servers.launch import Launch
from orchestrator.servers.spread import whole_number

# Repetitive, so that n-gram drafters find something too. More than one token is generated: with a single one no
# draft round runs, and some GPUs fault in the round that comes after (Ornith README).
_WORK = ("1 2 3 4 5 6 7 8 1 2 3 4 5 6 7 8 1 2 3 4 5 6 7 8 1 2 3 4", 16)
# Without drafts it is enough that tokens come at all; a user waits for every one of these.
_PLAIN_WORK = ("1 2", 2)
_NO_GENERATION = frozenset({"--embedding", "--rerank"})


class NotReady(Exception):
    """The server does not do its work; `reason` is a stable word of `Failure`.

    `may_be_dead`: a broken connection is how the end of a process shows before it is known.
    """

    def __init__(self, reason: str, message: str, *, may_be_dead: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.may_be_dead = may_be_dead


async def warm_up(
    client: httpx.AsyncClient,
    child: Child,
    launch: Launch,
    timeout_seconds: float,
    devices: Sequence[str] = (),
    said: Sequence[str] = (),
    *,
    is_known: bool = False,
) -> int:
    """One generation on each slot at once; the number of slots. Raises NotReady.

    `devices` are the accelerators that the server was given, `said` is its log so far. `is_known`: the very launch has
    been ready before, so that only what drafts has to show that it still does.
    """
    _check_accelerators(launch, devices, said)
    try:
        async with asyncio.timeout(timeout_seconds):
            await _check_key(client, child)
            props = (await client.get(f"{child.url}/props", headers=own_headers(child))).raise_for_status().json()
            _check_alias(props, launch)
            slots = range(int(props["total_slots"]))
            if _NO_GENERATION & set(launch.argv) or (is_known and launch.spec_type == "none"):
                return len(slots)
            work = _WORK if launch.spec_type != "none" else _PLAIN_WORK
            drafted = await asyncio.gather(*(_generate(client, child, i, work, timeout_seconds) for i in slots))
    except TimeoutError:
        raise NotReady("not_ready", f"the first generation did not end within {timeout_seconds:g} s") from None
    except httpx.TransportError as e:
        raise NotReady("not_ready", f"the first generation failed: {e!r}", may_be_dead=True) from e
    except (httpx.HTTPError, KeyError, ValueError, TypeError) as e:
        raise NotReady("not_ready", f"the first generation failed: {e!r}") from e
    silent = [i for i, n in zip(slots, drafted, strict=True) if n == 0]
    if silent and launch.must_draft:
        which = f"slot {silent[0]}" if len(silent) == 1 else f"slots {', '.join(map(str, silent))}"
        raise NotReady("no_draft", f"--spec-type {launch.spec_type} drafted nothing on {which} in {_WORK[1]} tokens")
    return len(slots)


def _check_accelerators(launch: Launch, devices: Sequence[str], said: Sequence[str]) -> None:
    """A server that was to use an accelerator must not run on the processor unnoticed (llama.cpp#22561)."""
    if not devices or whole_number(launch.flags.get("gpu-layers")) == 0:
        return
    if (line := on_processor(said)) is not None:
        raise NotReady("no_accelerator", f"it was to run on {', '.join(devices)}, and found no accelerator: {line}")


async def _check_key(client: httpx.AsyncClient, child: Child) -> None:
    """Nobody but the server that was started knows its key: one that takes any key is another."""
    response = await client.get(f"{child.url}/props", headers={"authorization": "Bearer of no key"})
    if response.status_code != httpx.codes.UNAUTHORIZED:
        raise NotReady("port", f"another server answers on its port: it takes any key ({response.status_code})")


def _check_alias(props: Any, launch: Launch) -> None:
    """Whoever answers on the port must be the server that was started: it says the alias it was given."""
    alias = props["model_alias"]
    if alias != launch.spec.name:
        raise NotReady("port", f"another server answers on its port: one of {str(alias)[:100]!r}")


def own_headers(child: Child) -> dict[str, str]:
    """Headers of our own calls to a server."""
    # No connection is kept: an open one holds up llama-server's end by a tenth of a second.
    return {"authorization": child.authorization, "connection": "close"}


async def _generate(
    client: httpx.AsyncClient, child: Child, slot: int, work: tuple[str, int], timeout_seconds: float
) -> int:
    """Tokens drafted while one slot generates; `work` is a prompt and a number of tokens."""
    prompt, tokens = work
    body: dict[str, Any] = {
        "prompt": prompt,
        "id_slot": slot,
        "n_predict": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
    }
    response = await client.post(
        f"{child.url}/completion", json=body, headers=own_headers(child), timeout=timeout_seconds
    )
    if response.status_code != 200:
        raise NotReady(
            "not_ready", f"the first generation on slot {slot} got {response.status_code}: {response.text[:300]}"
        )
    timings = response.json()["timings"]
    if timings["predicted_n"] < 2:
        raise NotReady("not_ready", f"the first generation on slot {slot} made {timings['predicted_n']} tokens")
    return int(timings.get("draft_n", 0))
