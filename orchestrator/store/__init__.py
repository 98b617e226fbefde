"""Files on disk: where each source's file lies, and how it gets there."""

from orchestrator.store.sources import ProgressSink, bring, is_present, locate

__all__ = ["ProgressSink", "bring", "is_present", "locate"]
