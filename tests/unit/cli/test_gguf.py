"""The commands on plain files, in this process and without an orchestrator."""

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.cli.byte_progress import live_bar, shown_bytes
from orchestrator.cli.invocation import Output
from orchestrator.gguf.graft import plan_graft
from orchestrator.schemas import GraftPlan
from tests.support.tensors import keys_of, tensors_of
from tests.support.tiny import Tiny, head_only
from tests.unit.cli.conftest import Run


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    Tiny().write(tmp_path / "base.gguf")
    head_only().write(tmp_path / "donor.gguf")
    head_only(seed=2).write(tmp_path / "other.gguf")


def test_a_plan_names_keys_and_tensors_and_writes_nothing(run: Run, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    shown = run("plan", "base.gguf", "donor.gguf")
    assert shown.status == 0 and sorted(tmp_path.iterdir()) == before
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert "hy_v3.block_count UINT32 2 3" in lines
    assert "hy_v3.nextn_predict_layers UINT32 - 1" in lines
    assert "blk.2.nextn.eh_proj.weight blk.7.nextn.eh_proj.weight Q8_0 64 x 32 2.2 kB" in lines
    assert "would write base-MTP.gguf" in lines
    assert GraftPlan.model_validate(run("plan", "base.gguf", "donor.gguf", "--json").json) == plan_graft(
        tmp_path / "base.gguf", tmp_path / "donor.gguf"
    )


def test_a_graft_writes(run: Run, tmp_path: Path) -> None:
    shown = run("graft", "base.gguf", "donor.gguf", "out.gguf")
    assert shown.status == 0 and "wrote out.gguf" in shown.out and shown.err == ""
    assert len(tensors_of(tmp_path / "out.gguf")) == len(Tiny(heads=1).tensors)
    again = run("graft", "out.gguf", "donor.gguf", "again.gguf")
    assert "nothing to do" in again.out


def test_with_json_there_is_one_value_and_nothing_else(run: Run) -> None:
    shown = run("graft", "base.gguf", "donor.gguf", "out.gguf", "--layout", "shard", "--hash", "--json")
    assert shown.err == "" and shown.json["outputs"] == ["out-00001-of-00002.gguf", "out-00002-of-00002.gguf"]
    assert [k["key"] for k in shown.json["keys"] if k["key"].endswith("base_sha256")]
    assert run("strip", "out-00002-of-00002.gguf", "stripped.gguf", "--json").json["kind"] == "trunk"
    assert run("extract", "out-00001-of-00002.gguf", "d.gguf", "--as", "drafter", "--json").json["kind"] == "drafter"


def test_replace_and_force_have_to_be_said(run: Run, tmp_path: Path) -> None:
    assert run("graft", "base.gguf", "donor.gguf", "out.gguf").status == 0
    refused = run("graft", "out.gguf", "other.gguf", "new.gguf")
    assert refused.status == 1 and "hint: --replace" in refused.err and refused.out == ""
    assert run("plan", "out.gguf", "other.gguf").status == 1
    assert "replaces the base's" in run("plan", "out.gguf", "other.gguf", "--replace").out
    taken = run("graft", "out.gguf", "other.gguf", "base.gguf", "--replace")
    assert taken.status == 1 and "hint: --force" in taken.err
    assert run("graft", "out.gguf", "other.gguf", "out.gguf", "--replace", "--force").status == 1, "an input"
    assert run("graft", "out.gguf", "other.gguf", "base.gguf", "--replace", "--force").status == 0
    assert "blk.2.nextn.enorm.weight" in tensors_of(tmp_path / "base.gguf")


def test_head_out_and_head_off(run: Run, tmp_path: Path) -> None:
    run("graft", "base.gguf", "donor.gguf", "out.gguf")
    shown = run("extract", "out.gguf", "donor-again.gguf")
    assert "donor with 14 tensors" in shown.out and "wrote donor-again.gguf" in shown.out
    assert run("extract", "out.gguf", "donor-again.gguf").status == 1
    assert run("extract", "out.gguf", "donor-again.gguf", "--as", "drafter", "--force").status == 0
    assert "tokenizer.ggml.tokens" in keys_of(tmp_path / "donor-again.gguf")
    shown = run("strip", "out.gguf", "stripped.gguf")
    assert "hy_v3.nextn_predict_layers" in shown.out
    assert (tmp_path / "stripped.gguf").read_bytes() == (tmp_path / "base.gguf").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("plan", "nothing.gguf", "donor.gguf"), "nothing.gguf"),
        (("graft", "base.gguf", "base.gguf", "out.gguf"), "no MTP head"),
        (("extract", "base.gguf", "out.gguf"), "no MTP head"),
        (("strip", "base.gguf", "out.gguf"), "no MTP head"),
        (("graft", "base.gguf", "donor.gguf", "no/out.gguf"), "'no'"),
    ],
)
def test_errors_are_told_on_stderr(run: Run, arguments: tuple[str, ...], word: str) -> None:
    shown = run(*arguments)
    assert shown.status == 1 and shown.out == "" and word in shown.err and "Traceback" not in shown.err


@pytest.mark.parametrize("arguments", [("graft", "a", "b", "c", "--layout", "two"), ("extract", "a", "b", "--as", "x")])
def test_wrong_usage_is_2(run: Run, arguments: tuple[str, ...]) -> None:
    assert run(*arguments).status == 2


def test_warnings_go_to_stderr(run: Run, tmp_path: Path) -> None:
    for name, epsilon in (("base", 1e-5), ("donor", 1e-6)):
        keys = {"hy_v3.attention.layer_norm_rms_epsilon": epsilon}
        (Tiny(more_keys=keys) if name == "base" else head_only(more_keys=keys)).write(tmp_path / f"{name}.gguf")
    shown = run("graft", "base.gguf", "donor.gguf", "out.gguf")
    assert shown.status == 0 and "warning: " in shown.err and "layer_norm_rms_epsilon" in shown.err


def test_a_terminal_shows_bytes_rate_and_time_left() -> None:
    output = Output(False)
    output.err = Console(file=io.StringIO(), force_terminal=True, width=200)
    with live_bar(output, "grafting x.gguf") as heard:
        heard(25_000_000, 100_000_000)
        heard(50_000_000, 100_000_000)
    shown = output.err.file.getvalue()  # type: ignore[attr-defined]
    assert "grafting x.gguf" in shown and "50.0/100.0 MB" in shown and "/s" in shown
    assert re.search(r"\d:\d\d:\d\d", shown)


def test_elsewhere_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 101.0, 106.0, 107.0])
    monkeypatch.setattr("orchestrator.cli.byte_progress.time.monotonic", lambda: next(clock))
    output = Output(False)
    output.err = Console(file=io.StringIO(), width=200)
    with shown_bytes(output, "grafting x.gguf") as heard:
        assert heard is not None
        for done in (1, 6, 7):
            heard(done * 1_000_000, 12_000_000)
    assert output.err.file.getvalue() == "grafting x.gguf: 6.0 MB of 12.0 MB, 1.0 MB/s, 6 s left\n"  # type: ignore[attr-defined]


def test_ctrl_c_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    """In a process of its own, whose first progress interrupts it as a terminal would."""
    program = (
        "import os, signal, sys\n"
        "from orchestrator.gguf import output\n"
        "whole = output.copy_range\n"
        "output.copy_range = lambda *a: (os.kill(os.getpid(), signal.SIGINT), whole(*a))\n"
        "from orchestrator.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    terminal, other = pty.openpty()
    command = [sys.executable, "-c", program, "graft", "base.gguf", "donor.gguf", "out.gguf"]
    try:
        done = subprocess.run(command, cwd=tmp_path, stdin=other, stdout=other, stderr=other, timeout=20)
    finally:
        os.close(other)
        os.close(terminal)
    assert done.returncode == 130
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base.gguf", "donor.gguf", "other.gguf"]
