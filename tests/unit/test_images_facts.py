"""What images are called and what they say of themselves, and what their trial makes of an answer. Nothing is run."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from image import facts, smoke
from image.facts import ORCHESTRATOR, Commit, images_of, web_address
from image.smoke import Tried, Wrong
from llamacpp.pin import PinError, load_pin, load_series
from tests import REPOSITORY

SOURCE = "https://git.example/slipstream"


def one(name: str, kind: str) -> facts.Image:
    [image] = images_of([name], kind)
    return image


def test_tags_name_pin_patches_and_variant() -> None:
    pin = load_pin()
    series = {name: load_series(name).digest[:8] for name in ("series", "series.rocm")}
    assert series["series"] != series["series.rocm"]
    assert one("cpu", "slipstream").tags == (f"{pin.tag}-p{series['series']}-cpu", "latest-cpu")
    assert one("rocm", "slipstream").tags == (
        f"{pin.tag}-p{series['series.rocm']}-rocm-gfx906",
        "latest-rocm-gfx906",
    )
    assert one(ORCHESTRATOR, "all").tags[1] == "latest-orchestrator"


def test_each_variant_has_two_images_and_the_orchestrator_one() -> None:
    names = [image.local for image in images_of(["cpu", "rocm", "rocm-gfx906", "orchestrator"])]
    assert names == [
        "slipstream:orchestrator",
        "slipstream-llama-server:cpu",
        "slipstream:cpu",
        "slipstream-llama-server:rocm-gfx906",
        "slipstream:rocm-gfx906",
    ]


def test_an_unknown_variant_is_told_what_there_is() -> None:
    with pytest.raises(PinError, match=r"unknown variant 'gpu'.* cpu, cuda, rocm, and orchestrator"):
        images_of(["gpu"])
    with pytest.raises(PinError, match=r"'gfx' is no architecture of rocm; expected names such as gfx906 or gfx1030$"):
        images_of(["rocm-gfx"])
    with pytest.raises(PinError, match="orchestrator is the product without a server: it has no image of the kind"):
        images_of(["cpu", ORCHESTRATOR], "llama-server")


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("git@git.example:someone/slipstream.git", "https://git.example/someone/slipstream"),
        ("ssh://git@git.example/someone/slipstream", "https://git.example/someone/slipstream"),
        ("https://x-access-token:secret@git.example:8443/a/b.git", "https://git.example:8443/a/b"),
        ("https://git.example/a/b", "https://git.example/a/b"),
        ("/srv/git/slipstream.git", ""),
        ("", ""),
    ],
)
def test_the_address_of_the_source_has_no_credentials(remote: str, address: str) -> None:
    assert web_address(remote) == address


def test_a_base_is_the_settings_else_the_dockerfiles(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, str] = {}
    monkeypatch.setattr(facts, "settings", lambda: given)
    assert f"ARG CUDA_BASE={facts.base_name('CUDA_BASE')}\n" in (REPOSITORY / "docker/Dockerfile").read_text()
    given["CUDA_BASE"] = "mine:1"
    assert facts.base_name("CUDA_BASE") == "mine:1"


def test_the_environment_counts_more_than_the_env_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "ROOT", tmp_path)
    (tmp_path / ".env").write_text('CPU_BASE=a:1\nCUDA_BASE="b:2"  # why\n#ROCM_BASE=c:3\n')
    monkeypatch.setenv("CPU_BASE", "mine:1")
    monkeypatch.delenv("ROCM_BASE", raising=False)
    found = facts.settings.__wrapped__()
    assert (found["CPU_BASE"], found["CUDA_BASE"], found.get("ROCM_BASE")) == ("mine:1", "b:2", None)


def test_an_archive_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "ROOT", tmp_path)
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert facts.read_commit(SOURCE) == Commit("unknown", None, SOURCE)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1791201600")
    assert facts.read_commit(SOURCE).created == "2026-10-05T12:00:00Z"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "today")
    with pytest.raises(PinError, match="SOURCE_DATE_EPOCH='today', expected seconds since 1970"):
        facts.read_commit(SOURCE)


def test_an_answer_without_drafts_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"usage": {"completion_tokens": 16}, "timings": {"draft_n": 0}}
    monkeypatch.setattr(smoke, "_container", lambda tried, folder: nullcontext("http://nobody"))
    monkeypatch.setattr(smoke, "_post", lambda url, body: answer)
    tried = Tried("i", one("cpu", "llama-server"), Path("toy.gguf"), drafts=True)
    with pytest.raises(Wrong, match="16 tokens of which 0 were drafted"):
        smoke.answers_on_the_cpu(tried)
    assert smoke.answers_on_the_cpu(replace(tried, drafts=False)) == "16 tokens"


@pytest.mark.parametrize("said", ["served", Wrong("exit status 1: no room left")])
def test_the_orchestrator_alone_must_say_what_it_lacks(monkeypatch: pytest.MonkeyPatch, said: str | Wrong) -> None:
    def docker(*arguments: str) -> str:
        if isinstance(said, Wrong):
            raise said
        return said

    monkeypatch.setattr(smoke, "_docker", docker)
    with pytest.raises(Wrong, match=r"without a server ended well: served|no room left"):
        smoke.answers_on_the_cpu(Tried("i", one(ORCHESTRATOR, "slipstream"), Path(), drafts=False))
