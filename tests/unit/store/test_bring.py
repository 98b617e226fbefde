"""Branches that move while files of them are brought."""

from collections.abc import Callable

import pytest

from orchestrator.errors import SlipstreamError
from orchestrator.schemas import HfSource
from orchestrator.store.blobs import Blobs
from orchestrator.store.bring import Bringer
from orchestrator.store.hub import remote_files
from orchestrator.store.layout import Layout
from orchestrator.store.remote import RemoteFile
from tests.support.fetching import REPOSITORY
from tests.support.hub import Hub
from tests.support.stored import Told

A, B = HfSource(hf=REPOSITORY, file="a.gguf"), HfSource(hf=REPOSITORY, file="b.gguf")


@pytest.fixture
def layout(blobs: Blobs) -> Layout:
    return Layout(blobs.root, blobs.root.parent)


@pytest.fixture
def commit(hub: Hub) -> str:
    hub.add(REPOSITORY, "a.gguf", b"a, first")
    return hub.add(REPOSITORY, "b.gguf", b"b, first")


def move(hub: Hub) -> str:
    hub.add(REPOSITORY, "a.gguf", b"a, second")
    return hub.add(REPOSITORY, "b.gguf", b"b, second")


def before_recording(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Have something happen after the first listing."""
    pending = [work]

    def listed(source: HfSource, commit: str) -> list[RemoteFile]:
        found = remote_files(source, commit)
        if pending:
            pending.pop()()
        return found

    monkeypatch.setattr("orchestrator.store.bring.remote_files", listed)


def test_a_commit_that_another_recorded_first_is_the_one_that_is_brought(
    hub: Hub, commit: str, layout: Layout, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = move(hub)
    before_recording(monkeypatch, lambda: layout.refs.record(REPOSITORY, None, commit))
    place = Bringer(layout, told).bring(A)
    assert place.path.read_bytes() == b"a, first" and commit in place.path.parts
    assert layout.place(A) == place and moved != commit


def test_a_branch_that_another_updates_meanwhile_mixes_nothing(
    hub: Hub, commit: str, layout: Layout, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, moved = layout.refs.record, move(hub)
    layout.refs.record(REPOSITORY, None, commit)
    before_recording(monkeypatch, lambda: record(REPOSITORY, None, moved, replace=True))
    Bringer(layout, told).bring(A)
    contents = {path.parent.name: path.read_bytes() for path in (layout.root / "hf").rglob("a.gguf")}
    assert contents == {moved: b"a, second"}


def test_an_update_counts_when_all_of_it_is_there(hub: Hub, commit: str, layout: Layout, told: Told) -> None:
    first = Bringer(layout, told)
    assert [first.bring(source).missing for source in (A, B)] == [(), ()]
    moved = move(hub)
    update = Bringer(layout, told, update=True)
    assert update.bring(A).path.read_bytes() == b"a, second"
    assert layout.refs.commit(REPOSITORY) == commit and layout.missing(A) == layout.missing(B) == ()
    later = move(hub)
    assert moved in update.bring(B).path.parts, "a branch is looked up once in an update"
    update.settle()
    assert layout.refs.commit(REPOSITORY) == moved != later
    assert layout.missing(A) == layout.missing(B) == ()


def test_an_update_that_fails_leaves_what_was_there(hub: Hub, commit: str, layout: Layout, told: Told) -> None:
    Bringer(layout, told).bring(A)
    hub.repository(REPOSITORY).change("main", {"a.gguf": None})
    with pytest.raises(SlipstreamError, match=r"no file 'a\.gguf'"):
        Bringer(layout, told, update=True).bring(A)
    assert layout.missing(A) == ()
