"""Grafts of the store: made once, and never kept of files that changed while they were read."""

import os
import shutil
from pathlib import Path

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.graft import graft
from orchestrator.schemas import GraftPlan, PathSource
from orchestrator.store import pull
from orchestrator.store.layout import Layout, Place
from tests.support import ToyBox
from tests.support.stored import Told
from tests.toys import split_mtp


@pytest.fixture
def layout(tmp_path: Path, toys: ToyBox) -> Layout:
    made = split_mtp(toys.mtp().path, tmp_path)
    shutil.copy(made.trunk, tmp_path / "base.gguf")
    shutil.copy(made.donor, tmp_path / "head.gguf")
    return Layout(tmp_path, tmp_path / "cache")


def parts(layout: Layout) -> tuple[Place, Place]:
    base, donor = (layout.place(PathSource(path=f"{name}.gguf")) for name in ("base", "head"))
    assert base is not None and donor is not None
    return base, donor


def make(layout: Layout, told: Told) -> Path:
    return pull.make_graft(layout, *parts(layout), told)  # type: ignore[arg-type]


def test_a_graft_is_made_once(layout: Layout, told: Told) -> None:
    path = make(layout, told)
    made = path.stat().st_mtime_ns
    assert make(layout, told) == path and path.stat().st_mtime_ns == made
    assert os.listdir(layout.root / "partial") == []


def test_a_base_that_changes_meanwhile_gives_no_graft(
    layout: Layout, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grafted(base: Path, donor: Path, out: Path, **options: object) -> GraftPlan:
        plan = graft(base, donor, out, **options)  # type: ignore[arg-type]
        with base.open("ab") as file:
            file.write(b"more")
        return plan

    monkeypatch.setattr(pull, "graft", grafted)
    with pytest.raises(SlipstreamError, match="changed while it was grafted") as caught:
        make(layout, told)
    assert caught.value.code is Code.CONFLICT
    assert list((layout.root / "grafts").glob("*/graft.json")) == []


def test_a_part_that_has_gone_is_named(layout: Layout, told: Told) -> None:
    base, donor = parts(layout)
    donor.path.unlink()
    with pytest.raises(SlipstreamError, match=r"head\.gguf has gone") as caught:
        pull.make_graft(layout, base, donor, told)  # type: ignore[arg-type]
    assert caught.value.code is Code.SOURCE_NOT_FOUND
