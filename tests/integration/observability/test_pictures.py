"""`make pictures`: a picture of each dashboard from what a real Prometheus answers."""

from pathlib import Path

import pytest
from PIL import Image

from bench.pictures.__main__ import draw_all
from bench.pictures.answers import dashboards
from tests.integration.observability.known import INTERVAL_SECONDS, Known

pytestmark = pytest.mark.integration

MOST_BYTES = 150_000


def test_every_dashboard_is_drawn(known: Known, tmp_path: Path) -> None:
    url = str(known.prometheus.http.base_url)
    draw_all(url, known.began, known.at, INTERVAL_SECONDS, tmp_path)
    pictures = sorted(tmp_path.glob("*.png"))
    assert [picture.stem for picture in pictures] == [path.stem for path in dashboards()] != []
    for picture in pictures:
        image = Image.open(picture)
        assert image.width > 1000 and len(image.convert("RGB").getcolors(1000) or ()) > 10, f"{picture.name} is empty"
        assert picture.stat().st_size < MOST_BYTES
        image.close()


@pytest.mark.parametrize("path", dashboards(), ids=lambda path: path.stem)
def test_the_pictures_that_are_kept_are_small(path: Path) -> None:
    picture = path.parents[3] / "docs" / "pictures" / f"{path.stem}.png"
    assert 10_000 < picture.stat().st_size < MOST_BYTES
