"""The `slipstream` command: talks to an orchestrator through `client.py`."""

from orchestrator.cli.main import main

__all__ = ["main"]
