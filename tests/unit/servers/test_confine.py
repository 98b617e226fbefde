from pathlib import Path

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import HfSource, PathSource
from orchestrator.servers.confine import confined
from orchestrator.store import Layout


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    # A folder that is named by way of its parent, as SLIPSTREAM_MODELS_DIR=../models is.
    return Layout(tmp_path / "work" / ".." / "models", tmp_path / "cache")


@pytest.mark.parametrize("path", ["x.gguf", "sub/x.gguf", "./x.gguf", "x..gguf", "~nobody-has-this-name/x.gguf"])
def test_below_the_model_files(layout: Layout, path: str) -> None:
    for text in (path, f"{layout.models_dir}/{path}", f"{layout.cache}/{path}"):
        source = PathSource(path=text)
        assert confined(source, layout) is source


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x.gguf", "sub/../../x.gguf", "~/x.gguf", "~root/x.gguf", "~", "/", "//etc/passwd"]
)
def test_outside(layout: Layout, path: str) -> None:
    with pytest.raises(SlipstreamError) as caught:
        confined(PathSource(path=path), layout)
    assert caught.value.code is Code.FORBIDDEN and repr(path) in caught.value.message


def test_other_sources_have_no_path(layout: Layout) -> None:
    source = HfSource(hf="o/n", file="x.gguf")
    assert confined(source, layout) is source
