"""`slipstream images`: whether an image is what it says. Works with `docker` and `cosign`, without an orchestrator."""

from orchestrator.cli.images.command import images

__all__ = ["images"]
