"""The workflows' scripts run by a real bash, with the programs they call replaced by ones that write down the call.

And that the linters of `make lint` see what is in a script. tests/unit/test_workflows.py has what needs no process.
"""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests import REPOSITORY
from tests.support.docker import bases, require_engine

pytestmark = pytest.mark.integration

BIN = REPOSITORY / ".venv/bin"
PREFIX = "ghcr.io/Someone"
WORKFLOW_REF = "Someone/slipstream/.github/workflows/images.yml@refs/tags/v1.0+x"
BUILD = {"IMAGE_REGISTRY": PREFIX, "ACCELERATOR": "cuda", "NAME": "cuda"}
# Writes the call and standard input down, says what the test wants, ends as the test wants.
STUB = """\
#!/bin/bash
name=${0#"$STUBS"/}
{ printf '%s' "$name"; printf ' %q' "$@"; echo; } >>"$STUBS/calls"
[ -t 0 ] || cat >>"$STUBS/stdin"
for key in "$name $1" "$name"; do
  if [ -e "$STUBS/answers/${key//\\//_}" ]; then . "$STUBS/answers/${key//\\//_}"; exit; fi
done
"""


@dataclass
class Desk:
    """A folder as a job has it after its checkout; `answers` are lines of shell for a program, or program and verb."""

    folder: Path
    answers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "answers").mkdir()
        for name in ("docker", "make", "sudo", "cosign", "df", "scripts/images", "scripts/build-cache"):
            self.add(name)
        self.add(".venv/bin/slipstream")
        self.add(".venv/bin/python")

    def add(self, name: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STUB)
        path.chmod(0o755)

    def run(self, workflow: str, job: str, step: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run a step as a runner does."""
        content = YAML(typ="safe").load((REPOSITORY / ".github/workflows" / workflow).read_text())
        [found] = [s for s in content["jobs"][job]["steps"] if s.get("name") == step]
        for name, text in self.answers.items():
            (self.folder / "answers" / name.replace("/", "_")).write_text(text)
        names: dict[str, Any] = content.get("env", {}) | content["jobs"][job].get("env", {}) | found.get("env", {})
        assert set(environment) == set(names), "the test gives what the workflow does"
        own = {"PATH": f"{self.folder}:{os.environ['PATH']}", "STUBS": str(self.folder), "HOME": str(self.folder)}
        own |= {name: str(self.folder / name.lower()) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        own |= {"GITHUB_REPOSITORY_OWNER": "Someone", "GITHUB_WORKFLOW_REF": WORKFLOW_REF}
        script = self.folder / "step.sh"
        script.write_text(found["run"])
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=self.folder,
            env=own | {"RUNNER_TEMP": str(self.folder)} | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
        )

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.mark.parametrize("job", ["build", "publish", "verify"])
def test_the_token_goes_to_the_registry_by_standard_input(desk: Desk, job: str) -> None:
    given = {"IMAGE_REGISTRY": PREFIX, "LOGIN": "someone", "TOKEN": "s3cret"}
    if job == "build":
        given |= {"ACCELERATOR": "cpu", "NAME": "cpu-amd64"}
    done = desk.run("images.yml", job, "Log in", **given)
    assert done.returncode == 0, done.stderr
    assert desk.calls() == ["docker login ghcr.io --username someone --password-stdin"]
    assert (desk.folder / "stdin").read_text() == "s3cret\n"


def test_a_build_is_pushed_by_digest_under_a_name_in_small_letters(desk: Desk) -> None:
    given = {"IMAGE_REGISTRY": PREFIX, "ACCELERATOR": "cpu", "NAME": "cpu-arm64", "PLATFORM": "linux/arm64"}
    done = desk.run("images.yml", "build", "Build, push by digest", **given, VARIANTS="cpu orchestrator")
    assert done.returncode == 0, done.stderr
    cache = "type=registry\\,ref=ghcr.io/someone/slipstream-build-cache:cpu-arm64"
    assert desk.calls() == [
        "scripts/images push cpu orchestrator --registry ghcr.io/someone --platform linux/arm64 --by-digest "
        f"--metadata {desk.folder}/pushed-cpu-arm64.json --cache-from {cache} "
        f"--cache-to {cache}\\,mode=max\\,ignore-error=true"
    ]


@pytest.mark.parametrize("broken", [None, "scripts/images smoke", "docker pull", "make"])
def test_each_image_that_was_pushed_is_tried_out(desk: Desk, broken: str | None) -> None:
    pushed = [{"image": f"r/{name}", "digest": f"sha256:{n}"} for n, name in enumerate(("one", "two"))]
    (desk.folder / "pushed-cuda.json").write_text(json.dumps(pushed))
    if broken:
        desk.answers[broken] = "exit 1"
    done = desk.run("images.yml", "build", "Try out what was pushed", **BUILD)
    assert (done.returncode == 0) == (broken is None)
    if broken is None:
        assert [call for call in desk.calls() if " smoke " in call] == [
            "scripts/images smoke r/one@sha256:0",
            "scripts/images smoke r/two@sha256:1",
        ]


def test_a_build_that_handed_over_nothing_fails(desk: Desk) -> None:
    assert desk.run("images.yml", "build", "Try out what was pushed", **BUILD).returncode != 0


@pytest.mark.parametrize("broken", [None, "cosign", "scripts/images manifest"])
def test_what_the_tags_name_is_signed_by_digest(desk: Desk, broken: str | None) -> None:
    (desk.folder / "pushed").mkdir()
    for name in ("pushed-cpu-amd64.json", "pushed-cuda.json"):
        (desk.folder / "pushed" / name).touch()
    desk.answers["scripts/images manifest"] = "echo r/one@sha256:0; echo r/two@sha256:1"
    if broken:
        desk.answers[broken] = "exit 1"
    done = desk.run("images.yml", "publish", "Move the tags, sign what they name", IMAGE_REGISTRY=PREFIX)
    assert (done.returncode == 0) == (broken is None), done.stderr
    files = [f"{desk.folder}/pushed/pushed-{name}.json" for name in ("cpu-amd64", "cuda")]
    assert desk.calls()[0] == f"scripts/images manifest {' '.join(files)}"
    if broken is None:
        assert desk.calls()[1:] == [f"cosign sign --yes r/{name}" for name in ("one@sha256:0", "two@sha256:1")]
        assert "r/two@sha256:1" in (desk.folder / "github_step_summary").read_text()


def test_every_tag_is_verified_and_one_bad_image_fails(desk: Desk) -> None:
    desk.answers["scripts/images tags"] = "echo r/one:latest-cpu; echo r/two:latest-cpu"
    step = ("images.yml", "verify", "Verify every image by its tag")
    assert desk.run(*step, IMAGE_REGISTRY=PREFIX).returncode == 0
    assert [call for call in desk.calls() if "verify" in call] == [
        f".venv/bin/slipstream images verify r/{name}:latest-cpu --patches patches" for name in ("one", "two")
    ]
    desk.answers[".venv/bin/slipstream"] = '[[ "$*" != *one* ]]'
    assert desk.run(*step, IMAGE_REGISTRY=PREFIX).returncode == 1


def test_in_another_registry_the_signer_is_named(desk: Desk) -> None:
    desk.answers["scripts/images tags"] = "echo r/one:latest-cpu"
    step = ("images.yml", "verify", "Verify every image by its tag")
    assert desk.run(*step, IMAGE_REGISTRY="registry.example/Team").returncode == 0
    [call] = [shlex.split(call) for call in desk.calls() if "verify" in call]
    assert call[-2:] == ["--identity", rf"\Qhttps://github.com/{WORKFLOW_REF}\E"]


@pytest.mark.parametrize(("status", "goes_on"), [(0, True), (3, True), (1, False)])
def test_drift_is_an_answer_and_an_error_is_none(desk: Desk, status: int, goes_on: bool) -> None:
    desk.answers[".venv/bin/python"] = f"echo report >drift.md; exit {status}"
    done = desk.run("upstream-drift.yml", "look", "Apply the patches to the newest tag, build it, run their tests")
    assert (done.returncode == 0) == goes_on
    output = desk.folder / "github_output"
    assert (output.read_text() == f"status={status}\n") if goes_on else not output.exists()


def test_chat_goes_through_the_command_of_users(desk: Desk) -> None:
    assert desk.run("ci.yml", "image", "Chat").returncode == 0
    assert [call.split()[1] for call in desk.calls()] == ["pull", "start", "chat", "status"]


def commands(program: str) -> Iterator[list[str]]:
    """The words of every call of a program, with lines joined."""
    for path in sorted((REPOSITORY / ".github/workflows").glob("*.yml")):
        content = YAML(typ="safe").load(path.read_text())
        for job in content["jobs"].values():
            for step in job["steps"]:
                script = step.get("run", "").replace("\\\n", " ")
                for found in re.findall(rf"(?<!\w){re.escape(program)} ([^\n;)|]*)", script):
                    yield shlex.split(found)


@pytest.mark.parametrize(
    ("program", "argv"),
    [
        ("scripts/images", [str(BIN / "python"), "scripts/images"]),
        ("slipstream images", [str(BIN / "slipstream"), "images"]),
        ("slipstream chat", [str(BIN / "slipstream"), "chat"]),
        ("scripts/upstream-drift", [str(BIN / "python"), "scripts/upstream-drift"]),
    ],
)
def test_verbs_and_options_that_scripts_use_exist(program: str, argv: list[str]) -> None:
    called = list(commands(program))
    assert called
    for verb in {words[0] if program.endswith("images") else "" for words in called}:
        arguments = [*argv, *([verb] if verb else []), "--help"]
        environment = os.environ | {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
        done = subprocess.run(arguments, cwd=REPOSITORY, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        used = {w for words in called if not verb or words[0] == verb for w in words if w.startswith("--")}
        assert {option for option in used if option not in done.stdout} == set(), verb


BAD = """\
name: bad
on: push
jobs:
  test:
    needs: nothing
    runs-on: ubuntu-24.04
    steps:
      - uses: actions/checkout@v4
      - run: cd $FOLDER && echo "${{ github.event.head_commit.message }}"
"""


def options_of(program: str) -> list[str]:
    """How `make lint` calls a linter, up to what it is to look at."""
    makefile = (REPOSITORY / "Makefile").read_text().replace("$(bin)/shellcheck .github", f"{BIN}/shellcheck .github")
    [options] = re.findall(rf"\$\(bin\)/{program} (.*) \.github", makefile)
    return shlex.split(options)


@pytest.mark.parametrize(
    ("program", "findings"),
    [("actionlint", ["SC2086", "nothing"]), ("zizmor", ["unpinned-uses", "template-injection"])],
)
def test_the_linters_of_make_lint_see_bad_workflows(tmp_path: Path, program: str, findings: list[str]) -> None:
    """actionlint says nothing of scripts where it finds no shellcheck."""
    path = tmp_path / "bad.yml"
    path.write_text(BAD)
    command = [str(BIN / program), *options_of(program), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin"})
    assert done.returncode != 0
    assert [finding for finding in findings if finding not in done.stdout] == []


def test_what_a_builder_compiled_goes_to_another_machine_and_back(tmp_path: Path) -> None:
    require_engine()
    kept, back = tmp_path / "kept", tmp_path / "back"
    (kept / "ccache/a").mkdir(parents=True)
    content = f"compiled in {tmp_path}"
    (kept / "ccache/a/object").write_text(content)
    program = str(REPOSITORY / "scripts/build-cache")
    (back / "ccache").mkdir(parents=True)
    (back / "ccache/thrown-away").touch()
    for verb, folder in (("restore", kept), ("save", back), ("restore", tmp_path / "absent")):
        subprocess.run(
            [program, verb, "test", str(folder)], check=True, capture_output=True, timeout=120, env=os.environ | bases()
        )
    assert (back / "ccache/a/object").read_text() == content
    # What was there before is gone, and nothing else is left.
    assert not (back / "ccache/thrown-away").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"kept", "back"}
