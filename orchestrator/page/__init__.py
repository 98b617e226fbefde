"""The page at `/`."""

from orchestrator.page.application import Page

__all__ = ["Page"]
