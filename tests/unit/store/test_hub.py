"""What a hub tells, through its own library, and what stands in the way."""

import hashlib
import time
from dataclasses import replace

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import HfSource, Role
from orchestrator.store.hub import list_repository, remote_files, resolve
from orchestrator.store.remote_bytes import RemoteBytes
from tests.support.answers import Certificate, scripted
from tests.support.fetching import NAME, QUICK, REPOSITORY, made
from tests.support.hub import Hub, Kind

CONTENT = made(1000)
TOKEN = "hf_secretsecret"
SHARDS = [f"big/toy-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]


@pytest.fixture
def commit(hub: Hub) -> str:
    hub.add(REPOSITORY, "README.md", b"hello\n", lfs=False)
    return hub.add(REPOSITORY, NAME, CONTENT)


def source(file: str = NAME) -> HfSource:
    return HfSource(hf=REPOSITORY, file=file)


def refused(repository: str = REPOSITORY, revision: str | None = None) -> SlipstreamError:
    with pytest.raises(SlipstreamError) as caught:
        resolve(repository, revision, QUICK)
    return caught.value


def test_a_revision_is_a_commit(hub: Hub, commit: str) -> None:
    hub.repository(REPOSITORY).tags["v1"] = commit
    hub.repository(REPOSITORY).branches["refs/pr/1"] = commit
    moved = hub.add(REPOSITORY, NAME, CONTENT + b"new")
    assert resolve(REPOSITORY) == resolve(REPOSITORY, "main") == moved != commit
    assert resolve(REPOSITORY, "v1") == resolve(REPOSITORY, "refs/pr/1") == resolve(REPOSITORY, commit) == commit


def test_one_call_tells_files_and_commit(hub: Hub, commit: str) -> None:
    view = list_repository(REPOSITORY)
    assert (view.repository, view.commit) == (REPOSITORY, commit)
    assert [(c.file, c.role, c.size_bytes) for c in view.candidates] == [(NAME, Role.MODEL, 1000)]
    assert len(hub.requests) == 1
    assert hub.requests[0].headers["user-agent"].startswith("slipstream/")


def test_a_file_is_known_before_it_is_fetched(hub: Hub, commit: str) -> None:
    [file] = remote_files(source(), commit)
    assert (file.name, file.path, file.size_bytes) == (NAME, NAME, 1000)
    assert file.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert file.token_host == hub.url and file.url == f"{hub.url}/{REPOSITORY}/resolve/{commit}/{NAME}"
    assert "resolve" not in repr(file)
    assert len(hub.requests) == 1


def test_a_small_file_of_git_has_no_digest(hub: Hub, commit: str) -> None:
    [file] = remote_files(source("README.md"), commit)
    assert (file.size_bytes, file.sha256) == (6, None)


def test_any_shard_brings_all_in_order_from_one_listing(hub: Hub) -> None:
    for path in SHARDS:
        commit = hub.add(REPOSITORY, path, CONTENT)
    files = remote_files(source(SHARDS[1]), commit)
    assert [file.path for file in files] == SHARDS
    assert [file.name for file in files] == [path.removeprefix("big/") for path in SHARDS]
    assert len(hub.requests) == 1


def test_a_missing_shard_is_refused_before_any_byte(hub: Hub) -> None:
    for path in SHARDS[:1] + SHARDS[2:]:
        commit = hub.add(REPOSITORY, path, CONTENT)
    with pytest.raises(SlipstreamError, match="lacks 1 of the shards") as caught:
        remote_files(source(SHARDS[0]), commit)
    assert caught.value.code is Code.SOURCE_NOT_FOUND and caught.value.details == {"missing": [SHARDS[1]]}
    assert hub.asked("content") == []


def test_a_commit_holds_while_the_branch_moves(hub: Hub, commit: str) -> None:
    hub.add(REPOSITORY, NAME, CONTENT + b"new")
    assert remote_files(source(), commit)[0].size_bytes == 1000


@pytest.mark.parametrize("file, near", [("toy.ggfu", NAME), (f"MTP/{NAME}", NAME), ("zzz", None)])
def test_a_file_that_is_not_there(hub: Hub, commit: str, file: str, near: str | None) -> None:
    with pytest.raises(SlipstreamError, match=f"has no file '{file}'") as caught:
        remote_files(source(file), commit)
    assert caught.value.code is Code.SOURCE_NOT_FOUND
    assert (near in (caught.value.hint or "")) if near else caught.value.hint is None


def test_a_revision_that_is_not_there(hub: Hub, commit: str) -> None:
    error = refused(revision="mian")
    assert error.code is Code.SOURCE_NOT_FOUND and "no branch, tag or commit 'mian'" in error.message
    assert error.hint == "it has main"


def test_a_repository_that_is_not_there(hub: Hub, commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused("acme/gone")
    assert error.code is Code.SOURCE_GATED and "gated or private, or does not exist" in error.message
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.tokens.add(TOKEN)
    error = refused("acme/gone")
    assert error.code is Code.SOURCE_NOT_FOUND and "has no repository 'acme/gone'" in error.message


def test_a_private_repository_opens_with_its_token(hub: Hub, commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gate(REPOSITORY, "private", TOKEN)
    error = refused()
    assert error.code is Code.SOURCE_GATED and "HF_TOKEN" in (error.hint or "")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert resolve(REPOSITORY) == commit


def test_a_token_that_the_hub_does_not_know_is_told(hub: Hub, commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    error = refused()
    assert error.code is Code.SOURCE_GATED and "a token that the hub does not know" in error.message
    assert TOKEN not in str(error.problem())


def test_a_gated_repository_is_listed_all_the_same(hub: Hub, commit: str) -> None:
    hub.gate(REPOSITORY, "gated", TOKEN)
    assert list_repository(REPOSITORY).commit == commit


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_hub_is_asked_again(hub: Hub, commit: str, status: int) -> None:
    hub.fault(Kind.STATUS, status=status, times=2, on_api=True)
    assert resolve(REPOSITORY, limits=QUICK) == commit


def test_a_busy_hub_says_when(hub: Hub, commit: str) -> None:
    hub.fault(Kind.STATUS, status=429, retry_after="1", on_api=True)
    began = time.monotonic()
    assert resolve(REPOSITORY, limits=QUICK) == commit
    assert time.monotonic() - began >= 1.0


def test_a_hub_that_stays_busy_is_given_up(hub: Hub, commit: str) -> None:
    hub.fault(Kind.STATUS, status=503, times=50, on_api=True)
    error = refused()
    assert error.code is Code.SOURCE_FAILED and "the hub answered 503, 4 times in a row" in error.message


def test_a_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "*")
    with pytest.raises(SlipstreamError, match="the hub cannot be reached") as caught:
        resolve(REPOSITORY, limits=replace(QUICK, retries=1))
    assert caught.value.code is Code.SOURCE_FAILED


def test_what_is_no_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.plain[f"/api/models/{REPOSITORY}"] = hub.file_of(b"<html>hello</html>")
    assert "did not answer as a Hugging Face hub does" in refused().message


def test_a_proxy_that_nobody_here_speaks_to_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://far.example")
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert "proxy of the kind 'socks5'" in refused().message


def test_a_certificate_that_nobody_trusts_is_told_at_once(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    with scripted(certificate) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"https://127.0.0.1:{server.server_port}")
        error = refused()
    assert "certificate of 127.0.0.1 is not trusted" in error.message and "SSL_CERT_FILE" in (error.hint or "")


def test_a_mirror_may_have_a_path(hub: Hub, commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.prefix = "/mirror/of"
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    [file] = remote_files(source(), resolve(REPOSITORY))
    assert file.url == f"{hub.url}/{REPOSITORY}/resolve/{commit}/{NAME}"
    with RemoteBytes(file, QUICK) as content:
        assert content.read_at(0, len(CONTENT)) == CONTENT
    assert f"{REPOSITORY!r}" not in refused("acme/gone").message and "mirror/of" not in refused("acme/gone").message


def test_a_repository_that_was_renamed_is_found(hub: Hub, commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.gate(REPOSITORY, "private", TOKEN)
    hub.rename(REPOSITORY, "other/name")
    [file] = remote_files(source(), resolve(REPOSITORY))
    with RemoteBytes(file, QUICK) as content:
        assert content.read_at(0, len(CONTENT)) == CONTENT
    assert {r.host for r in hub.requests if "authorization" in r.headers} == {"hub"}


@pytest.mark.parametrize("name", ["acme/../x", "a/b/c", "acme/toy--x", "-/-"])
def test_a_name_that_is_none(hub: Hub, name: str) -> None:
    assert refused(name).code is Code.INVALID_REQUEST
    assert hub.requests == []
