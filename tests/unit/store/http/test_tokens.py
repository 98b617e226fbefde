from pathlib import Path

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.store.http.addresses import origin
from orchestrator.store.http.tokens import endpoint, hub_token


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "SLIPSTREAM_HF_TOKEN_FILE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "url, same",
    [
        ("https://huggingface.co/a/b?c=d", "https://huggingface.co:443"),
        ("https://HuggingFace.co:443/", "https://huggingface.co:443"),
        ("http://127.0.0.1:8080/x", "http://127.0.0.1:8080"),
        ("http://hub", "http://hub:80"),
        ("https://user@huggingface.co/", "https://huggingface.co:443"),
    ],
)
def test_origins(url: str, same: str) -> None:
    assert origin(url) == same


@pytest.mark.parametrize(
    "other", ["http://huggingface.co", "https://huggingface.co:8443", "https://huggingface.co.x.org"]
)
def test_another_scheme_port_or_name_is_another_origin(other: str) -> None:
    assert origin(other) != origin("https://huggingface.co")


def test_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    assert endpoint() == "https://huggingface.co"
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1/")
    assert endpoint() == "http://127.0.0.1:1"
    monkeypatch.setenv("HF_ENDPOINT", " https://mirror.example/hf/ ")
    assert endpoint() == "https://mirror.example/hf"


@pytest.mark.parametrize(
    "address",
    ["hf-mirror.com", "ftp://hub", "https://", "https://me:password@hub", "http://hub:port", "https://hub/?a=b"],
)
def test_an_endpoint_that_is_no_address_is_told_and_not_shown(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    with pytest.raises(SlipstreamError, match="HF_ENDPOINT is no address of a hub") as caught:
        endpoint()
    assert caught.value.code is Code.MISCONFIGURED and "password@" not in str(caught.value.problem())


def test_where_the_token_comes_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert hub_token() is None
    for name in ("HF_TOKEN_PATH", "SLIPSTREAM_HF_TOKEN_FILE"):
        (tmp_path / name).write_text(f"hf_from_{name}\n")
        monkeypatch.setenv(name, str(tmp_path / name))
        assert hub_token() == f"hf_from_{name}"
    monkeypatch.setenv("HF_TOKEN", " hf_first\n")
    assert hub_token() == "hf_first"


@pytest.mark.parametrize("content", ["", "two words", "hf_a\r\nX-Evil: 1", "hf_\u00e9"])
def test_what_is_no_token_is_an_error_that_does_not_show_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    monkeypatch.setenv("SLIPSTREAM_HF_TOKEN_FILE", str(path))
    with pytest.raises(SlipstreamError, match="SLIPSTREAM_HF_TOKEN_FILE holds no token") as caught:
        hub_token()
    assert caught.value.code is Code.MISCONFIGURED
    assert "words" not in caught.value.message.replace("one word", "") and "Evil" not in caught.value.message


def test_a_file_that_is_not_there_names_its_variable_not_its_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLIPSTREAM_HF_TOKEN_FILE", str(tmp_path / "gone"))
    with pytest.raises(SlipstreamError, match="the file that SLIPSTREAM_HF_TOKEN_FILE names cannot be read") as caught:
        hub_token()
    assert str(tmp_path) not in caught.value.message
