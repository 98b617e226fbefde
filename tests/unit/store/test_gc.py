import json
import os
import random
import time
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import GcView, HfSource
from orchestrator.store import gc, leftovers
from orchestrator.store.blobs import Blobs
from orchestrator.store.disk import locked
from orchestrator.store.fetch import hold
from orchestrator.store.gc import GcPlan, carry_out, plan
from orchestrator.store.layout import Layout, Place
from orchestrator.store.references import Reference, inventory
from orchestrator.store.refs import Refs
from tests.support.crash import dies_at
from tests.support.stored import Told, put, store

COMMIT = "c0ffee" * 6 + "c0ff"
DAY_SECONDS = 86_400.0


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a test are seconds old; what the grace is for has tests of its own."""
    for module in (gc, leftovers):
        monkeypatch.setattr(module, "GRACE_SECONDS", -1.0)


def needs(blobs: Blobs, *names: str) -> Callable[[], Iterable[Reference]]:
    return lambda: [Reference(blobs.root / name, f"model {name.rpartition('/')[2]}") for name in names]


def collect(blobs: Blobs, *needed: str, dry_run: bool = False) -> GcView:
    return gc.collect(Layout(blobs.root, blobs.root.parent), needs(blobs, *needed), dry_run=dry_run)


def everything(blobs: Blobs) -> set[str]:
    return {
        str(Path(parent, name).relative_to(blobs.root))
        for parent, _, files in os.walk(blobs.root)
        for name in files
        if name != "lock"
    }


def age(path: Path, seconds: float) -> Path:
    """Make it as if a file, or all of a folder, was written so long ago."""
    at = time.time() - seconds
    for place in (path, *path.rglob("*")):
        os.utime(place, (at, at), follow_symlinks=False)
    return path


def test_a_plan_touches_nothing_and_tells_what_the_work_then_does(blobs: Blobs) -> None:
    kept = store(blobs, b"kept", "hf/o/n/c/kept.gguf")
    gone = store(blobs, b"gone!", "hf/o/n/c/gone.gguf", "url/k/gone.gguf")
    before = everything(blobs)
    dry = collect(blobs, "hf/o/n/c/kept.gguf", dry_run=True)
    assert everything(blobs) == before
    (file,) = dry.removed
    assert (file.sha256, file.names) == (gone, ("hf/o/n/c/gone.gguf", "url/k/gone.gguf"))
    assert (file.size_bytes, file.origins, dry.freed_bytes, dry.dry_run) == (5, ("hf o/n",), 5, True)
    wet = collect(blobs, "hf/o/n/c/kept.gguf")
    assert wet == dry.model_copy(update={"dry_run": False})
    assert everything(blobs) == {"hf/o/n/c/kept.gguf", f"blobs/{kept}", f"records/{kept}.json"}
    assert not (blobs.root / "url" / "k").exists()
    assert collect(blobs, "hf/o/n/c/kept.gguf").removed == ()


def test_an_empty_store_has_nothing_to_remove(blobs: Blobs) -> None:
    assert collect(blobs) == GcView(dry_run=False, removed=(), freed_bytes=0)


def test_a_name_nobody_needs_goes_and_the_content_stays_for_another(blobs: Blobs) -> None:
    sha256 = store(blobs, b"shared", "hf/o/n/c/f.gguf", "url/k/f.gguf")
    view = collect(blobs, "url/k/f.gguf")
    assert [file.names for file in view.removed] == [("hf/o/n/c/f.gguf",)] and view.freed_bytes == 0
    assert blobs.sha256_of(blobs.root / "url" / "k" / "f.gguf") == sha256
    assert not (blobs.root / "hf" / "o").exists()


@pytest.mark.parametrize("way", ["link outside", "link to a link", "the blob itself", "folder link", "place"])
def test_a_file_is_needed_however_it_is_reached(blobs: Blobs, tmp_path: Path, way: str) -> None:
    sha256 = store(blobs, b"needed", "hf/o/n/c/f.gguf")
    name, outside = blobs.root / "hf" / "o" / "n" / "c" / "f.gguf", tmp_path / "outside"
    where: Path | Place = outside / "f.gguf"
    outside.mkdir()
    match way:
        case "link outside":
            (outside / "f.gguf").symlink_to(name)
        case "link to a link":
            (outside / "g.gguf").symlink_to(name)
            (outside / "f.gguf").symlink_to("g.gguf")
        case "the blob itself":
            where = blobs.blob(sha256)
        case "folder link":
            (outside / "d").symlink_to(name.parent)
            where = outside / "d" / "f.gguf"
        case "place":
            where = Place(tmp_path / "other", (tmp_path / "other", name))
    carry_out(blobs, plan(blobs, lambda: [Reference(where, "m")]), lambda: [Reference(where, "m")])
    assert blobs.blob(sha256).read_bytes() == b"needed"
    # A link from elsewhere breaks when a link in its middle goes.
    assert name.exists() == (way != "the blob itself")


def test_a_shard_stands_for_its_siblings(blobs: Blobs) -> None:
    names = [f"hf/o/n/c/f-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    for name in names:
        store(blobs, name.encode(), name)
    assert collect(blobs, names[0]).removed == ()
    assert len(collect(blobs).removed) == 3


def test_older_real_files_go_when_nobody_needs_them(blobs: Blobs) -> None:
    put(blobs.root / "pypi" / "p==1" / "d" / "f.gguf", b"old file")
    put(blobs.root / "pypi" / "q==1" / "f.gguf", b"needed")
    (blobs.root / "pypi" / "r.gguf").symlink_to("/etc/hostname")
    view = collect(blobs, "pypi/q==1/f.gguf")
    assert [(file.sha256, file.names) for file in view.removed] == [(None, ("pypi/p==1/d/f.gguf",))]
    assert view.freed_bytes == 8
    assert everything(blobs) == {"pypi/q==1/f.gguf", "pypi/r.gguf"}


def test_what_lost_its_other_half_goes(blobs: Blobs) -> None:
    nameless = store(blobs, b"nameless")
    store(blobs, b"blobless", "url/k/f.gguf", "url/k/needed.gguf")
    blobs.blob(blobs.target(blobs.root / "url" / "k" / "f.gguf") or "").unlink()
    view = collect(blobs, "url/k/needed.gguf")
    assert {(file.sha256, file.names) for file in view.removed} >= {(nameless, ())}
    assert everything(blobs) == {"url/k/needed.gguf"}


def test_a_ref_stays_while_a_file_of_its_commit_is_needed(blobs: Blobs) -> None:
    layout = Layout(blobs.root, blobs.root.parent)
    layout.refs.record("o/n", "main", COMMIT)
    layout.refs.record("o/n", "old", "0" * 40)
    layout.refs.record("o/other", "main", COMMIT)
    put(blobs.root / "refs" / "hf" / "o" / "n" / "damaged", b"x")
    # The file itself has not come yet.
    place = layout.place(HfSource(hf="o/n", file="f.gguf"))
    assert place is not None
    references = [Reference(place, "model m")]
    carry_out(blobs, plan(blobs, lambda: references), lambda: references)
    assert [(repository, commit) for _, repository, commit in Refs(blobs.root).files()] == [("o/n", COMMIT)]


def test_a_needed_graft_keeps_what_it_was_made_from(blobs: Blobs) -> None:
    base = store(blobs, b"base", "hf/o/n/c/base.gguf")
    donor = store(blobs, b"donor", "hf/o/d/c/donor.gguf")
    for key in ("needed", "old"):
        put(blobs.root / "grafts" / key / "base-MTP.gguf", b"grafted")
    made_from = json.dumps({"base": [base], "donor": [donor, "local.gguf 12 34"]})
    put(blobs.root / "grafts" / "needed" / "graft.json", made_from.encode())
    put(blobs.root / "grafts" / "old" / "graft.json", json.dumps({"base": ["0" * 64]}).encode())
    view = collect(blobs, "grafts/needed/base-MTP.gguf")
    assert [file.names for file in view.removed] == [("grafts/old/base-MTP.gguf",)]
    assert not (blobs.root / "grafts" / "old").exists()
    assert blobs.sha256_of(blobs.root / "hf" / "o" / "n" / "c" / "base.gguf") == base
    assert blobs.sha256_of(blobs.root / "hf" / "o" / "d" / "c" / "donor.gguf") == donor
    assert len(collect(blobs).removed) == 3


def test_what_is_being_made_stays(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (gc, leftovers):
        monkeypatch.setattr(module, "GRACE_SECONDS", 600.0)
    sha256 = store(blobs, b"about to get its name")
    put(blobs.root / "grafts" / "making" / ".beside-0", b"half")
    put(blobs.root / "hf" / ".beside-1", b"half")
    Refs(blobs.root).record("o/n", "main", COMMIT)
    before = everything(blobs)
    assert collect(blobs) == GcView(dry_run=False, removed=(), freed_bytes=0)
    assert everything(blobs) == before and blobs.has(sha256)
    age(blobs.root / "grafts" / "making", 601)
    assert len(collect(blobs).removed) == 1


def test_abandoned_fetches_go_and_those_in_work_stay(blobs: Blobs) -> None:
    for key in ("new", "old", "worked on"):
        put(blobs.root / "partial" / key / "data", b"x" * 8192)
    for key in ("old", "worked on"):
        age(blobs.root / "partial" / key, 2 * DAY_SECONDS)
    with hold(blobs.root / "partial" / "worked on", Told(), "f"):
        age(blobs.root / "partial" / "worked on", 2 * DAY_SECONDS)
        view = collect(blobs)
    assert sorted(os.listdir(blobs.root / "partial")) == ["new", "worked on"]
    assert view.freed_bytes == 8192 and view.removed == ()


def test_a_fetch_taken_up_after_the_plan_stays(blobs: Blobs) -> None:
    folder = age(put(blobs.root / "partial" / "k" / "data", b"x").parent, 2 * DAY_SECONDS)
    planned = plan(blobs, needs(blobs))
    assert planned.leftovers == (folder,)
    age(folder, 0)
    carry_out(blobs, planned, needs(blobs))
    assert folder.is_dir()


def test_quarantine_goes_after_a_week(blobs: Blobs) -> None:
    for key, days in (("a", 8), ("b", 6)):
        put(blobs.root / "quarantine" / key, b"wrong" * 1000)
        age(put(blobs.root / "quarantine" / f"{key}.json", b"{}"), days * DAY_SECONDS)
        # The bytes are as old as their fetch.
        age(blobs.root / "quarantine" / key, 90 * DAY_SECONDS)
    collect(blobs)
    assert everything(blobs) == {"quarantine/b", "quarantine/b.json"}


def test_what_killed_writers_left_goes(blobs: Blobs) -> None:
    for name in ("blobs/.beside-0", "records/.beside-0", "hf/o/n/.beside-0", "pypi/p==1/.bring-x/wheel.whl"):
        put(blobs.root / name, b"x")
    (blobs.root / "url").mkdir()
    (blobs.root / "url" / ".beside-1").symlink_to("../blobs/x")
    collect(blobs)
    assert everything(blobs) == set() and os.listdir(blobs.root / "url") == []


def test_what_became_needed_after_the_plan_stays(blobs: Blobs) -> None:
    for name in ("url/k/f.gguf", "url/k/g.gguf"):
        store(blobs, name.encode(), name)
    put(blobs.root / "grafts" / "k" / "graft.json", b"{}")
    Refs(blobs.root).record("o/n", "main", COMMIT)
    planned = plan(blobs, needs(blobs))
    now = needs(blobs, "url/k/f.gguf", "grafts/k/x.gguf", f"hf/o/n/{COMMIT}/x.gguf")
    view = carry_out(blobs, planned, now)
    assert [file.names for file in view.removed] == [("url/k/g.gguf",)]
    assert (blobs.root / "url" / "k" / "f.gguf").is_file()
    assert (blobs.root / "grafts" / "k" / "graft.json").is_file()
    assert Refs(blobs.root).commit("o/n") == COMMIT


def test_references_are_asked_before_each_removal(blobs: Blobs) -> None:
    for i in range(3):
        store(blobs, bytes([i]), f"url/k/{i}.gguf")
    there: list[int] = []

    def references() -> Iterable[Reference]:
        there.append(len(list((blobs.root / "url" / "k").iterdir())))
        return [Reference(blobs.root / "url" / "k" / "2.gguf", "model late")] if len(there) > 3 else []

    carry_out(blobs, plan(blobs, references), references)
    assert there[:4] == [3, 3, 2, 1]
    assert os.listdir(blobs.root / "url" / "k") == ["2.gguf"]


def test_a_name_given_after_the_plan_keeps_its_content(blobs: Blobs) -> None:
    sha256 = store(blobs, b"content", "url/k/f.gguf")
    planned = plan(blobs, needs(blobs))
    blobs.link(blobs.root / "url" / "k" / "g.gguf", sha256)
    put(blobs.root / "url" / "k" / "x", b"x").replace(blobs.root / "url" / "k" / "f.gguf")
    view = carry_out(blobs, planned, needs(blobs))
    assert (view.removed, view.freed_bytes) == ((), 0)
    assert (blobs.root / "url" / "k" / "f.gguf").read_bytes() == b"x"
    assert blobs.sha256_of(blobs.root / "url" / "k" / "g.gguf") == sha256


def test_references_that_cannot_be_told_stop_everything(blobs: Blobs) -> None:
    store(blobs, b"content", "url/k/f.gguf")
    planned, before = plan(blobs, needs(blobs)), everything(blobs)

    def unknown() -> Iterable[Reference]:
        raise SlipstreamError(Code.CONFLICT, "a model file cannot be read")

    with pytest.raises(SlipstreamError):
        carry_out(blobs, planned, unknown)
    assert everything(blobs) == before
    with locked(blobs.root):
        pass


def test_a_disk_that_refuses_is_a_clear_error(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    store(blobs, b"content", "url/k/f.gguf")

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(SlipstreamError, match="Read-only file system") as caught:
        collect(blobs)
    assert caught.value.code is Code.MISCONFIGURED and str(blobs.root) not in caught.value.message


def fill(blobs: Blobs, chance: random.Random, contents: int) -> list[str]:
    """A store of some contents with one to three names each; all names."""
    names: list[str] = []
    for number in range(contents):
        own = [
            f"{chance.choice(('hf/o/n/c', 'url/k', 'pypi/p==1'))}/{number}-{i}.gguf"
            for i in range(chance.randint(1, 3))
        ]
        store(blobs, bytes([number]) * 10, *own)
        names += own
    return names


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_needed_stays_and_nothing_else(blobs: Blobs, seed: int) -> None:
    chance = random.Random(seed)
    names = fill(blobs, chance, 10)
    needed = chance.sample(names, chance.randint(0, len(names)))
    contents = {name: (blobs.root / name).read_bytes() for name in needed}
    collect(blobs, *needed)
    assert {str(name.relative_to(blobs.root)) for name in blobs.names()} == set(needed)
    assert {name: (blobs.root / name).read_bytes() for name in needed} == contents
    assert len(blobs.digests()) == len(set(contents.values())) == len(blobs.records())


def test_a_kill_at_any_instant_leaves_what_is_whole(tmp_path: Path) -> None:
    for step in count(1):
        blobs = Blobs(tmp_path / str(step) / "models")
        names = fill(blobs, random.Random(1), 3)
        for key in ("a", "b"):
            put(blobs.root / "grafts" / key / "graft.json", b"{}")
            put(blobs.root / "grafts" / key / "f.gguf", b"x")
        needed = [*names[::3], "grafts/a/f.gguf"]
        planned: GcPlan = plan(blobs, needs(blobs, *needed))
        died = dies_at(step, lambda b=blobs, p=planned, n=needed: carry_out(b, p, needs(b, *n)))  # type: ignore[misc]
        for name in blobs.names():
            assert name.exists()
            if "grafts" not in name.parts:
                assert blobs.sha256_of(name) is not None
        assert all((blobs.root / name).is_file() for name in needed)
        assert (blobs.root / "grafts" / "b" / "f.gguf").exists() or not (
            blobs.root / "grafts" / "b" / "graft.json"
        ).exists()
        collect(blobs, *needed)
        assert {str(name.relative_to(blobs.root)) for name in blobs.names()} == set(needed)
        assert blobs.digests() == blobs.records()
        if not died:
            break
    assert step > 12


def test_the_inventory_says_who_needs_what(blobs: Blobs) -> None:
    base = store(blobs, b"base", "hf/o/n/c/base.gguf", "url/k/same.gguf")
    store(blobs, b"nobody's", "url/k/f.gguf")
    put(blobs.root / "grafts" / "k" / "base-MTP.gguf", b"grafted")
    put(blobs.root / "grafts" / "k" / "graft.json", json.dumps({"base": [base]}).encode())
    put(blobs.root / "partial" / "p" / "data", b"x" * 8192)
    references = [
        Reference(blobs.root / "hf" / "o" / "n" / "c" / "base.gguf", "model a"),
        Reference(blobs.root / "hf" / "o" / "n" / "c" / "base.gguf", "server a"),
        Reference(blobs.root / "grafts" / "k" / "base-MTP.gguf", "model b"),
    ]
    view = inventory(Layout(blobs.root, blobs.root.parent), references)
    assert {file.names[0]: file.references for file in view.files} == {
        "grafts/k/base-MTP.gguf": ("model b",),
        "hf/o/n/c/base.gguf": ("graft k", "model a", "server a"),
        "url/k/f.gguf": (),
    }
    assert view.size_bytes == len(b"base" + b"nobody's" + b"grafted") and view.partial_bytes == 8192
