import pytest

from orchestrator.jobs.secrets import masking, without_folders


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("authorization: Bearer abc.def-1", "authorization: Bearer ***"),
        ("GET https://user:word@host/x", "GET https://***@host/x"),
        ("https://host/x?X-Amz-Signature=ab12&part=1 done", "https://host/x?X-Amz-Signature=***&part=1 done"),
        ("with hf_abcdefghijkl", "with hf_***"),
        ("https://host:80/@name and a@b", "https://host:80/@name and a@b"),
        ("hf.co/owner/name?part=1", "hf.co/owner/name?part=1"),
    ],
)
def test_what_looks_like_a_secret(text: str, masked: str) -> None:
    assert masking()(text) == masked


def test_what_the_environment_calls_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "a+b(c)")
    monkeypatch.setenv("SOME_API_KEY", "a+b(c)longer")
    monkeypatch.setenv("SHORT_KEY", "no")
    monkeypatch.setenv("HARMLESS", "harmless")
    assert masking()("a+b(c)longer a+b(c) no harmless") == "*** *** no harmless"


def test_folders() -> None:
    assert without_folders("open /home/a b/x '/srv/models/m.gguf': no, see https://host/a/b") == (
        "open a b/x 'm.gguf': no, see https://host/a/b"
    )
