import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.gguf.digest import hash_file
from orchestrator.schemas import OllamaSource, PypiSource
from orchestrator.store.blobs import Blobs
from orchestrator.store.layout import Layout
from orchestrator.store.verify import verify
from tests.support.ollama_store import OllamaStoreMaker
from tests.support.stored import Told, put, store

FIRST, SECOND = b"GGUF first" * 1000, b"GGUF second" * 500


def rot(path: Path, *, keeping_time: bool = True) -> str:
    """Change one byte in the middle; the digest of what it is then."""
    facts = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(content)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns if keeping_time else facts.st_mtime_ns + 1))
    return hashlib.sha256(content).hexdigest()


def test_every_content_is_read_once(blobs: Blobs, told: Told) -> None:
    first = store(blobs, FIRST, "hf/o/n/c/f.gguf", "url/k/f.gguf")
    second = store(blobs, SECOND, "pypi/p==1/g.gguf", origin="pypi p==1 g.gguf")
    view = verify(blobs, told)
    assert [(file.sha256, file.names, file.origins) for file in view.ok] == [
        (first, ("hf/o/n/c/f.gguf", "url/k/f.gguf"), ("hf o/n",)),
        (second, ("pypi/p==1/g.gguf",), ("pypi p==1 g.gguf",)),
    ]
    assert (view.wrong, view.unreadable, view.unrecorded, view.missing) == ((), (), (), ())
    assert view.read_bytes == len(FIRST) + len(SECOND)
    assert told.phases == [("hashing", view.read_bytes, None)] and told.done[-1] == view.read_bytes
    assert told.lines == []


@pytest.mark.parametrize("keeping_time", [True, False])
def test_wrong_bytes_go_into_quarantine_with_both_hashes(blobs: Blobs, told: Told, keeping_time: bool) -> None:
    names = ("hf/o/n/c/f.gguf", "pypi/p==1/f.gguf")
    sha256 = store(blobs, FIRST, *names)
    store(blobs, SECOND, "url/k/g.gguf")
    actual = rot(blobs.blob(sha256), keeping_time=keeping_time)
    view = verify(blobs, told)
    (wrong,) = view.wrong
    assert (wrong.expected_sha256, wrong.actual_sha256, wrong.names) == (sha256, actual, names)
    assert len(view.ok) == 1
    assert wrong.quarantined == f"{sha256[:16]}-{actual[:12]}"
    kept = blobs.root / "quarantine" / wrong.quarantined
    assert hash_file(kept) == actual
    note = json.loads(kept.with_name(f"{kept.name}.json").read_text())
    assert (note["expected_sha256"], note["actual_sha256"], note["origin"]) == (sha256, actual, "hf o/n")
    source = PypiSource(pypi="p==1", file="f.gguf", sha256=sha256)
    assert Layout(blobs.root, blobs.root.parent).missing(source) == ("f.gguf",)
    assert not blobs.has(sha256) and not blobs.record_file(sha256).exists()
    assert actual in told.lines[0] and sha256 in told.lines[0]
    assert verify(blobs, told).wrong == ()


def test_after_quarantine_good_bytes_can_come_again(blobs: Blobs, told: Told) -> None:
    sha256 = store(blobs, FIRST, "url/k/f.gguf")
    rot(blobs.blob(sha256))
    verify(blobs, told)
    assert store(blobs, FIRST, "url/k/f.gguf") == sha256
    assert [file.sha256 for file in verify(blobs, told).ok] == [sha256]


@pytest.mark.parametrize("doubt", ["no record", "touched"])
def test_right_bytes_are_trusted_again(blobs: Blobs, told: Told, doubt: str) -> None:
    sha256 = store(blobs, FIRST, "url/k/f.gguf")
    if doubt == "no record":
        blobs.record_file(sha256).unlink()
    else:
        os.utime(blobs.blob(sha256), ns=(0, 0))
    name = blobs.root / "url" / "k" / "f.gguf"
    assert blobs.sha256_of(name) is None
    begun = time.time()
    (file,) = verify(blobs, told).ok
    assert file.verified is not None and file.verified >= begun
    assert blobs.sha256_of(name) == sha256
    assert file.origins == (() if doubt == "no record" else ("hf o/n",))


def test_what_has_no_digest_is_listed_and_not_read(blobs: Blobs, told: Told, tmp_path: Path) -> None:
    put(blobs.root / "grafts" / "k" / "base-MTP.gguf", FIRST)
    put(blobs.root / "pypi" / "p==1" / "old.gguf", SECOND)
    view = verify(blobs, told)
    assert [file.names for file in view.unrecorded] == [("grafts/k/base-MTP.gguf",), ("pypi/p==1/old.gguf",)]
    assert view.ok == () and view.read_bytes == 0
    own = put(tmp_path / "own" / "model.gguf", FIRST)
    (unrecorded,) = verify(blobs, told, [own]).unrecorded
    assert (unrecorded.names, unrecorded.size_bytes, unrecorded.sha256) == (("model.gguf",), len(FIRST), None)


def test_only_the_files_of_given_names_are_read(blobs: Blobs, told: Told, tmp_path: Path) -> None:
    sha256 = store(blobs, FIRST, "url/k/f.gguf", "hf/o/n/c/f.gguf")
    rot(blobs.blob(store(blobs, SECOND, "url/k/g.gguf")))
    link = tmp_path / "link.gguf"
    link.symlink_to(blobs.root / "url" / "k" / "f.gguf")
    gone = blobs.root / "url" / "k" / "gone.gguf"
    view = verify(blobs, told, [blobs.root / "url" / "k" / "f.gguf", link, link, gone])
    assert [(file.sha256, file.names) for file in view.ok] == [(sha256, ("url/k/f.gguf", "link.gguf"))]
    assert view.missing == ("url/k/gone.gguf",) and view.wrong == ()
    assert view.read_bytes == len(FIRST)


def test_blobs_of_ollama_are_compared_and_left_alone(
    blobs: Blobs, told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    OllamaStoreMaker(tmp_path / "ollama").create("toy", model=FIRST)
    place = Layout(tmp_path, blobs.root.parent).place(OllamaSource(ollama="toy"))
    assert place is not None
    assert [file.sha256 for file in verify(blobs, told, place.files).ok] == [hashlib.sha256(FIRST).hexdigest()]
    actual = rot(place.path)
    (wrong,) = verify(blobs, told, place.files).wrong
    assert (wrong.actual_sha256, wrong.quarantined, wrong.names) == (actual, None, (place.path.name,))
    assert hash_file(place.path) == actual
    assert not (blobs.root / "quarantine").exists()


def test_a_file_that_cannot_be_read_stops_nothing(blobs: Blobs, told: Told) -> None:
    sha256 = store(blobs, FIRST, "url/k/f.gguf")
    (blobs.root / "blobs" / ("0" * 64)).mkdir()
    blobs.link(blobs.root / "url" / "k" / "g.gguf", sha256)
    view = verify(blobs, told)
    assert [file.sha256 for file in view.ok] == [sha256]
    assert [(file.names, file.reason) for file in view.unreadable] == [((), "Is a directory")]
    assert (blobs.root / "blobs" / ("0" * 64)).is_dir()


def test_bytes_replaced_while_they_are_read_are_not_condemned(
    blobs: Blobs, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256 = store(blobs, FIRST, "url/k/f.gguf")
    rot(blobs.blob(sha256), keeping_time=False)

    def read_then_replace(path: Path, read: Callable[[int], None]) -> str:
        actual = hash_file(path, read)
        store(blobs, FIRST)
        return actual

    monkeypatch.setattr("orchestrator.store.verify.hash_file", read_then_replace)
    view = verify(blobs, told)
    assert view.wrong == () and [file.sha256 for file in view.ok] == [sha256]
    assert blobs.sha256_of(blobs.root / "url" / "k" / "f.gguf") == sha256


@pytest.mark.parametrize("when", ["before", "after"])
def test_bytes_removed_while_they_are_read_are_missing(
    blobs: Blobs, told: Told, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    sha256 = store(blobs, FIRST, "url/k/f.gguf")
    rot(blobs.blob(sha256))

    def read_and_remove(path: Path, read: Callable[[int], None]) -> str:
        if when == "before":
            path.unlink()
        actual = hash_file(path, read)
        path.unlink()
        return actual

    monkeypatch.setattr("orchestrator.store.verify.hash_file", read_and_remove)
    view = verify(blobs, told)
    assert (view.ok, view.wrong, view.unreadable, view.missing) == ((), (), (), ("url/k/f.gguf",))
    assert not (blobs.root / "quarantine").exists()


def test_as_many_files_as_cores_are_read_at_once(blobs: Blobs, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(6):
        store(blobs, FIRST + bytes([i]), f"url/k/{i}.gguf")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    three = threading.Barrier(3)

    def meet(path: Path, read: Callable[[int], None]) -> str:
        three.wait(10)
        return hash_file(path, read)

    monkeypatch.setattr("orchestrator.store.verify.hash_file", meet)
    assert len(verify(blobs, told).ok) == 6


def test_nobody_reads_on_when_progress_fails(blobs: Blobs, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    store(blobs, FIRST, "url/k/f.gguf")

    def endless(path: Path, read: Callable[[int], None]) -> str:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            read(1)
        raise AssertionError("nobody stopped the reader")

    def gone(done_bytes: int) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("orchestrator.store.verify.hash_file", endless)
    monkeypatch.setattr(told, "advance", gone)
    begun = time.monotonic()
    with pytest.raises(Exception, match="Broken pipe"):
        verify(blobs, told)
    assert time.monotonic() - begun < 10
    assert [t.name for t in threading.enumerate() if t.name.startswith("verify")] == []


def test_a_digest_is_that_of_hashlib_whatever_the_size(tmp_path: Path) -> None:
    for size in (0, 1, (4 << 20) - 1, 4 << 20, (4 << 20) + 1):
        content = os.urandom(1) * size
        seen: list[int] = []
        assert hash_file(put(tmp_path / "f", content), seen.append) == hashlib.sha256(content).hexdigest()
        assert sum(seen) == size
