"""When a server is ready: it has loaded, and one drafted generation has worked on every slot.

`/health` alone says less than users need: MTP servers have answered it and then drafted nothing on slots above 0
(buun-llama-cpp#110), or died in their first generation.
"""

import asyncio
from typing import Any

import httpx
from prometheus_client import Metric

from orchestrator.errors import SlipstreamError
from orchestrator.servers.launch import Launch
from orchestrator.servers.process import Child
from orchestrator.telemetry import parse_child_metrics

# Repetitive, so that n-gram drafters find something too. More than one token is generated: with a single one no
# draft round runs, and some GPUs fault in the round that comes after (Ornith README).
_PROMPT = "1 2 3 4 5 6 7 8 1 2 3 4 5 6 7 8 1 2 3 4 5 6 7 8 1 2 3 4"
_TOKENS = 16
_NO_GENERATION = frozenset({"--embedding", "--rerank"})


class NotReady(Exception):
    """The server does not do its work; `reason` is a stable word of `Failure`.

    `may_be_dead`: a broken connection is how the end of a process shows before it is known.
    """

    def __init__(self, reason: str, message: str, *, may_be_dead: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.may_be_dead = may_be_dead


async def warm_up(client: httpx.AsyncClient, child: Child, launch: Launch, timeout_seconds: float) -> None:
    """One generation on each slot at once; raises NotReady."""
    if _NO_GENERATION & set(launch.argv):
        return
    try:
        async with asyncio.timeout(timeout_seconds):
            props = (await client.get(f"{child.url}/props", headers=_headers(child))).raise_for_status().json()
            slots = range(int(props["total_slots"]))
            drafted = await asyncio.gather(*(_generate(client, child, i, timeout_seconds) for i in slots))
    except TimeoutError:
        raise NotReady("not_ready", f"the first generation did not end within {timeout_seconds:.0f} s") from None
    except httpx.TransportError as e:
        raise NotReady("not_ready", f"the first generation failed: {e!r}", may_be_dead=True) from e
    except (httpx.HTTPError, KeyError, ValueError, TypeError) as e:
        raise NotReady("not_ready", f"the first generation failed: {e!r}") from e
    silent = [i for i, n in zip(slots, drafted, strict=True) if n == 0]
    if silent and launch.must_draft:
        which = f"slot {silent[0]}" if len(silent) == 1 else f"slots {', '.join(map(str, silent))}"
        raise NotReady("no_draft", f"--spec-type {launch.spec_type} drafted nothing on {which} in {_TOKENS} tokens")


async def read_metrics(client: httpx.AsyncClient, child: Child, timeout_seconds: float) -> tuple[Metric, ...]:
    """The server's own exposition; empty when it gives none in time, which the page then shows."""
    try:
        async with asyncio.timeout(timeout_seconds):
            response = await client.get(f"{child.url}/metrics", headers=_headers(child))
        return parse_child_metrics(response.raise_for_status().text)
    except (TimeoutError, httpx.HTTPError, SlipstreamError):
        return ()


def _headers(child: Child) -> dict[str, str]:
    return {"authorization": child.authorization}


async def _generate(client: httpx.AsyncClient, child: Child, slot: int, timeout_seconds: float) -> int:
    """Tokens drafted while one slot generates."""
    body: dict[str, Any] = {
        "prompt": _PROMPT,
        "id_slot": slot,
        "n_predict": _TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
    }
    response = await client.post(f"{child.url}/completion", json=body, headers=_headers(child), timeout=timeout_seconds)
    if response.status_code != 200:
        raise NotReady(
            "not_ready", f"the first generation on slot {slot} got {response.status_code}: {response.text[:300]}"
        )
    timings = response.json()["timings"]
    if timings["predicted_n"] < 2:
        raise NotReady("not_ready", f"the first generation on slot {slot} made {timings['predicted_n']} tokens")
    return int(timings.get("draft_n", 0))
