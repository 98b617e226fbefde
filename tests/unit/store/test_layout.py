from pathlib import Path

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import HfSource, OllamaSource, PathSource, PypiSource, Source, UrlSource
from orchestrator.store.layout import Layout, name_of, shard_urls
from tests.support.ollama_store import OllamaStoreMaker

SHA = "0" * 64
COMMIT = "c0ffee" * 6 + "c0ff"
SHARDS = tuple(f"big-0000{i}-of-00003.gguf" for i in (1, 2, 3))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "models", tmp_path / "cache")


def relative(layout: Layout, source: Source) -> str:
    place = layout.place(source)
    assert place is not None and place.files == (place.path,)
    return str(place.path.relative_to(layout.root))


@pytest.mark.parametrize(
    "source, path",
    [
        (PypiSource(pypi="p==1", file="d/f.gguf", sha256=SHA), "pypi/p==1/d/f.gguf"),
        (HfSource(hf="o/n", file="MTP/f.gguf", revision=COMMIT), f"hf/o/n/{COMMIT}/MTP/f.gguf"),
        (HfSource(hf="o/n", file="./f.gguf", revision=COMMIT), f"hf/o/n/{COMMIT}/f.gguf"),
    ],
)
def test_each_source_has_its_place(layout: Layout, source: Source, path: str) -> None:
    assert relative(layout, source) == path


def test_a_path_starts_at_the_folder_of_model_files_or_at_home(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    places = {text: layout.place(PathSource(path=text)) for text in ("a/b.gguf", "/x/b.gguf", "~/b.gguf", "/", "..")}
    paths = {text: str(place.path) for text, place in places.items() if place}
    assert paths == {
        "a/b.gguf": f"{layout.models_dir}/a/b.gguf",
        "/x/b.gguf": "/x/b.gguf",
        "~/b.gguf": "/home/me/b.gguf",
        "/": "/",
        "..": f"{layout.models_dir}/..",
    }
    assert layout.missing(PathSource(path="~nobody-of-this-name/b.gguf")) == ("b.gguf",)


def test_a_relative_folder_of_model_files_is_that_we_were_started_in() -> None:
    place = Layout(Path("models"), Path("/c")).place(PathSource(path="b.gguf"))
    assert place is not None and place.path == Path.cwd() / "models" / "b.gguf"


@pytest.mark.parametrize("named", SHARDS)
def test_any_shard_stands_for_all(layout: Layout, named: str) -> None:
    sources: list[Source] = [
        PathSource(path=f"d/{named}"),
        HfSource(hf="o/n", file=f"Q4/{named}", revision=COMMIT),
        UrlSource(url=f"https://h/x/{named}?download=true"),
    ]
    for source in sources:
        place = layout.place(source)
        assert place is not None and place.path == place.files[0]
        assert tuple(file.name for file in place.files) == SHARDS
        assert len({file.parent for file in place.files}) == 1
        assert place == layout.place(source.model_copy(update={}))
        assert layout.missing(source) == SHARDS


def test_missing_names_what_is_not_there(layout: Layout) -> None:
    source = HfSource(hf="o/n", file=f"Q4/{SHARDS[0]}", revision=COMMIT)
    place = layout.place(source)
    assert place is not None
    place.path.parent.mkdir(parents=True)
    place.files[0].write_bytes(b"x")
    place.files[1].mkdir()
    place.files[2].symlink_to("gone")
    assert layout.missing(source) == SHARDS[1:]


def test_a_branch_has_a_place_once_it_was_resolved(layout: Layout) -> None:
    for revision in (None, "main", "refs/pr/3"):
        source = HfSource(hf="o/n", file=f"Q4/{SHARDS[1]}", revision=revision)
        assert layout.missing(source) == SHARDS
    assert layout.place(HfSource(hf="o/n", file="f.gguf")) is None
    layout.refs.record("o/n", None, COMMIT)
    assert relative(layout, HfSource(hf="o/n", file="f.gguf")) == f"hf/o/n/{COMMIT}/f.gguf"
    assert relative(layout, HfSource(hf="o/n", file="f.gguf", revision="main")) == f"hf/o/n/{COMMIT}/f.gguf"
    assert layout.place(HfSource(hf="o/n", file="f.gguf", revision="dev")) is None


def test_an_address_has_a_folder_of_its_own(layout: Layout) -> None:
    urls = ("https://h/a/f.gguf", "https://h/b/f.gguf", "https://h/a/f.gguf?x=1")
    paths = [relative(layout, UrlSource(url=url)) for url in urls]
    assert len(set(paths)) == 3
    assert all(path.startswith("url/") and path.endswith("/f.gguf") for path in paths)


@pytest.mark.parametrize(
    "url, name",
    [
        ("https://h/a/b%20c.gguf?token=x#y", "b c.gguf"),
        ("https://h/", "file"),
        ("https://h/a/..", "file"),
        ("https://h/a/%2e%2e%2fetc%2fpasswd", "_etc_passwd"),
        ("https://h/a/.hidden", "hidden"),
        ("https://h/%00", "_"),
        ("https://h/" + "long" * 100 + ".gguf", ("long" * 100 + ".gguf")[-200:]),
        ("https://h/\udcff.gguf", "?.gguf"),
    ],
)
def test_the_name_in_an_address_is_made_fit_for_a_folder(url: str, name: str) -> None:
    assert name_of(url) == name


def test_shards_of_an_address_keep_its_query() -> None:
    assert shard_urls("https://h/f-00002-of-00002.gguf?a=1") == (
        "https://h/f-00001-of-00002.gguf?a=1",
        "https://h/f-00002-of-00002.gguf?a=1",
    )
    assert shard_urls("https://h/f.gguf?a=-00001-of-00002.gguf") == ("https://h/f.gguf?a=-00001-of-00002.gguf",)


@pytest.mark.parametrize(
    "source",
    [
        HfSource.model_construct(hf="o/n", file="../../../../f", revision=COMMIT),
        HfSource.model_construct(hf="../..", file="f", revision=COMMIT),
        HfSource.model_construct(hf="o/n", file="f", revision="../x"),
        HfSource.model_construct(hf="o/n", file="/etc/passwd", revision=COMMIT),
        HfSource.model_construct(hf="o/n", file="a\0b", revision=COMMIT),
        PypiSource.model_construct(pypi="..", file="f", sha256=SHA),
        PypiSource.model_construct(pypi="p==1", file="a/../../../f", sha256=SHA),
    ],
)
def test_no_place_leaves_the_store_even_past_the_schema(layout: Layout, source: Source) -> None:
    with pytest.raises(SlipstreamError) as caught:
        layout.place(source)
    assert caught.value.code is Code.INVALID_REQUEST


def test_what_an_older_version_brought_stays_valid(layout: Layout) -> None:
    source = PypiSource(pypi="p==1", file="d/f.gguf", sha256=SHA)
    old = layout.root / "pypi" / "p==1" / "d" / "f.gguf"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"GGUF")
    assert layout.missing(source) == ()


def test_a_model_of_ollama_lies_where_ollama_has_it(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    assert layout.place(OllamaSource(ollama="toy")) is None
    OllamaStoreMaker(tmp_path / "ollama").create("toy", model=b"GGUF target", draft=b"GGUF drafter")
    contents = {}
    for layer in ("model", "drafter"):
        source = OllamaSource.model_validate({"ollama": "toy", "layer": layer})
        place = layout.place(source)
        assert place is not None and layout.missing(source) == ()
        contents[layer] = place.path.read_bytes()
    assert contents == {"model": b"GGUF target", "drafter": b"GGUF drafter"}
    assert layout.missing(OllamaSource(ollama="toy", layer="projector")) == ("toy (projector)",)
    assert layout.missing(OllamaSource(ollama="other")) == ("other",)
