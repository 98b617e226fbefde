"""What `cosign` is asked, and what is made of its answer. `cosign` itself is in tests/integration/images."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.cli.images.attached import Attached, Platform
from orchestrator.cli.images.checks import Check, Status
from orchestrator.cli.images.names import parse_name
from orchestrator.cli.images.programs import Ended, Programs
from orchestrator.cli.images.signature import GITHUB_ISSUER, Signer, check_signature, default_identity, whole
from orchestrator.errors import Code, SlipstreamError

DIGEST = "sha256:" + "0a" * 32
NAME = parse_name("ghcr.io/someone/slipstream:latest-cpu")
SOURCE = "https://github.com/Someone/Slip.stream"
SUBJECT = f"{SOURCE}/.github/workflows/images.yml@refs/tags/v1"


class Cosign(Programs):
    """Answers in place of `cosign`, and keeps what it was asked."""

    def __init__(self, status: int = 0, out: str = "", err: str = "") -> None:
        super().__init__()
        self._answer = Ended(status, out.encode(), err)
        self.asked: list[list[str]] = []

    def run(self, argv: Sequence[str | Path], deadline_seconds: float, *, shown: bool = False) -> Ended:
        self.asked.append([str(word) for word in argv])
        assert deadline_seconds > 0
        return self._answer


def signed(digest: str = DIGEST, **optional: str) -> str:
    return json.dumps([{"critical": {"image": {"docker-manifest-digest": digest}}, "optional": optional or None}])


def check(cosign: Programs, signer: Signer | None = None, source: str = SOURCE) -> Check:
    platform = Platform({"org.opencontainers.image.source": source}, None, None)
    return check_signature(cosign, NAME, Attached(DIGEST, {"linux/amd64": platform}), signer or Signer())


def test_without_a_word_the_workflow_of_the_image_is_expected() -> None:
    cosign = Cosign(out=signed(Subject=SUBJECT))
    found = check(cosign)
    (argv,) = cosign.asked
    assert argv[:4] == ["cosign", "verify", "--output", "json"]
    assert argv[4::2] == [
        "--certificate-identity-regexp",
        "--certificate-oidc-issuer",
        f"ghcr.io/someone/slipstream@{DIGEST}",
    ]
    identity, issuer = argv[5::2]
    assert issuer == GITHUB_ISSUER == "https://token.actions.githubusercontent.com"
    assert found.status is Status.PASSED and SUBJECT in found.text and identity in found.text


@pytest.mark.parametrize(
    ("subject", "is_accepted"),
    [
        (SUBJECT, True),
        (SUBJECT.replace("tags/v1", "heads/main"), True),
        (SUBJECT.replace("tags/v1", "heads/main2"), False),
        (SUBJECT.replace("tags/v1", "pull/1/merge"), False),
        (SUBJECT.replace("images.yml", "ci.yml"), False),
        (SUBJECT.replace("Slip.stream", "Slip-stream"), False),
        (SUBJECT.replace("Someone", "Someone2"), False),
        (f"https://evil.example/?{SUBJECT}", False),
    ],
)
def test_the_identity_is_one_workflow_on_main_or_a_tag(subject: str, is_accepted: bool) -> None:
    assert bool(re.search(default_identity(NAME, SOURCE), subject)) is is_accepted


@pytest.mark.parametrize(
    "source",
    [
        "",
        "https://github.com/another/slipstream",
        "https://github.com.evil.example/someone/slipstream",
        "https://github.com/someone",
        "https://github.com/someone/x|.*",
        "https://gitlab.com/someone/slipstream",
    ],
)
def test_a_label_alone_proves_nothing(source: str) -> None:
    cosign = Cosign(out=signed())
    found = check(cosign, source=source)
    assert found.status is Status.FAILED and "--identity" in found.text
    assert cosign.asked == []


def test_a_name_without_an_owner_needs_a_signer() -> None:
    with pytest.raises(ValueError, match="lies with nobody"):
        default_identity(parse_name("127.0.0.1:5000/slipstream"), SOURCE)


def test_an_identity_that_is_given_is_the_whole() -> None:
    cosign = Cosign(out=signed())
    assert (
        check(cosign, Signer(None, whole("https://a|https://b"), "https://issuer"), source="").status is Status.PASSED
    )
    assert cosign.asked[0][5:8:2] == ["^(?:https://a|https://b)$", "https://issuer"]


def test_a_key_needs_no_log_and_no_label() -> None:
    cosign = Cosign(out=signed())
    found = check(cosign, Signer(Path("cosign.pub")), source="")
    assert cosign.asked[0][4:-1] == ["--key", "cosign.pub", "--insecure-ignore-tlog=true"]
    assert found.status is Status.PASSED and "no transparency log was asked" in found.text


@pytest.mark.parametrize("out", ["", "[]", "{}", "null", "[{}]", signed("sha256:" + "0b" * 32)])
def test_an_answer_that_does_not_name_the_digest_is_none(out: str) -> None:
    assert check(Cosign(out=out)).status is Status.FAILED


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("Error: no signatures found", "not signed"),
        ("WARNING: x\nError: no matching signatures: invalid signature", "signed, but not by an identity that matches"),
        (
            f'Error: no matching attestations: expected SAN value to match "x", got "{SUBJECT}"',
            f"but with {SUBJECT}; exp",
        ),
        ("Error: setting trusted material: getting trusted root from TUF: no such host", "trust root could not be"),
        ("Error: Get https://ghcr.io/v2/: connection refused", "could not say"),
        ("", "exit status 1"),
        (f"Error: {'x' * 5000}", "…"),
    ],
)
def test_what_cosign_refuses_is_said_in_a_line(error: str, text: str) -> None:
    found = check(Cosign(1, err=error))
    assert found.status is Status.FAILED and text in found.text
    assert "\n" not in found.text and len(found.text) < 1300


def test_no_cosign_is_a_failure_that_says_how_to_get_it() -> None:
    class Absent(Programs):
        def run(self, argv: Sequence[str | Path], deadline_seconds: float, *, shown: bool = False) -> Ended:
            raise SlipstreamError(Code.MISCONFIGURED, "cosign is not installed", hint="Debian's package cosign")

    found = check(Absent())
    assert (found.status, found.text) == (Status.FAILED, "cosign is not installed. Debian's package cosign")
