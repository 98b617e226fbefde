from pathlib import Path

import pytest

from orchestrator.catalog import load_catalog
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import FileProblem, HfSource, PathSource, PypiSource
from tests import REPOSITORY


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.yaml").write_text(text)


def only_problem(folder: Path) -> FileProblem:
    [problem] = load_catalog(folder).problems
    return problem


def test_our_own_models_are_valid() -> None:
    catalog = load_catalog(REPOSITORY / "models")
    assert catalog.problems == ()
    assert set(catalog.models) == {"smollm2-135m", "gemma-4-e2b", "ornith-1.0-35b"}
    assert isinstance(catalog.get("smollm2").source, PypiSource)
    assert isinstance(catalog.get("gemma").source, HfSource)
    assert catalog.get("ornith").graft is not None


def test_files_are_read_again_only_when_one_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a", "name: a\nsource: {path: a.gguf}\n")
    first = load_catalog(tmp_path)
    assert load_catalog(tmp_path, first) is not first, "so new that a second change could go unseen"
    monkeypatch.setattr("orchestrator.catalog.load._SETTLED_NANOSECONDS", 0)
    settled = load_catalog(tmp_path, first)
    assert load_catalog(tmp_path, settled) is settled
    (tmp_path / "a.yaml").chmod(0o600)
    again = load_catalog(tmp_path, settled)
    assert again is not settled and again.models == settled.models
    (tmp_path / "a.yaml").unlink()
    assert load_catalog(tmp_path, again).models == {}


def test_values_keep_their_types(tmp_path: Path) -> None:
    write(
        tmp_path,
        "a",
        "name: a\nsource: {path: x.gguf}\n"
        "server: {ctx_size: 4096, temp: 0.5, kv_unified: true, flash_attn: on, tensor_split: '3,1'}\n",
    )
    spec = load_catalog(tmp_path).get("a")
    assert spec.server == {"ctx_size": 4096, "temp": 0.5, "kv_unified": True, "flash_attn": "on", "tensor_split": "3,1"}
    assert [type(v) for v in spec.server.values()][2] is bool
    assert spec.source == PathSource(path="x.gguf")


def test_a_wrong_file_hides_no_other(tmp_path: Path) -> None:
    write(tmp_path, "a", "name: a\nsource: {path: x.gguf}\n")
    write(tmp_path, "b", "name: b\nsauce: {path: x.gguf}\n")
    catalog = load_catalog(tmp_path)
    assert list(catalog.models) == ["a"]
    assert {problem.file for problem in catalog.problems} == {"b.yaml"}


@pytest.mark.parametrize(
    "text, line, column, word",
    [
        ("name: a\nsource: {path: x}\nspeculaton: {type: none}\n", 3, 1, "speculaton"),
        ("name: a\nsource: {path: x}\nspeculation:\n  type: none\n  n_mx: 3\n", 5, 3, "speculation.n_mx"),
        ("name: a\nsource: {path: x}\nspeculation: {type: none, p_min: 2}\n", 3, 27, "speculation.p_min"),
        ("name: a b\nsource: {path: x}\n", 1, 1, "name"),
        ("name: a\nsource:\n  pypi: x==1\n  file: ../x\n  sha256: '0'\n", 4, 3, "source.file"),
        ("name: a\nsource: {path: x}\naliases: [ok, 'not ok']\n", 3, 15, "aliases.1"),
    ],
)
def test_line_and_column_of_what_is_wrong(tmp_path: Path, text: str, line: int, column: int, word: str) -> None:
    write(tmp_path, "a", text)
    places = {(p.line, p.column): p.message for p in load_catalog(tmp_path).problems}
    assert (line, column) in places, places
    assert places[line, column].startswith(word)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a", "name: a\n")
    assert only_problem(tmp_path).message == "source: Field required"


@pytest.mark.parametrize(
    "text, line, word",
    [
        ("name: [a\n", 2, "expected"),
        ("name: a\nname: b\nsource: {path: x}\n", 2, "duplicate key"),
        ("- a\n- b\n", 1, "mapping"),
        ("", 1, "mapping"),
        ("name: !!python/object:os.system x\n", None, ""),
    ],
)
def test_what_is_no_model_file_is_told(tmp_path: Path, text: str, line: int | None, word: str) -> None:
    write(tmp_path, "a", text)
    problem = load_catalog(tmp_path).problems[0]
    assert word in problem.message
    assert line is None or problem.line == line


def test_bytes_that_are_no_text_are_told_without_a_path(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"name: \xff\xfe\n")
    (tmp_path / "b.yaml").symlink_to(tmp_path / "gone")
    problems = load_catalog(tmp_path).problems
    assert [problem.file for problem in problems] == ["a.yaml", "b.yaml"]
    assert str(tmp_path) not in problems[0].message + problems[1].message


def test_a_name_belongs_to_one_model(tmp_path: Path) -> None:
    write(tmp_path, "a", "name: a\nsource: {path: x}\naliases: [short]\n")
    write(tmp_path, "b", "name: b\nsource: {path: x}\naliases: [short]\n")
    catalog = load_catalog(tmp_path)
    assert list(catalog.models) == ["a"]
    assert "'short' already belongs to the model 'a'" in catalog.problems[0].message


def test_drafter_and_graft_exclude_each_other(tmp_path: Path) -> None:
    write(tmp_path, "a", "name: a\nsource: {path: x}\ndrafter: {path: y}\ngraft: {donor: {path: z}}\n")
    assert "exclude each other" in only_problem(tmp_path).message


def test_request_defaults_must_be_json(tmp_path: Path) -> None:
    write(tmp_path, "a", "name: a\nsource: {path: x}\ndefaults: {seed: 2026-01-01}\n")
    assert "defaults" in only_problem(tmp_path).message


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    write(tmp_path, "a", "name: a\nsource: {path: x}\n")
    with pytest.raises(SlipstreamError, match="no model 'b'; known models: a") as caught:
        load_catalog(tmp_path).get("b")
    assert caught.value.code is Code.MODEL_NOT_FOUND


@pytest.mark.parametrize("file", ["/abs", "a/../../b", "..", "a\\b", ""])
def test_a_file_inside_a_source_stays_inside(tmp_path: Path, file: str) -> None:
    write(tmp_path, "a", f"name: a\nsource: {{hf: o/n, file: '{file}'}}\n")
    assert load_catalog(tmp_path).problems


@pytest.mark.parametrize(
    "text",
    [
        "a: 2024-13-45",
        "a: !!int x",
        "a: !!bool x",
        "!tag x",
        "a: 1" + "0" * 5000,
        "a: " + "[" * 1200,
        "name: b\nsource: &s {path: 3}\ndrafter: {<<: *s}",
        'name: b\nsource: {path: a}\ndefaults: {x: "\\uD800"}',
        "name: b\nsource: {path: a}\ndefaults: {x: .nan}",
        "name: b\nsource: {path: a}\nserver: {x: .inf}",
        'name: b\nsource: {path: "a\\0b"}',
        f"name: b\nsource: {{hf: o/n, file: {'x' * 256}}}",
    ],
)
def test_whatever_stands_in_a_file_hides_no_other(tmp_path: Path, text: str) -> None:
    write(tmp_path, "a", "name: a\nsource: {path: a.gguf}\n")
    write(tmp_path, "b", text)
    catalog = load_catalog(tmp_path)
    assert set(catalog.models) == {"a"}
    assert {problem.file for problem in catalog.problems} == {"b.yaml"}
