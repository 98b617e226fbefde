import threading
from pathlib import Path

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.store.refs import Refs

COMMITS = [f"{i:040x}" for i in range(1, 9)]


def test_a_commit_is_its_own(tmp_path: Path) -> None:
    refs = Refs(tmp_path)
    assert refs.commit("o/n", COMMITS[0]) == COMMITS[0]
    assert refs.record("o/n", COMMITS[0], COMMITS[1]) == COMMITS[0]
    assert list(tmp_path.iterdir()) == []


def test_a_branch_is_looked_up_once(tmp_path: Path) -> None:
    refs = Refs(tmp_path)
    assert refs.commit("o/n") is None
    assert refs.record("o/n", None, COMMITS[0]) == COMMITS[0]
    assert refs.record("o/n", "main", COMMITS[1]) == COMMITS[0]
    assert refs.commit("o/n") == refs.commit("o/n", "main") == COMMITS[0]
    assert (tmp_path / "refs" / "hf" / "o" / "n" / "main").read_text().strip() == COMMITS[0]


def test_a_branch_that_has_moved_replaces_what_is_on_record(tmp_path: Path) -> None:
    refs = Refs(tmp_path)
    refs.record("o/n", "main", COMMITS[0])
    assert refs.record("o/n", "main", COMMITS[1], replace=True) == COMMITS[1]
    assert refs.commit("o/n") == COMMITS[1]
    assert refs.record("o/n", "main", COMMITS[0]) == COMMITS[1]


def test_revisions_with_slashes_and_those_they_replace(tmp_path: Path) -> None:
    refs = Refs(tmp_path)
    for revision, commit in zip(("a", "a/b", "a/b/c", "a"), COMMITS, strict=False):
        refs.record("o/n", revision, commit)
        assert refs.commit("o/n", revision) == commit
    assert [(repository, commit) for _, repository, commit in refs.files()] == [("o/n", COMMITS[3])]


@pytest.mark.parametrize("content", [b"", b"main", b"c" * 39, b"c" * 41, b"\xff" * 40, b"C" * 40])
def test_a_damaged_record_counts_as_none(tmp_path: Path, content: bytes) -> None:
    refs = Refs(tmp_path)
    refs.record("o/n", "main", COMMITS[0])
    (tmp_path / "refs" / "hf" / "o" / "n" / "main").write_bytes(content)
    assert refs.commit("o/n") is None
    assert [commit for *_, commit in refs.files()] == [None]
    assert refs.record("o/n", "main", COMMITS[1]) == COMMITS[1]


@pytest.mark.parametrize("revision", ["..", "../../x", "a/../../x", "/abs", "a\0b", "a\\b", "."])
def test_a_revision_stays_inside(tmp_path: Path, revision: str) -> None:
    with pytest.raises(SlipstreamError) as caught:
        Refs(tmp_path).record("o/n", revision, COMMITS[0])
    assert caught.value.code is Code.INVALID_REQUEST


def test_only_a_commit_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(SlipstreamError) as caught:
        Refs(tmp_path).record("o/n", "main", "main")
    assert caught.value.code is Code.SOURCE_FAILED and "'main'" in caught.value.message


def test_many_at_once_agree_on_one_commit(tmp_path: Path) -> None:
    refs, answers = Refs(tmp_path), []
    gate = threading.Barrier(len(COMMITS))

    def record(commit: str) -> None:
        gate.wait()
        answers.append(refs.record("o/n", "main", commit))

    threads = [threading.Thread(target=record, args=(commit,)) for commit in COMMITS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == len(COMMITS) and set(answers) == {refs.commit("o/n")}
