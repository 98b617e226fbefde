import json
import os
import pwd
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.types import TensorType
from orchestrator.store.ollama import (
    OllamaName,
    OllamaStore,
    RunnerVersion,
    list_models,
    read_model,
    runner_version,
    settings_of,
)
from orchestrator.store.ollama.access import forbidden
from tests.support import eventually
from tests.support.gguf_bytes import gguf
from tests.support.ollama_store import MEDIA, OllamaStoreMaker
from tests.support.orchestrator import is_gone, processes_naming

F32 = TensorType["F32"]
TARGET = gguf({"general.architecture": "llama", "tokenizer.chat_template": "{{ messages }}"}, {"a": ((4,), F32)})
DRAFTER = gguf({"general.architecture": "gemma4-assistant"}, {"b": ((4,), F32)})
PROJECTOR = gguf({"general.architecture": "clip"}, {"v.c": ((4,), F32)})


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OllamaStoreMaker:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama" / "models"))
    return OllamaStoreMaker(tmp_path / "ollama" / "models")


def refused(name: str, code: Code) -> SlipstreamError:
    with pytest.raises(SlipstreamError) as caught:
        read_model(name)
    assert caught.value.code is code
    return caught.value


def test_a_model_with_its_drafter(maker: OllamaStoreMaker) -> None:
    maker.create(
        "gemma4:e2b-mtp",
        model=TARGET,
        draft=DRAFTER,
        projector=PROJECTOR,
        template="{{ .Prompt }}",
        system="You are Mario.",
        params={"temperature": 0.6, "stop": ["<turn|>"], "num_ctx": 4096},
        license="MIT",
    )
    before = {path: path.stat().st_mtime_ns for path in maker.root.rglob("*")}
    model = read_model("gemma4:e2b-mtp")
    assert model.name == "gemma4:e2b-mtp"
    assert model.drafter is not None and model.projector is not None
    contents = [path.read_bytes() for path in (model.model, model.drafter, model.projector)]
    assert contents == [TARGET, DRAFTER, PROJECTOR]
    assert {layer: maker.blob(digest).name for layer, digest in model.digests.items()} == {
        "model": model.model.name,
        "drafter": model.drafter.name,
        "projector": model.projector.name,
    }
    assert (model.template, model.system, model.licenses) == ("{{ .Prompt }}", "You are Mario.", ("MIT",))
    assert model.parameters == {"temperature": 0.6, "stop": ["<turn|>"], "num_ctx": 4096}
    assert {path: path.stat().st_mtime_ns for path in maker.root.rglob("*")} == before


def test_a_bare_model(maker: OllamaStoreMaker) -> None:
    maker.create("toy", model=TARGET)
    model = read_model("toy")
    assert model.name == "toy:latest"
    assert (model.drafter, model.projector, model.template, model.system) == (None, None, None, None)
    assert (model.parameters, model.licenses, model.notes) == ({}, (), ())


@pytest.mark.parametrize(
    "text, path, shown",
    [
        ("llama3.2", "registry.ollama.ai/library/llama3.2/latest", "llama3.2:latest"),
        ("me/toy:q4", "registry.ollama.ai/me/toy/q4", "me/toy:q4"),
        ("hf.co/me/toy-GGUF:Q4_K_M", "hf.co/me/toy-GGUF/Q4_K_M", "hf.co/me/toy-GGUF:Q4_K_M"),
        ("localhost:5000/library/toy", "localhost:5000/library/toy/latest", "localhost:5000/library/toy:latest"),
        ("registry.ollama.ai/library/toy:1", "registry.ollama.ai/library/toy/1", "toy:1"),
    ],
)
def test_names_are_those_of_ollama(maker: OllamaStoreMaker, text: str, path: str, shown: str) -> None:
    assert maker.create(text, model=TARGET) == maker.root / "manifests" / path
    assert read_model(text).name == shown
    assert list_models() == (shown,)
    assert str(OllamaName.parse(shown)) == shown


@pytest.mark.parametrize(
    "name",
    ["..", "../x", "a/../b", "a:..", "a:../../x", "/etc/passwd", "a//b", "a/b/c/d", "", ":", "a:", "a:b/c", ".a",
     "a\0b", "a\n", "ä", "a" * 81, "http://h/a/b", "a/b:c:d/e", "../../x/y", "a/b/c/d/e"],
)  # fmt: skip
def test_names_with_path_tricks_are_refused(maker: OllamaStoreMaker, name: str) -> None:
    (maker.root.parent / "x").write_text('{"layers": []}')
    assert "[host/][namespace/]name[:tag]" in refused(name, Code.INVALID_REQUEST).message
    assert OllamaStore.find().locate(name) is None


def test_a_model_that_is_not_there_lists_those_that_are(maker: OllamaStoreMaker) -> None:
    for name in ("b:1", "a", "me/c"):
        maker.create(name, model=TARGET)
    error = refused("other", Code.SOURCE_NOT_FOUND)
    assert "other:latest" in error.message and "a:latest, b:1, me/c:latest" in error.message
    assert error.details["models"] == ["a:latest", "b:1", "me/c:latest"]
    assert error.hint == "bring it with: ollama pull other:latest"
    for name in ("b", "b:2", "me", "library/b/x"):
        refused(name, Code.SOURCE_NOT_FOUND)
    for i in range(30):
        maker.create(f"n{i}", model=TARGET)
    error = refused("other", Code.SOURCE_NOT_FOUND)
    assert "and 13 more" in error.message and len(error.details["models"]) == 33


def test_strangers_in_the_store_are_passed_over(maker: OllamaStoreMaker) -> None:
    maker.create("a", model=TARGET)
    for stray in ("x", "registry.ollama.ai/x", "registry.ollama.ai/library/x", "registry.ollama.ai/library/a/.tmp"):
        (maker.root / "manifests" / stray).write_text("{}")
    assert list_models() == ("a:latest",)


def test_no_store_at_all_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "nowhere"))
    error = refused("a", Code.SOURCE_NOT_FOUND)
    assert "/usr/share/ollama/.ollama/models" in error.message and str(tmp_path) not in error.message
    assert list_models() == ()


def test_the_store_is_that_of_the_environment_or_of_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    assert OllamaStore.find().label == "/usr/share/ollama/.ollama/models"
    OllamaStoreMaker(tmp_path / ".ollama" / "models").create("home", model=TARGET)
    assert OllamaStore.find() == OllamaStore(tmp_path / ".ollama" / "models", "~/.ollama/models")
    assert list_models() == ("home:latest",)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "other"))
    assert OllamaStore.find() == OllamaStore(tmp_path / "other", "$OLLAMA_MODELS")


def damage(maker: OllamaStoreMaker, change: Callable[[dict[str, Any]], Any]) -> None:
    path = maker.create("toy", model=TARGET, params={"seed": 1})
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda m: m.pop("layers"), "manifest of toy:latest"),
        (lambda m: m["layers"][0].update(digest="sha256:../../../etc/passwd"), "without sha256"),
        (lambda m: m["layers"][0].pop("digest"), "without sha256"),
        (lambda m: m["layers"][0].update(digest=f"sha256:{'0' * 64}"), f"sha256-{'0' * 64} is missing"),
        (lambda m: m["layers"][0].update(size=7), f"has {len(TARGET)} bytes, expected 7"),
        (lambda m: m["layers"][1].update(digest=m["layers"][0]["digest"], size=len(TARGET)), "no JSON object"),
    ],
)
def test_a_damaged_model_says_what_is_wrong(
    maker: OllamaStoreMaker, change: Callable[[dict[str, Any]], Any], words: str
) -> None:
    damage(maker, change)
    error = refused("toy", Code.SOURCE_FAILED)
    assert words in error.message and str(maker.root) not in error.message


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"layers": 1}'])
def test_a_manifest_that_is_none_is_a_failed_source(maker: OllamaStoreMaker, content: bytes) -> None:
    maker.create("toy", model=TARGET).write_bytes(content)
    assert "toy:latest" in refused("toy", Code.SOURCE_FAILED).message
    assert OllamaStore.find().locate("toy") is None


def test_what_llama_server_cannot_load_is_unsupported(maker: OllamaStoreMaker) -> None:
    tensors = maker.layer("tensor", b"x")
    maker.create("mlx", model=None, further=(tensors, maker.layer("json", b"{}")))
    assert "json, tensor" in refused("mlx", Code.SOURCE_UNSUPPORTED).message
    maker.create("two", model=TARGET, further=(maker.layer("model", DRAFTER),))
    assert "2 files as its model" in refused("two", Code.SOURCE_UNSUPPORTED).message
    shard = gguf({"general.architecture": "llama", "split.count": 3}, {"a": ((4,), F32)})
    maker.create("shard", model=shard)
    assert "one of 3 shards" in refused("shard", Code.SOURCE_UNSUPPORTED).message
    maker.create("rot", model=b"GGML not")
    assert refused("rot", Code.INVALID_GGUF)


def test_notes_say_what_is_not_carried_over(maker: OllamaStoreMaker) -> None:
    vision = gguf({"general.architecture": "gemma3"}, {"a": ((4,), F32), "v.patch": ((4,), F32), "mtp.x": ((4,), F32)})
    maker.create(
        "toy",
        model=vision,
        projector=PROJECTOR,
        template="{{ .Prompt }}",
        system="be brief",
        further=(maker.layer("adapter", b"lora"), maker.layer("messages", b"[]"), maker.layer("projector", b"x")),
    )
    notes = "\n".join(read_model("toy").notes)
    for word in (
        "LoRA",
        "system message",
        "example messages",
        "chat_template",
        "2 projectors",
        "tensors mtp.*, v.* in",
    ):
        assert word in notes
    maker.create("plain", model=TARGET, template="{{ .Prompt }}")
    assert [note for note in read_model("plain").notes if "the one in the GGUF" in note]


@pytest.fixture
def open_maker(monkeypatch: pytest.MonkeyPatch) -> Iterator[OllamaStoreMaker]:
    """A store that other users can reach: pytest's own folders are closed to them."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("OLLAMA_MODELS", f"{folder}/ollama/models")
        yield OllamaStoreMaker(Path(folder) / "ollama" / "models")


def read_by_a_stranger(name: str) -> dict[str, str | None]:
    """What becomes of reading a model for a user without rights: root is refused nothing."""
    read_end, write_end = os.pipe()
    if (pid := os.fork()) == 0:
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.setgroups([])
            os.setresgid(*[nobody.pw_gid] * 3)
            os.setresuid(*[nobody.pw_uid] * 3)
        try:
            answer: dict[str, str | None] = {"code": None, "name": read_model(name).name}
        except SlipstreamError as e:
            answer = {"code": e.code, "message": e.message, "hint": e.hint}
        except BaseException as e:
            answer = {"code": f"{type(e).__name__}: {e}"}
        located = OllamaStore.find().locate(name)
        os.write(write_end, json.dumps(answer | {"located": located and located.name}).encode())
        os._exit(0)
    os.close(write_end)
    os.waitpid(pid, 0)
    with os.fdopen(read_end, "rb") as pipe:
        return dict(json.loads(pipe.read()))


@pytest.mark.parametrize(
    "closed, words",
    [
        ("models", "$OLLAMA_MODELS belongs to"),
        ("models/manifests", "$OLLAMA_MODELS/manifests belongs to"),
        ("models/manifests/registry.ollama.ai/library/toy/latest", "library/toy/latest belongs to"),
        ("models/blobs/*", "$OLLAMA_MODELS/blobs/sha256-"),
        (".", "a folder above $OLLAMA_MODELS belongs to"),
    ],
)
def test_a_closed_store_names_owner_and_both_ways_out(open_maker: OllamaStoreMaker, closed: str, words: str) -> None:
    open_maker.create("toy", model=TARGET)
    top = open_maker.root.parent
    assert read_by_a_stranger("toy")["name"] == "toy:latest"
    for path in [top] if closed == "." else list(top.glob(closed)):
        # Owner's rights are taken too, for whoever runs the tests without being root.
        path.chmod(0o000)
    answer = read_by_a_stranger("toy")
    top.chmod(0o755)
    assert answer["code"] == Code.SOURCE_FAILED and answer["located"] is None
    message, hint = answer["message"] or "", answer["hint"] or ""
    assert words in message and "closed to the user" in message and "with mode" in message
    assert "usermod -aG" in hint and "`sg " in hint and "setfacl" in hint
    assert str(top) not in message + hint


def test_a_barrier_that_cannot_be_seen_is_still_an_answer(tmp_path: Path) -> None:
    error = forbidden(tmp_path / "gone", "$OLLAMA_MODELS", tmp_path / "gone" / "manifests")
    assert "$OLLAMA_MODELS/manifests" in error.message and "sg ollama" in (error.hint or "")


def test_parameters_become_request_defaults_and_flags() -> None:
    settings = settings_of(
        {
            "temperature": 0.6,
            "top_k": 64,
            "top_p": 0.95,
            "min_p": 0.01,
            "repeat_penalty": 1.1,
            "repeat_last_n": 64,
            "seed": 7,
            "stop": ["<turn|>", "\n"],
            "num_predict": 128,
            "num_keep": 4,
            "num_ctx": 8192,
            "num_gpu": 0,
            "num_thread": 0,
            "draft_num_predict": 3,
            "use_mmap": True,
            "tfs_z": 1.0,
            "top_n": "many",
            "mirostat": True,
        },
        has_drafter=True,
    )
    assert settings.defaults == {
        "temperature": 0.6,
        "top_k": 64,
        "top_p": 0.95,
        "min_p": 0.01,
        "repeat_penalty": 1.1,
        "repeat_last_n": 64,
        "seed": 7,
        "stop": ["<turn|>", "\n"],
        "max_tokens": 128,
        "n_keep": 4,
    }
    assert settings.server == {"ctx_size": 8192, "gpu_layers": 0}
    assert settings.speculation == {"n_max": 3}
    assert settings.notes == ("parameters without a counterpart: mirostat, tfs_z, top_n, use_mmap",)


def test_what_ollama_does_unasked_is_done_here_too() -> None:
    assert settings_of({}, has_drafter=True).speculation == {"n_max": 4}
    assert settings_of({}, has_drafter=False).speculation == {}
    assert settings_of({"num_predict": -1, "stop": "x"}, has_drafter=False).defaults == {"stop": ["x"]}
    assert settings_of({"num_predict": -2, "stop": [1]}, has_drafter=False).notes


def program(folder: Path, text: str) -> Path:
    path = folder / "llama-server"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    "line, version, text",
    [
        (
            "version: 0.3.0-dev (build 1, commit d222767c7)",
            RunnerVersion("0.3.0-dev", 1, "d222767c7"),
            "llama.cpp 0.3.0-dev, build 1, commit d222767c7",
        ),
        (
            "version: 5600 (d222767c7)",
            RunnerVersion("5600", 5600, "d222767c7"),
            "llama.cpp 5600, build 5600, commit d222767c7",
        ),
        ("version: 1.2", RunnerVersion("1.2", None, None), "llama.cpp 1.2, commit unknown"),
    ],
)
def test_the_runner_says_which_llama_cpp_it_is(tmp_path: Path, line: str, version: RunnerVersion, text: str) -> None:
    code = f"import sys; print('ggml_cuda_init: found 1 device', file=sys.stderr); print({line!r}, file=sys.stderr)"
    found = runner_version(program(tmp_path, code))
    assert found == version and str(found) == text


def test_the_runner_is_looked_for_where_ollama_puts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.store.ollama.runner._KNOWN_FOLDERS", (tmp_path / "no", tmp_path / "known"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("OLLAMA_LIB_DIR", raising=False)
    assert runner_version() is None
    program(tmp_path / "known", "print('version: 1 (known)')")
    assert runner_version() == RunnerVersion("1", 1, "known")
    program(tmp_path / "lib" / "ollama", "print('version: 2 (beside)')")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ollama").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "ollama").chmod(0o755)
    assert runner_version() == RunnerVersion("2", 2, "beside")
    program(tmp_path / "named", "print('version: 3 (named)')")
    monkeypatch.setenv("OLLAMA_LIB_DIR", str(tmp_path / "named"))
    assert runner_version() == RunnerVersion("3", 3, "named")
    monkeypatch.setenv("OLLAMA_LIB_DIR", str(tmp_path / "nowhere"))
    assert runner_version() is None


def test_the_runner_gets_none_of_our_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_MODEL", "/x")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    program(tmp_path, "import os; print('version:', '-'.join(sorted(k for k in os.environ if k != 'LC_CTYPE')))")
    assert runner_version(tmp_path) == RunnerVersion("HOME-LD_LIBRARY_PATH-PATH", None, None)


@pytest.mark.parametrize("text, words", [("print('no idea')", "'no idea\\n'"), ("import os; os.abort()", "said ''")])
def test_a_runner_that_says_something_else_is_an_error(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SlipstreamError) as caught:
        runner_version(program(tmp_path, text))
    assert caught.value.code is Code.SOURCE_FAILED and words in caught.value.message


def test_a_runner_that_does_not_answer_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.store.ollama.runner._DEADLINE_SECONDS", 0.5)
    sleep = "import time; time.sleep(60)"
    program(tmp_path, f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleep!r}, __file__]); {sleep}")
    with pytest.raises(SlipstreamError, match="did not answer within"):
        runner_version(tmp_path)
    eventually(lambda: all(is_gone(pid) for pid in processes_naming(tmp_path)), "nothing of the runner is left")


def test_the_media_type_of_a_drafter_is_ollamas(maker: OllamaStoreMaker) -> None:
    path = maker.create("toy", model=TARGET, draft=DRAFTER)
    assert MEDIA + "draft" == "application/vnd.ollama.image.draft"
    assert [layer["mediaType"] for layer in json.loads(path.read_text())["layers"]] == [
        "application/vnd.ollama.image.model",
        "application/vnd.ollama.image.draft",
    ]
