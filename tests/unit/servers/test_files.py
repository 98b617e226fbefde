from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import ModelSpec
from orchestrator.servers import ModelFiles


def spec(**fields: Any) -> ModelSpec:
    return ModelSpec.model_validate({"name": "m", "source": {"path": "target.gguf"}} | fields)


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    return ModelFiles(tmp_path, tmp_path / "cache")


def test_where_the_files_lie(files: ModelFiles) -> None:
    model = spec(drafter={"path": "drafter.gguf"})
    assert files.target(model) == files.models_dir / "target.gguf"
    assert files.drafter(model) == files.models_dir / "drafter.gguf"
    assert files.drafter(spec()) is None


def test_what_is_missing_and_what_is_fetched(files: ModelFiles) -> None:
    model = spec(drafter={"path": "drafter.gguf"})
    assert [path.name for _, path in files.missing(model)] == ["target.gguf", "drafter.gguf"]
    (files.models_dir / "target.gguf").touch()
    assert [path.name for _, path in files.missing(model)] == ["drafter.gguf"]
    assert files.fetch(model) is not None
    (files.models_dir / "drafter.gguf").touch()
    assert files.fetch(model) is None


async def test_a_fetch_names_the_file_that_cannot_be_brought(files: ModelFiles) -> None:
    (files.models_dir / "target.gguf").touch()
    fetch = files.fetch(spec(drafter={"path": "drafter.gguf"}))
    assert fetch is not None
    with pytest.raises(SlipstreamError, match=r"drafter\.gguf"):
        await fetch(lambda done, total: None)


def test_a_graft_is_not_made_by_this_version(files: ModelFiles) -> None:
    with pytest.raises(SlipstreamError) as caught:
        files.target(spec(graft={"donor": {"path": "head.gguf"}}))
    assert caught.value.code is Code.SOURCE_UNSUPPORTED
    assert caught.value.hint
