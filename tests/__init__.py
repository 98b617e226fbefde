"""Tests of Slipstream; a package so that the toy makers run as ``python -m tests.toys``."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
FAKE_SERVER = REPOSITORY / "tests" / "support" / "fake_server.py"
