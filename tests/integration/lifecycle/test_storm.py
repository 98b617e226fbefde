"""A short storm over five real toys with room for two; `make soak` blows the long one."""

from pathlib import Path

import pytest

from tests.support import ToyBox
from tests.support.storm import blow
from tests.support.storm_house import furnish

pytestmark = pytest.mark.integration

REQUESTS = 200
SECONDS = 15.0


def test_a_storm_loses_nothing(patched_server: Path, toys: ToyBox, tmp_path: Path) -> None:
    report = blow(furnish(tmp_path / "home", patched_server, toys), requests=REQUESTS, seconds=SECONDS, seed=1)
    assert report.wrong == [], "\n".join(report.lines)
    assert report.asked >= REQUESTS and report.answered > 0
