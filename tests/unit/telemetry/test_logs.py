"""Lines of the log, and a writer that nobody can hold up."""

import json
import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orchestrator.telemetry import line_writer
from orchestrator.telemetry.line_writer import LineWriter
from orchestrator.telemetry.logs import JsonLines, TextLines, start_logging, tell


def made(formatter: logging.Formatter, message: str, *arguments: Any, **extra: Any) -> str:
    record = logging.getLogger("room.part").makeRecord(
        "room.part", logging.INFO, "", 0, message, arguments, None, extra=extra
    )
    record.created, record.msecs = 1790000000.25, 250.0
    return formatter.format(record)


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    made = logging.Logger("slipstream", logging.INFO)
    yield made
    for handler in made.handlers:
        handler.close()


class TestJson:
    def test_a_line_is_an_object_with_its_fields(self) -> None:
        line = made(JsonLines(), "é %s\n%d", "x", 7, model="toy", seconds=0.5, color_message="no")
        known = {"time": "2026-09-21T14:13:20.250Z", "level": "info", "logger": "room.part", "message": "é x\n7"}
        assert json.loads(line) == known | {"model": "toy", "seconds": 0.5}
        assert "\n" not in line and "é" in line

    def test_an_error_has_its_traceback_in_one_line(self) -> None:
        try:
            raise RuntimeError("boom")
        except RuntimeError as e:
            record = logging.LogRecord("x", logging.ERROR, "", 0, "it failed", None, (type(e), e, e.__traceback__))
        line = JsonLines().format(record)
        found = json.loads(line)
        assert "RuntimeError: boom" in found["exc_info"] and found["level"] == "error"
        assert "\n" not in line


def test_a_line_of_text_has_its_fields_behind_it() -> None:
    line = made(TextLines(), "POST %s", "/x", model="toy", slot=0, color_message="no")
    assert line.endswith(",250 INFO    POST /x model=toy slot=0")


class TestChoice:
    @pytest.fixture(autouse=True)
    def root(self) -> Iterator[None]:
        root = logging.getLogger()
        kept, level = root.handlers[:], root.level
        root.handlers.clear()
        yield
        root.handlers[:] = kept
        root.setLevel(level)

    @pytest.mark.parametrize(
        "log_format, at_terminal, is_json",
        [
            ("auto", False, True),
            ("auto", True, False),
            ("json", True, True),
            ("text", False, False),
        ],
    )
    def test_json_unless_somebody_looks(self, log_format: Any, at_terminal: bool, is_json: bool) -> None:
        master, slave = os.openpty() if at_terminal else os.pipe()
        with os.fdopen(master, "rb", buffering=0) as reading, os.fdopen(slave, "w") as writing:
            start_logging(log_format, writing)
            logging.getLogger("x").info("hello", extra={"a": 1})
            line = reading.read(1000).decode()
        assert ("hello a=1" in line) != is_json
        assert (line.startswith("{") and json.loads(line)["a"] == 1) == is_json


class TestWriter:
    def test_lines_come_in_order_and_whole(self, logger: logging.Logger, tmp_path: Path) -> None:
        with (tmp_path / "log").open("w") as out:
            logger.addHandler(LineWriter(out.fileno()))
            for number in range(500):
                logger.info("line %d", number)
            logger.handlers[0].flush()
        assert (tmp_path / "log").read_text().splitlines() == [f"line {n}" for n in range(500)]

    def test_text_is_made_at_once(self, logger: logging.Logger, tmp_path: Path) -> None:
        told = ["before"]
        with (tmp_path / "log").open("w") as out:
            logger.addHandler(LineWriter(out.fileno()))
            logger.info("%s", told)
            told[0] = "after"
            logger.handlers[0].flush()
        assert (tmp_path / "log").read_text() == "['before']\n"

    def test_a_log_that_nobody_reads_holds_nobody_up(
        self, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(line_writer, "_MOST_WAITING", 200)
        monkeypatch.setattr(line_writer, "_FLUSH_SECONDS", 0.05)
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb") as lines, os.fdopen(writing, "w") as out:
            writer = LineWriter(out.fileno())
            logger.addHandler(writer)
            for number in range(1000):
                logger.info("%05d %s", number, "x" * 994)
            writer.flush()
            assert 0 < len(writer._waiting) <= 200
            found = []
            while writer._waiting:
                found.append(lines.readline())
            logger.info("the end")
            while (line := lines.readline()) != b"the end\n":
                found.append(line)
        numbers = [int(line[:5]) for line in found if line[:5].isdigit() and b"lines of the log" not in line]
        missing = [int(line.split()[0]) for line in found if b"lines of the log are missing here" in line]
        assert numbers == sorted(set(numbers)) and len(numbers) < 1000
        assert len(numbers) + sum(missing) == 1000

    def test_a_descriptor_that_does_not_wait_loses_nothing(self, logger: logging.Logger) -> None:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        out = os.fdopen(writing, "w")
        with os.fdopen(reading, "rb") as lines, ThreadPoolExecutor(1) as reader:
            logger.addHandler(LineWriter(out.fileno()))
            for number in range(200):
                logger.info("%05d %s", number, "x" * 994)
            found = reader.submit(lines.readlines)
            logger.handlers[0].flush()
            out.close()
        assert [int(line[:5]) for line in found.result()] == list(range(200))

    def test_a_reader_that_has_gone_is_no_error(self, logger: logging.Logger) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "w") as out:
            logger.addHandler(LineWriter(out.fileno()))
            logger.info("x")
            logger.handlers[0].flush()

    def test_a_line_that_cannot_be_made_costs_no_other(
        self, logger: logging.Logger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with (tmp_path / "log").open("w") as out:
            writer = LineWriter(out.fileno())
            writer.setFormatter(JsonLines())
            logger.addHandler(writer)
            loop: list[Any] = []
            loop.append(loop)
            logger.info("bad", extra={"loop": loop})
            logger.info("%d", "no number")
            tell(logger, logging.INFO, "good", {"a": 1})
            writer.flush()
        assert [json.loads(line)["message"] for line in (tmp_path / "log").read_text().splitlines()] == ["good"]
        said = capsys.readouterr().err
        assert "Circular reference" in said and "a real number is required" in said
