import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestrator.catalog import Catalog, delete_model, load_catalog, write_model
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import ModelSpec

TEXT = """\
# What this model is for.
name: a
source: {path: a.gguf}   # lies beside
speculation:
  type: draft-mtp  # the head is inside
  n_max: 2
aliases: [first]
"""


def spec(**fields: Any) -> ModelSpec:
    return ModelSpec.model_validate({"name": "a", "source": {"path": "a.gguf"}} | fields)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "a.yaml").write_text(TEXT)
    return load_catalog(tmp_path)


def test_a_new_file_reads_back_as_it_was_meant(tmp_path: Path) -> None:
    wanted = spec(
        name="new",
        drafter={"hf": "o/n", "file": "MTP/d.gguf", "revision": "0" * 40},
        speculation={"type": "draft-mtp", "n_max": 2},
        server={"ctx_size": 4096, "flash_attn": "auto", "mlock": True},
        defaults={"temperature": 0.5, "stop": ["\n", "no"]},
        aliases=["newest"],
    )
    path = write_model(load_catalog(tmp_path), wanted, "Written by a test.\nOn two lines.")
    assert path.name == "new.yaml" and path.stat().st_mode & 0o777 == 0o644
    assert path.read_text().startswith("# Written by a test.\n# On two lines.\nname: new\n")
    assert load_catalog(tmp_path).models == {"new": wanted}
    assert os.listdir(tmp_path) == ["new.yaml"]


def test_a_change_keeps_everything_else_comments_included(catalog: Catalog) -> None:
    changed = catalog.models["a"].model_copy(update={"aliases": ("first", "second")})
    path = write_model(catalog, changed)
    assert path.read_text() == TEXT.replace("[first]", "[first, second]")
    deeper = spec(speculation={"type": "draft-mtp", "n_max": 4}, aliases=["first", "second"])
    write_model(load_catalog(catalog.folder), deeper)
    assert path.read_text() == TEXT.replace("[first]", "[first, second]").replace("n_max: 2", "n_max: 4")


def test_what_is_dropped_is_gone(catalog: Catalog) -> None:
    path = write_model(catalog, spec())
    assert "speculation" not in path.read_text() and "# lies beside" in path.read_text()
    assert load_catalog(catalog.folder).models["a"] == spec()


def test_the_same_again_changes_no_byte(catalog: Catalog) -> None:
    path = write_model(catalog, catalog.models["a"])
    assert path.read_text() == TEXT


def test_a_model_is_found_in_a_file_of_another_name(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(TEXT)
    assert write_model(load_catalog(tmp_path), spec()).name == "other.yaml"
    assert os.listdir(tmp_path) == ["other.yaml"]


@pytest.mark.parametrize(
    "fields", [{"name": "first"}, {"name": "b", "aliases": ["a"]}, {"name": "b", "aliases": ["first"]}]
)
def test_a_name_that_is_taken_is_a_conflict(catalog: Catalog, fields: dict[str, Any]) -> None:
    with pytest.raises(SlipstreamError) as caught:
        write_model(catalog, spec(**fields))
    assert caught.value.code is Code.CONFLICT
    assert os.listdir(catalog.folder) == ["a.yaml"]


def test_a_file_with_an_error_is_not_written_over(catalog: Catalog) -> None:
    broken = catalog.folder / "b.yaml"
    broken.write_text("name: b\nsource: {}\n")
    with pytest.raises(SlipstreamError, match=r"b\.yaml"):
        write_model(load_catalog(catalog.folder), spec(name="b"))
    assert broken.read_text() == "name: b\nsource: {}\n"


def test_a_folder_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SlipstreamError) as caught:
        write_model(load_catalog(tmp_path / "file"), spec())
    assert caught.value.code is Code.MISCONFIGURED and caught.value.hint
    assert str(tmp_path) not in caught.value.message


def test_delete_by_alias(catalog: Catalog) -> None:
    delete_model(catalog, "first")
    assert os.listdir(catalog.folder) == []
    with pytest.raises(SlipstreamError, match="no model 'nobody'"):
        delete_model(catalog, "nobody")


@pytest.mark.parametrize(
    "text",
    [
        "name: a\nsource: &s {path: a.gguf}\ndrafter: *s\n",
        "name: a\nsource: {path: a.gguf}\nserver: &x {ctx_size: 3}\ndefaults: *x\n",
    ],
)
def test_a_change_that_would_not_read_back_is_not_made(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    wanted = spec(drafter={"path": "other.gguf"}, server={"ctx_size": 4}, defaults={"top_k": [1]})
    with pytest.raises(SlipstreamError, match="would not read back") as caught:
        write_model(load_catalog(tmp_path), wanted)
    assert caught.value.code is Code.CONFLICT and path.read_text() == text


def test_a_file_that_is_broken_since_it_was_read_is_left_alone(catalog: Catalog) -> None:
    path = catalog.folder / "a.yaml"
    path.write_text("name: [")
    with pytest.raises(SlipstreamError) as caught:
        write_model(catalog, spec())
    assert caught.value.code is Code.CONFLICT and path.read_text() == "name: ["


def test_a_comment_is_a_comment_whatever_it_says(tmp_path: Path) -> None:
    catalog = load_catalog(tmp_path)
    write_model(catalog, spec(), "one\ntwo\rname: b\x85name: c\u2028name: d\x00\x1b[0m")
    written = load_catalog(tmp_path)
    assert written.models == {"a": spec()} and written.problems == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(defaults=st.dictionaries(st.text(), JSON, max_size=3), flag=st.text() | st.floats() | st.integers())
def test_what_a_request_can_say_reads_back(defaults: dict[str, Any], flag: str | float) -> None:
    with TemporaryDirectory() as folder:
        try:
            wanted = spec(defaults=defaults, server={"flag": flag})
        except ValidationError:
            return
        write_model(load_catalog(Path(folder)), wanted)
        assert load_catalog(Path(folder)).models == {"a": wanted}
