"""`/v1/models`: the catalogue and what runs of it."""

from typing import Any

from orchestrator.gateway.routes import listed_model
from orchestrator.schemas import ServerState
from orchestrator.servers import Manager

# The words of llama-server's router mode.
_ROUTER_WORDS = {
    ServerState.READY: "loaded",
    ServerState.DRAINING: "loaded",
    ServerState.LOADING: "loading",
    ServerState.WARMING: "loading",
    ServerState.FAILED: "failed",
}


async def models_answer(manager: Manager, path: str) -> dict[str, Any]:
    """The list, or the one entry that the path names; SlipstreamError model_not_found."""
    await manager.refresh()
    catalog = manager.catalog
    if name := listed_model(path):
        return _entry(manager, name, catalog.get(name).name)
    entries = [_entry(manager, name, model) for name, model in sorted(catalog.names.items())]
    return {"object": "list", "data": entries}


def _entry(manager: Manager, name: str, model: str) -> dict[str, Any]:
    state = manager.state_of(model)
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "slipstream",
        "root": model,
        "state": str(state),
        "status": {"value": _ROUTER_WORDS.get(state, "unloaded")},
    }
