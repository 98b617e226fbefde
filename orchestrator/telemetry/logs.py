"""Lines of the log: JSON where a program reads them, text at a terminal. Whatever a line is given besides its text
(`extra`) stands in it as fields.
"""

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any, Literal, TextIO

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

from orchestrator.telemetry.line_writer import LineWriter

LogFormat = Literal["auto", "json", "text"]
# uvicorn's `color_message` is its own text once more, with colours.
_NO_FIELDS = frozenset({*RESERVED_ATTRS, "message", "asctime", "color_message"})
_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)


class JsonLines(JsonFormatter):
    """One object a line: `time` (UTC), `level`, `logger`, `message`, then fields; `exc_info` is a traceback.

    ```
    {"time": "2026-08-01T12:00:00.123Z", "level": "info", "logger": "slipstream", "message": "…"}
    ```
    """

    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        """What the line says. The library's own way looks at each attribute of the record twice."""
        second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        log_data["time"] = f"{second}.{int(record.msecs):03d}Z"
        log_data["level"] = record.levelname.lower()
        log_data["logger"] = record.name
        log_data["message"] = record.message
        log_data.update((name, value) for name, value in vars(record).items() if name not in _NO_FIELDS)
        log_data.update(message_dict)

    def jsonify_log_record(self, log_data: dict[str, Any]) -> str:
        """As the library does it, without making an encoder for each line."""
        return _ENCODER.encode(log_data)


class TextLines(logging.Formatter):
    """Time, level, text, then fields as `name=value`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without a traceback."""
        fields = [f" {name}={value}" for name, value in vars(record).items() if name not in _NO_FIELDS]
        return super().formatMessage(record) + "".join(fields)


def start_logging(log_format: LogFormat, stream: TextIO = sys.stderr) -> None:
    """Have every logger of this process write to `stream`."""
    is_text = log_format == "text" or (log_format == "auto" and stream.isatty())
    handler = LineWriter(stream.fileno())
    handler.setFormatter(TextLines() if is_text else JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # They tell of each request of ours to a server.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    # Nobody shows them, and finding them out for each line costs more than writing it.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def tell(logger: logging.Logger, level: int, message: str, fields: Mapping[str, object]) -> None:
    """`logger.log` without looking for the line of code that called it, which for each request costs too much."""
    if logger.isEnabledFor(level):
        logger.handle(logger.makeRecord(logger.name, level, "", 0, message, (), None, extra=fields))
