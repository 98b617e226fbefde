"""The workflows: what they may do, what they use, and that what they call is there. `make lint` has their syntax."""

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from llamacpp.variants import accelerators, load_variant
from tests import REPOSITORY

FOLDER = REPOSITORY / ".github/workflows"
# Who may write what; every other job reads at most.
WRITES = {
    ("images.yml", "build"): {"packages"},
    ("images.yml", "publish"): {"packages", "id-token"},
    ("upstream-drift.yml", "tell"): {"issues"},
}
PINNED = re.compile(
    r"(?P<action>[\w.-]+/[\w.-]+)(?:/[\w./-]+)?@(?P<commit>[0-9a-f]{40})  # v(?P<version>\d+\.\d+\.\d+)"
)
TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)


@dataclass(frozen=True)
class Workflow:
    name: str
    text: str
    content: dict[str, Any]

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        return dict(self.content["jobs"])

    def steps(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each step with the name of its job."""
        for name, job in self.jobs.items():
            for step in job["steps"]:
                yield name, step

    def scripts(self) -> Iterator[str]:
        return (step["run"] for _, step in self.steps() if "run" in step)


def read(path: Path) -> Workflow:
    text = path.read_text()
    return Workflow(path.name, text, YAML(typ="safe").load(text))


WORKFLOWS = [read(path) for path in sorted(FOLDER.glob("*.yml"))]
each = pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda workflow: workflow.name)
images = next(workflow for workflow in WORKFLOWS if workflow.name == "images.yml")


def test_they_are_all_there() -> None:
    assert [workflow.name for workflow in WORKFLOWS] == ["ci.yml", "images.yml", "upstream-drift.yml"]


@each
def test_every_action_is_pinned_by_commit_with_its_version(workflow: Workflow) -> None:
    used = re.findall(r"uses: *(.+)", workflow.text)
    assert len(used) == sum("uses" in step for _, step in workflow.steps()) > 0
    assert [line for line in used if not PINNED.fullmatch(line)] == []


def test_an_action_has_one_commit_everywhere() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for match in chain.from_iterable(PINNED.finditer(workflow.text) for workflow in WORKFLOWS):
        found[match["action"]].add(f"{match['commit']} {match['version']}")
    assert {action: pins for action, pins in found.items() if len(pins) > 1} == {}


@each
def test_a_job_may_do_what_it_needs_and_ends(workflow: Workflow) -> None:
    assert workflow.content["permissions"] == {}
    for name, job in workflow.jobs.items():
        writes = {scope for scope, level in job["permissions"].items() if level == "write"}
        assert writes == WRITES.get((workflow.name, name), set()), name
        # What a hosted runner gives.
        assert 0 < job["timeout-minutes"] <= 360
        assert all(step.get("timeout-minutes", 0) < job["timeout-minutes"] for step in job["steps"]), name


@each
def test_a_checkout_leaves_no_token_behind(workflow: Workflow) -> None:
    checkouts = [step for _, step in workflow.steps() if step.get("uses", "").startswith("actions/checkout@")]
    assert len(checkouts) == len(workflow.jobs)
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@each
def test_artifacts_have_names_of_their_own_and_a_second_attempt_may_replace_them(workflow: Workflow) -> None:
    uploads = [
        step["with"] for _, step in workflow.steps() if step.get("uses", "").startswith("actions/upload-artifact@")
    ]
    assert len({given["name"] for given in uploads}) == len(uploads)
    assert all(given["overwrite"] is True and given["if-no-files-found"] == "error" for given in uploads)


@each
def test_no_script_is_put_together_from_expressions(workflow: Workflow) -> None:
    assert [script for script in workflow.scripts() if "${{" in script] == []
    assert workflow.content["defaults"]["run"]["shell"] == "bash", "which brings pipefail"


@each
def test_what_scripts_call_is_there(workflow: Workflow) -> None:
    targets = set(TARGET.findall((REPOSITORY / "Makefile").read_text()))
    called: set[str] = set()
    for script in workflow.scripts():
        for program in re.findall(r"(?<![\w/$.])((?:scripts|docker|\.ci)/[\w/-]+)", script):
            called.add(program)
            assert os.access(REPOSITORY / program, os.X_OK), program
        # .ci/run passes its arguments on to make.
        for words in re.findall(r"(?:\bmake|\.ci/run)((?: [a-z-]+(?![\w=-]))*)", script):
            assert set(words.split()) <= targets, words
            called |= set(words.split())
    assert called


def matches(pattern: str) -> Iterator[Path]:
    """Files, as GitHub reads a pattern: its `**` names them too."""
    return REPOSITORY.glob(pattern + "/*" if pattern.endswith("**") else pattern)


@each
def test_files_that_decide_whether_to_run_or_what_to_bring_exist(workflow: Workflow) -> None:
    patterns = re.findall(r"'([\w./*-]+)'", " ".join(re.findall(r"hashFiles\((.*?)\)", workflow.text, re.DOTALL)))
    # A key of what Python leaves behind would never be met again.
    assert [pattern for pattern in patterns if any(path.suffix == ".pyc" for path in matches(pattern))] == []
    # YAML 1.2 reads the key `on` as it stands.
    patterns += (workflow.content["on"].get("push") or {}).get("paths", [])
    assert [pattern for pattern in patterns if not any(matches(pattern))] == []


def matrix() -> list[dict[str, str]]:
    return list(images.jobs["build"]["strategy"]["matrix"]["include"])


def test_every_variant_is_built_for_every_platform() -> None:
    built = {(variant, entry["platform"]) for entry in matrix() for variant in entry["variants"].split()}
    variants = [load_variant(name) for name in accelerators()]
    expected = {(variant.name, platform) for variant in variants for platform in variant.platforms}
    assert built == expected | {("orchestrator", platform) for platform in load_variant("cpu").platforms}
    for entry in matrix():
        own = [load_variant(name).accelerator for name in entry["variants"].split() if name != "orchestrator"]
        assert own == [entry["accelerator"]]
    [verified] = [script for script in images.scripts() if "images verify" in script]
    assert f"tags {' '.join(variant.name for variant in variants)} orchestrator " in verified


def test_arm_is_built_on_arm() -> None:
    for entry in matrix():
        assert entry["runner"].endswith("-arm") == (entry["platform"] == "linux/arm64")


def test_no_tag_moves_before_every_image_was_tried_out() -> None:
    """Only `publish` names tags; it needs every build, whose digests are handed over after they were tried."""
    steps = [step.get("run", step.get("uses", "")) for step in images.jobs["build"]["steps"]]
    pushed, tried, handed = (
        next(i for i, text in enumerate(steps) if word in text)
        for word in ("scripts/images push", "scripts/images smoke", "actions/upload-artifact@")
    )
    assert pushed < tried < handed and "--by-digest" in steps[pushed]
    assert [job for job, step in images.steps() if "scripts/images manifest" in step.get("run", "")] == ["publish"]
    assert images.jobs["publish"]["needs"] == "build" and images.jobs["verify"]["needs"] == "publish"
    # A branch of somebody's moves none.
    assert images.jobs["publish"]["if"] == "github.ref == 'refs/heads/main' || startsWith(github.ref, 'refs/tags/v')"
    [signing] = [text for text in images.scripts() if "cosign sign" in text]
    assert signing.index("scripts/images manifest") < signing.index("cosign sign")


def test_the_digests_of_every_build_reach_the_job_that_joins_them() -> None:
    [given] = [step["with"] for job, step in images.steps() if "upload-artifact@" in step.get("uses", "")]
    [taken] = [step["with"] for job, step in images.steps() if "download-artifact@" in step.get("uses", "")]
    names = {given["name"].replace("${{ matrix.name }}", entry["name"]) for entry in matrix()}
    assert len(names) == len(matrix()) and all(fnmatch(name, taken["pattern"]) for name in names)
    assert taken["merge-multiple"] is True, "without it each has a folder of its own"


def test_what_was_compiled_is_kept_even_of_a_build_that_ran_out_of_time() -> None:
    steps = images.jobs["build"]["steps"]
    start = next(i for i, step in enumerate(steps) if step.get("id") == "push")
    saving = [step for step in steps[start + 1 :] if "always()" in step.get("if", "")]
    assert "scripts/build-cache save" in saving[0]["run"] and saving[1]["uses"].startswith("actions/cache/save@")
    [restored] = [step for step in steps if step.get("uses", "").startswith("actions/cache/restore@")]
    # A key that is there already is not saved again.
    assert all(f"github.{part}" in restored["with"]["key"] for part in ("run_id", "run_attempt"))
    assert saving[1]["with"]["key"] == "${{ steps.cache.outputs.cache-primary-key }}"
    assert steps[start]["timeout-minutes"] + 30 <= images.jobs["build"]["timeout-minutes"]
