"""When requests are traced: OpenTelemetry's own variables say so."""

import subprocess
import sys

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.telemetry.tracing import exporters, tracing
from tests import REPOSITORY


@pytest.mark.parametrize(
    "environment, expected",
    [
        ({}, ()),
        ({"OTEL_SERVICE_NAME": "x", "OTEL_TRACES_SAMPLER": "always_on"}, ()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, ()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, ("otlp",)),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, ("otlp",)),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, ("otlp",)),
        ({"OTEL_TRACES_EXPORTER": " console, otlp,console"}, ("console", "otlp")),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, ()),
        ({"OTEL_SDK_DISABLED": "True", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, ()),
        ({"OTEL_SDK_DISABLED": "false", "OTEL_TRACES_EXPORTER": "otlp"}, ("otlp",)),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, ("otlp",)),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ("console",)),
    ],
)
def test_what_switches_them_on(environment: dict[str, str], expected: tuple[str, ...]) -> None:
    assert exporters(environment) == expected


@pytest.mark.parametrize(
    "environment, word",
    [
        ({"OTEL_TRACES_EXPORTER": "otlp,jaeger"}, "OTEL_TRACES_EXPORTER=jaeger is none of"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTLP_PROTOCOL=grpc is not spoken"),
    ],
)
def test_what_cannot_be_done_is_told(environment: dict[str, str], word: str) -> None:
    with pytest.raises(SlipstreamError, match=word) as caught:
        tracing(environment, "1")
    assert caught.value.code is Code.MISCONFIGURED


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"])
@pytest.mark.parametrize("wrong", ["authorization Bearer sekrit", 'authorization="sekrit"'])
def test_a_key_that_is_no_header_is_told_without_it(
    variable: str, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    environment = {"OTEL_TRACES_EXPORTER": "otlp", variable: f"a=b%20c,{wrong}"}
    with pytest.raises(SlipstreamError, match=f"entry 2 of {variable} is no header") as caught:
        tracing(environment, "1")
    assert "sekrit" not in caplog.text + caught.value.message


def test_off_means_that_neither_sdk_nor_exporter_is_imported() -> None:
    # FastAPI imports the API's own names where they are installed, and does nothing without a provider.
    code = (
        "import sys, orchestrator.app\nfrom orchestrator.telemetry.tracing import tracing\n"
        "assert tracing({}, '1') is None\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
