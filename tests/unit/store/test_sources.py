from pathlib import Path

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import HfSource, PathSource, PypiSource, Source
from orchestrator.store import bring, is_present, locate

MODELS, CACHE = Path("/m"), Path("/c")
SHA = "0" * 64


@pytest.mark.parametrize(
    "source, path",
    [
        (PathSource(path="a/b.gguf"), "/m/a/b.gguf"),
        (PathSource(path="/x/b.gguf"), "/x/b.gguf"),
        (PypiSource(pypi="p==1", file="d/f.gguf", sha256=SHA), "/c/models/pypi/p==1/d/f.gguf"),
        (HfSource(hf="o/n", file="d/f.gguf"), "/c/models/hf/o/n/main/d/f.gguf"),
        (HfSource(hf="o/n", file="f.gguf", revision="abc"), "/c/models/hf/o/n/abc/f.gguf"),
    ],
)
def test_locate(source: Source, path: str) -> None:
    assert locate(source, MODELS, CACHE) == Path(path)


def test_locate_starts_at_home_and_at_the_current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert locate(PathSource(path="~/b.gguf"), MODELS, CACHE) == Path("/home/me/b.gguf")
    assert locate(PathSource(path="b.gguf"), Path("models"), CACHE) == Path.cwd() / "models" / "b.gguf"


@pytest.mark.parametrize("revision", ["..", "../../x", "a/../../../x", "/abs"])
def test_a_revision_stays_inside_the_cache(revision: str) -> None:
    try:
        source = HfSource(hf="o/n", file="f.gguf", revision=revision)
    except ValueError:
        return
    path = locate(source, MODELS, CACHE)
    assert ".." not in path.parts and path.is_relative_to(CACHE / "models" / "hf" / "o" / "n")


@pytest.mark.parametrize("repository", ["../..", "./x", "x/.."])
def test_a_repository_stays_inside_the_cache(repository: str) -> None:
    with pytest.raises(ValueError):
        HfSource(hf=repository, file="f.gguf")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert not is_present(tmp_path)
    assert not is_present(tmp_path / "gone")
    (tmp_path / "x").touch()
    assert is_present(tmp_path / "x")


@pytest.mark.parametrize(
    "source, code",
    [(PathSource(path="gone.gguf"), Code.SOURCE_FAILED), (HfSource(hf="o/n", file="f"), Code.SOURCE_UNSUPPORTED)],
)
async def test_what_cannot_be_brought_says_what_to_do(tmp_path: Path, source: Source, code: Code) -> None:
    with pytest.raises(SlipstreamError) as caught:
        await bring(source, tmp_path / "x", lambda done, total: None)
    assert caught.value.code is code
    assert caught.value.hint
    assert str(tmp_path) not in caught.value.message
