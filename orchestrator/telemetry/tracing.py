"""Whether requests are traced: OpenTelemetry's own environment variables say so.

Off, which is the usual case, nothing of OpenTelemetry is imported and a request has no trace.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from orchestrator.errors import Code, SlipstreamError

if TYPE_CHECKING:
    from orchestrator.telemetry.spans import Tracing

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OURS = "http/protobuf"
_EXPORTERS = frozenset({"otlp", "console"})


def exporters(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the exporters that are asked for; SlipstreamError misconfigured for one there is not.

    `OTEL_TRACES_EXPORTER` names them. Without it an endpoint switches OTLP on: OpenTelemetry's own default, to send to
    localhost unasked, would have every start complain.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ()
    asked = [name.strip() for name in environment.get("OTEL_TRACES_EXPORTER", "").split(",") if name.strip()]
    if not asked:
        asked = ["otlp"] if any(environment.get(name) for name in _ENDPOINTS) else []
    if asked == ["none"]:
        return ()
    if unknown := sorted(set(asked) - _EXPORTERS):
        message = f"OTEL_TRACES_EXPORTER={','.join(unknown)} is none of otlp, console, none"
        raise SlipstreamError(Code.MISCONFIGURED, message)
    variable = next((name for name in _PROTOCOLS if environment.get(name)), None)
    if "otlp" in asked and variable is not None and environment[variable] != _OURS:
        message = f"{variable}={environment[variable]} is not spoken here; expected {_OURS}"
        raise SlipstreamError(Code.MISCONFIGURED, message, hint="an OTLP receiver takes it at port 4318")
    return tuple(dict.fromkeys(asked))


def tracing(environment: Mapping[str, str], version: str) -> "Tracing | None":
    """What makes traces; None when they are off."""
    asked = exporters(environment)
    if not asked:
        return None
    _check_headers(environment)
    try:
        # Some settings are read when it is imported.
        from orchestrator.telemetry.spans import Tracing

        return Tracing(asked, version)
    except ValueError as e:
        raise SlipstreamError(Code.MISCONFIGURED, f"OpenTelemetry's settings cannot be used: {e}") from e


def _check_headers(environment: Mapping[str, str]) -> None:
    """Refuse what the exporter would leave out: it says so with the entry, which may be a key."""
    from opentelemetry.util.re import parse_env_headers

    logging.getLogger(parse_env_headers.__module__).setLevel(logging.ERROR)
    for variable in _HEADERS:
        entries = [entry for entry in environment.get(variable, "").split(",") if entry.strip()]
        wrong = [number for number, entry in enumerate(entries, 1) if not parse_env_headers(entry, liberal=True)]
        if wrong:
            message = f"entry {wrong[0]} of {variable} is no header; expected NAME=VALUE,NAME=VALUE, percent-encoded"
            raise SlipstreamError(Code.MISCONFIGURED, message)
