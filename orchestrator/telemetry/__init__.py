"""Prometheus: collectors over snapshots, one a topic. They ask nobody and block nobody."""

from orchestrator.telemetry.gaps import TOKEN_BUCKETS, Gaps
from orchestrator.telemetry.look import Look
from orchestrator.telemetry.page import render
from orchestrator.telemetry.requests import Measured, Requests

__all__ = ["TOKEN_BUCKETS", "Gaps", "Look", "Measured", "Requests", "render"]
