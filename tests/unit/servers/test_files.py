import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import ModelSpec, PathSource, Problem
from orchestrator.servers import ModelFiles
from orchestrator.store import graft_place
from tests.support import ToyBox
from tests.toys import split_mtp

PROBLEM = Problem(severity="error", code="unreadable", message="target.gguf cannot be read")


def spec(**fields: Any) -> ModelSpec:
    return ModelSpec.model_validate({"name": "m", "source": {"path": "target.gguf"}} | fields)


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    return ModelFiles(tmp_path, tmp_path / "cache")


@pytest.fixture
def parts(files: ModelFiles, toys: ToyBox) -> ModelFiles:
    """Trunk, drafter and donor of the MTP toy beside the model files, the toy itself as target.gguf."""
    made = split_mtp(toys.mtp().path, files.models_dir)
    for path, name in ((made.trunk, "trunk"), (made.drafter, "drafter"), (made.donor, "donor")):
        path.rename(files.models_dir / f"{name}.gguf")
    shutil.copy(toys.mtp().path, files.models_dir / "target.gguf")
    return files


def refusal(files: ModelFiles, model: ModelSpec) -> SlipstreamError:
    with pytest.raises(SlipstreamError) as caught:
        files.resolve(model)
    return caught.value


def test_where_the_files_lie(parts: ModelFiles) -> None:
    mtp = {"speculation": {"type": "draft-mtp"}}
    whole = parts.resolve(spec(**mtp))
    assert (whole.target, whole.drafter) == (parts.models_dir / "target.gguf", None)
    pair = parts.resolve(spec(source={"path": "trunk.gguf"}, drafter={"path": "drafter.gguf"}, **mtp))
    assert (pair.target.name, pair.drafter) == ("trunk.gguf", parts.models_dir / "drafter.gguf")


def test_what_is_missing_is_named_and_how_it_is_brought(files: ModelFiles) -> None:
    model = spec(drafter={"path": "drafter.gguf"})
    assert files.missing(model) == ("target.gguf", "drafter.gguf")
    (files.models_dir / "target.gguf").touch()
    error = refusal(files, model)
    assert (error.code, error.details) == (Code.MODEL_INCOMPLETE, {"missing": ["drafter.gguf"]})
    assert "drafter.gguf" in error.message and "target.gguf" not in error.message
    assert error.hint is not None and "slipstream pull m" in error.hint
    assert str(files.models_dir) not in error.message


def test_a_missing_shard_is_missing(files: ModelFiles) -> None:
    (files.models_dir / "big-00001-of-00003.gguf").touch()
    model = spec(source={"path": "big-00001-of-00003.gguf"})
    assert files.missing(model) == ("big-00002-of-00003.gguf", "big-00003-of-00003.gguf")


def test_a_graft_is_missing_until_it_is_made(parts: ModelFiles) -> None:
    model = spec(source={"path": "trunk.gguf"}, graft={"donor": {"path": "donor.gguf"}})
    assert parts.missing(model) == ("the graft of trunk.gguf and donor.gguf",)
    base, donor = (parts.layout.place(s) for s in (model.source, model.graft.donor if model.graft else model.source))
    assert base is not None and donor is not None
    place = graft_place(parts.layout, base, donor)
    place.folder.mkdir(parents=True)
    shutil.copy(parts.models_dir / "target.gguf", place.path)
    assert parts.missing(model), "the record is written last: without it the file may be half of one"
    place.record(base, donor)
    assert parts.resolve(model).target == place.path
    assert place.path in set(parts.references(model))


def test_a_donor_that_has_changed_asks_for_a_new_graft(parts: ModelFiles) -> None:
    base, donor = (parts.layout.place(spec(source={"path": f"{n}.gguf"}).source) for n in ("trunk", "donor"))
    assert base is not None and donor is not None
    before = graft_place(parts.layout, base, donor)
    with donor.path.open("ab") as file:
        file.write(b"more")
    assert graft_place(parts.layout, base, donor).path != before.path


def test_a_file_that_cannot_draft_is_refused_before_anything_starts(parts: ModelFiles) -> None:
    error = refusal(parts, spec(source={"path": "trunk.gguf"}, speculation={"type": "draft-mtp"}))
    assert error.code is Code.PREFLIGHT_FAILED
    assert error.details["problems"]


def test_no_gguf_is_refused(files: ModelFiles) -> None:
    (files.models_dir / "target.gguf").write_text("<html>not a model</html>")
    assert refusal(files, spec()).code in (Code.PREFLIGHT_FAILED, Code.INVALID_GGUF)


def test_a_file_that_changes_is_looked_at_again(parts: ModelFiles) -> None:
    model = spec(speculation={"type": "draft-mtp"})
    parts.resolve(model)
    (parts.models_dir / "target.gguf").write_bytes(b"GGUF and then nothing of use")
    refusal(parts, model)


def test_a_folder_named_blobs_is_no_digest(tmp_path: Path, toys: ToyBox) -> None:
    """Only a name that is a digest says what the bytes are."""
    files, folder = ModelFiles(tmp_path, tmp_path / "cache"), tmp_path / "blobs"
    folder.mkdir()
    for name in ("base", "donor"):
        shutil.copy(toys.mtp().path, folder / f"{name}.gguf")
    base, donor = (files.layout.place(PathSource(path=f"blobs/{name}.gguf")) for name in ("base", "donor"))
    assert base is not None and donor is not None
    before = graft_place(files.layout, base, donor)
    with base.path.open("ab") as file:
        file.write(b"more")
    assert graft_place(files.layout, base, donor) != before


def test_a_refusal_is_not_kept(parts: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be read for want of descriptors, or of rights to a folder, may be readable the next time."""
    with monkeypatch.context() as patched:
        patched.setattr("orchestrator.servers.files.preflight", lambda *_, **__: (PROBLEM,))
        assert refusal(parts, spec()).code is Code.PREFLIGHT_FAILED
    assert parts.resolve(spec()).warnings == ()


def test_another_shard_that_changes_is_looked_at_again(parts: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = [parts.models_dir / f"s-0000{i}-of-00002.gguf" for i in (1, 2)]
    for shard in shards:
        shutil.copy(parts.models_dir / "target.gguf", shard)
    asked: list[Path] = []

    def preflight(target: Path, *_: object, **__: object) -> tuple[Problem, ...]:
        asked.append(target)
        return ()

    monkeypatch.setattr("orchestrator.servers.files.preflight", preflight)
    model = spec(source={"path": shards[0].name})
    for _ in range(2):
        parts.resolve(model)
    shards[1].write_bytes(b"changed")
    parts.resolve(model)
    assert asked == [shards[0]] * 2


def test_a_file_that_goes_meanwhile_is_missing(parts: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    find = ModelFiles._find

    def found(files: ModelFiles, model: ModelSpec) -> Any:
        answer = find(files, model)
        (parts.models_dir / "target.gguf").unlink()
        return answer

    monkeypatch.setattr(ModelFiles, "_find", found)
    error = refusal(parts, spec())
    assert (error.code, error.details) == (Code.MODEL_INCOMPLETE, {"missing": ["target.gguf"]})


def test_what_another_build_may_know_is_a_warning(parts: ModelFiles, tmp_path: Path) -> None:
    toy = (parts.models_dir / "target.gguf").read_bytes()
    newer = toy.replace(b"glm4moe", b"glm9moe")
    (parts.models_dir / "newer.gguf").write_bytes(newer)
    model = spec(source={"path": "newer.gguf"})
    assert refusal(parts, model).code is Code.PREFLIGHT_FAILED
    elsewhere = ModelFiles(parts.models_dir, parts.cache, is_pinned=False)
    assert any("glm9moe" in warning for warning in elsewhere.resolve(model).warnings)
