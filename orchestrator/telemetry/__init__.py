"""Prometheus: collectors over snapshots, one a topic. They ask nobody and block nobody."""

from orchestrator.telemetry.page import CONTENT_TYPE, render
from orchestrator.telemetry.requests import Requests
from orchestrator.telemetry.snapshot import ServerSnapshot, parse_child_metrics

__all__ = ["CONTENT_TYPE", "Requests", "ServerSnapshot", "parse_child_metrics", "render"]
