import hashlib
import json
import os
import threading
from itertools import count
from pathlib import Path

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.store.blobs import Blobs
from orchestrator.store.disk import locked
from tests.support.crash import dies_at

CONTENT = b"GGUF" + bytes(range(256)) * 8
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "store")


def partial(blobs: Blobs, name: str = "a", content: bytes = CONTENT) -> Path:
    path = blobs.root / "partial" / name / "data"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def adopt(blobs: Blobs, name: str = "a", origin: str = "hf o/n") -> Path:
    return blobs.adopt(partial(blobs, name), SHA256, len(CONTENT), origin)


def refused(code: Code, *arguments: object, of: object) -> SlipstreamError:
    with pytest.raises(SlipstreamError) as caught:
        of(*arguments)  # type: ignore[operator]
    assert caught.value.code is code
    return caught.value


def test_adopted_bytes_have_their_digest_as_name(blobs: Blobs) -> None:
    path = adopt(blobs)
    assert path == blobs.root / "blobs" / SHA256
    assert path.read_bytes() == CONTENT
    assert path.stat().st_mode & 0o777 == 0o444
    assert not (blobs.root / "partial" / "a" / "data").exists()
    record = json.loads((blobs.root / "records" / f"{SHA256}.json").read_text())
    assert record == {
        "sha256": SHA256,
        "size_bytes": len(CONTENT),
        "origins": ["hf o/n"],
        "verified": record["verified"],
        "mtime_ns": path.stat().st_mtime_ns,
    }


def test_a_name_is_a_relative_link(blobs: Blobs) -> None:
    adopt(blobs)
    name = blobs.root / "hf" / "o" / "n" / "c0ffee" / "MTP" / "f.gguf"
    blobs.link(name, SHA256)
    blobs.link(name, SHA256)
    assert name.read_bytes() == CONTENT
    assert os.readlink(name) == f"../../../../../blobs/{SHA256}"
    assert blobs.sha256_of(name) == blobs.sha256_of(blobs.blob(SHA256)) == SHA256
    assert [entry.name for entry in name.parent.iterdir()] == ["f.gguf"]


def test_a_store_can_be_moved(blobs: Blobs, tmp_path: Path) -> None:
    adopt(blobs)
    blobs.link(blobs.root / "url" / "k" / "f.gguf", SHA256)
    moved = Blobs(blobs.root.rename(tmp_path / "elsewhere"))
    assert moved.sha256_of(moved.root / "url" / "k" / "f.gguf") == SHA256


def test_a_store_behind_a_link_is_the_same_store(blobs: Blobs, tmp_path: Path) -> None:
    adopt(blobs)
    (tmp_path / "link").symlink_to(blobs.root)
    other = Blobs(tmp_path / "link")
    other.link(other.root / "url" / "k" / "f.gguf", SHA256)
    assert other.sha256_of(other.root / "url" / "k" / "f.gguf") == SHA256
    assert blobs.sha256_of(other.root / "url" / "k" / "f.gguf") == SHA256


def test_the_second_of_two_origins_keeps_the_first_ones_bytes(blobs: Blobs) -> None:
    first = adopt(blobs).stat()
    second = adopt(blobs, "b", "url https://h/f").stat()
    assert (first.st_ino, first.st_mtime_ns) == (second.st_ino, second.st_mtime_ns)
    assert not (blobs.root / "partial" / "b" / "data").exists()
    assert [file.origins for file in blobs.files()] == [("hf o/n", "url https://h/f")]


def test_adopting_what_a_killed_run_has_adopted_changes_nothing(blobs: Blobs) -> None:
    adopt(blobs)
    gone = blobs.root / "partial" / "a" / "data"
    assert blobs.adopt(gone, SHA256, len(CONTENT), "hf o/n") == blobs.blob(SHA256)
    assert [file.origins for file in blobs.files()] == [("hf o/n",)]


@pytest.mark.parametrize("damage", ["truncated", "written to", "without record", "record damaged"])
def test_bytes_that_nobody_vouches_for_are_replaced(blobs: Blobs, damage: str) -> None:
    path = adopt(blobs)
    record = blobs.record_file(SHA256)
    match damage:
        case "truncated":
            path.chmod(0o600)
            os.truncate(path, 7)
        case "written to":
            path.chmod(0o600)
            path.write_bytes(bytes(len(CONTENT)))
            os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
        case "without record":
            record.unlink()
        case "record damaged":
            record.write_text("{")
    assert blobs.sha256_of(path) is None
    adopt(blobs, "b")
    assert path.read_bytes() == CONTENT
    assert blobs.sha256_of(path) == SHA256


def test_a_kill_between_record_and_blob_leaves_nothing_to_trust(blobs: Blobs) -> None:
    record = blobs.record_file(SHA256)
    adopt(blobs).unlink()
    assert record.exists()
    assert not blobs.has(SHA256) and blobs.files() == []
    adopt(blobs, "b")
    assert blobs.has(SHA256)


def test_wrong_size_and_wrong_digests_are_refused(blobs: Blobs) -> None:
    path = partial(blobs)
    error = refused(Code.WRONG_BYTES, path, SHA256, 7, "hf o/n", of=blobs.adopt)
    assert "7" in error.message and str(len(CONTENT)) in error.message
    assert path.read_bytes() == CONTENT
    for wrong in ("", "../x", "A" * 64, SHA256[:-1], f"{SHA256}\n"):
        refused(Code.INVALID_REQUEST, path, wrong, len(CONTENT), "hf o/n", of=blobs.adopt)


def test_a_name_needs_its_blob_and_a_place_in_the_store(blobs: Blobs, tmp_path: Path) -> None:
    refused(Code.NOT_FOUND, blobs.root / "hf" / "f.gguf", SHA256, of=blobs.link)
    adopt(blobs)
    for path in ("", "hf", "f.gguf", "blobs/x", "records/x", "partial/x", "hf/../../x", "grafts/k/f.gguf"):
        refused(Code.INVALID_REQUEST, blobs.root / path, SHA256, of=blobs.link)
    refused(Code.INVALID_REQUEST, tmp_path / "f.gguf", SHA256, of=blobs.link)
    assert not (blobs.root / "hf").exists()


def test_a_folder_in_the_way_of_a_name_is_a_clear_error(blobs: Blobs) -> None:
    adopt(blobs)
    name = blobs.root / "hf" / "f.gguf"
    name.mkdir(parents=True)
    error = refused(Code.SOURCE_FAILED, name, SHA256, of=blobs.link)
    assert "f.gguf" in error.message and str(blobs.root) not in error.message
    assert [entry.name for entry in name.parent.iterdir()] == ["f.gguf"]


def test_a_name_takes_the_place_of_an_older_file(blobs: Blobs) -> None:
    adopt(blobs)
    name = blobs.root / "pypi" / "p==1" / "f.gguf"
    name.parent.mkdir(parents=True)
    name.write_bytes(b"older")
    assert blobs.sha256_of(name) is None
    blobs.link(name, SHA256)
    assert blobs.sha256_of(name) == SHA256


def test_files_are_listed_by_content(blobs: Blobs) -> None:
    adopt(blobs)
    other = b"GGUF other"
    nameless = hashlib.sha256(other).hexdigest()
    blobs.adopt(partial(blobs, "b", other), nameless, len(other), "pypi p==1 f")
    for name in ("hf/o/n/c/f.gguf", "url/k/g.gguf"):
        blobs.link(blobs.root / name, SHA256)
    for name in ("pypi/p==1/old.gguf", "grafts/k/base-MTP.gguf", "grafts/k/graft.json", "url/k/.beside-0"):
        (blobs.root / name).parent.mkdir(parents=True, exist_ok=True)
        (blobs.root / name).write_bytes(b"x" * len(name))
    (blobs.root / "hf" / "dangling.gguf").symlink_to(f"../blobs/{'0' * 64}")
    listed = [(file.sha256, file.names, file.size_bytes, file.origins) for file in blobs.files()]
    assert listed == [
        (nameless, (), len(other), ("pypi p==1 f",)),
        (None, ("grafts/k/base-MTP.gguf",), len("grafts/k/base-MTP.gguf"), ()),
        (SHA256, ("hf/o/n/c/f.gguf", "url/k/g.gguf"), len(CONTENT), ("hf o/n",)),
        (None, ("pypi/p==1/old.gguf",), len("pypi/p==1/old.gguf"), ()),
    ]
    assert Blobs(blobs.root / "nowhere").files() == []


def test_holes_of_partial_files_do_not_count(blobs: Blobs) -> None:
    path = partial(blobs, content=b"x" * 8192)
    os.truncate(path, 1 << 30)
    assert 8192 <= blobs.partial_bytes() < 1 << 20
    assert Blobs(blobs.root / "nowhere").partial_bytes() == 0


def test_many_adopt_and_name_one_content_at_once(blobs: Blobs) -> None:
    paths = [partial(blobs, str(i)) for i in range(12)]
    gate, failures = threading.Barrier(len(paths)), []

    def work(path: Path) -> None:
        gate.wait()
        try:
            blobs.adopt(path, SHA256, len(CONTENT), f"url {path.parent.name}")
            blobs.link(blobs.root / "url" / "k" / "f.gguf", SHA256)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    (file,) = blobs.files()
    assert sorted(file.origins) == sorted(f"url {i}" for i in range(12))
    assert blobs.sha256_of(blobs.root / "url" / "k" / "f.gguf") == SHA256
    assert sorted(entry.name for entry in blobs.root.iterdir()) == ["blobs", "lock", "partial", "records", "url"]


def test_a_disk_without_room_is_told_apart(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    path = partial(blobs)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refused(Code.DISK_FULL, path, SHA256, len(CONTENT), "hf o/n", of=blobs.adopt)
    monkeypatch.undo()
    assert path.read_bytes() == CONTENT and not blobs.has(SHA256)
    assert blobs.adopt(path, SHA256, len(CONTENT), "hf o/n").is_file()


def test_who_keeps_the_store_locked_too_long_is_an_error(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    path = partial(blobs)
    monkeypatch.setattr("orchestrator.store.disk._LOCK_TIMEOUT_SECONDS", 0.05)
    with locked(blobs.root):
        refused(Code.CONFLICT, path, SHA256, len(CONTENT), "hf o/n", of=blobs.adopt)
    adopt(blobs, "b")


def test_a_kill_at_any_instant_leaves_what_is_whole(tmp_path: Path) -> None:
    for step in count(1):
        blobs = Blobs(tmp_path / str(step))
        path, name = partial(blobs), blobs.root / "hf" / "o" / "n" / "f.gguf"

        def work(blobs: Blobs = blobs, path: Path = path, name: Path = name) -> None:
            blobs.adopt(path, SHA256, len(CONTENT), "hf o/n")
            blobs.link(name, SHA256)

        died = dies_at(step, work)
        if name.exists():
            assert blobs.sha256_of(name) == SHA256
        assert path.exists() != blobs.has(SHA256)
        work()
        assert name.read_bytes() == CONTENT and blobs.sha256_of(name) == SHA256
        if not died:
            break
    assert step > 8
