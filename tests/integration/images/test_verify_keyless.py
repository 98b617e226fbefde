"""Signatures without keys: the real cosign, and a stand-in for Sigstore that certifies whom a test names."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.images.published import ATTESTATIONS, Published
from tests.support.cosign import Cosign, make_cosign
from tests.support.sigstore import GITHUB, Sigstore, sigstore_trusted_by

pytestmark = pytest.mark.integration

WORKFLOW = "https://github.com/someone/slipstream/.github/workflows/images.yml"


@pytest.fixture(scope="module")
def cosign(published: Published, tmp_path_factory: pytest.TempPathFactory) -> Cosign:
    return make_cosign(tmp_path_factory.mktemp("keyless") / "cosign")


@pytest.fixture(scope="module")
def sigstore(cosign: Cosign) -> Iterator[Sigstore]:
    with sigstore_trusted_by(cosign) as services:
        yield services


def publish(published: Published, tag: str) -> str:
    """An image for one signature, by digest: signatures of the same one would add up."""
    return published.publish(published.plain, ATTESTATIONS | {"https://example.org/tag": {"tag": tag}}, tag)


@pytest.mark.parametrize("ref", ["heads/main", "tags/v1"])
def test_the_workflow_of_the_images_repository_is_accepted(
    published: Published, sigstore: Sigstore, cosign: Cosign, ref: str
) -> None:
    image = publish(published, f"good-{ref.partition('/')[2]}")
    sigstore.sign(cosign, image, f"{WORKFLOW}@refs/{ref}")
    found = published.verify(image, environment=cosign.environment)
    assert (found.status, found.failed) == (0, []), found.answer
    assert r"github\.com/someone/slipstream/\.github/workflows/images\.yml" in found.text("signature")


@pytest.mark.parametrize(
    ("identity", "issuer"),
    [
        (f"{WORKFLOW}@refs/heads/other", GITHUB),
        (f"{WORKFLOW.replace('images', 'ci')}@refs/heads/main", GITHUB),
        (f"{WORKFLOW.replace('someone', 'another')}@refs/heads/main", GITHUB),
        (f"{WORKFLOW}@refs/heads/main", "https://issuer.example"),
    ],
    ids=["branch", "workflow", "owner", "issuer"],
)
def test_anybody_else_is_not(
    published: Published, sigstore: Sigstore, cosign: Cosign, identity: str, issuer: str
) -> None:
    image = publish(published, f"else-{secrets.token_hex(4)}")
    sigstore.sign(cosign, image, identity, issuer)
    found = published.verify(image, environment=cosign.environment)
    assert (found.status, found.failed) == (1, ["signature"])
    assert found.text("signature").startswith(f"signed, but with {identity if issuer == GITHUB else issuer}; expected ")


def test_another_identity_is_accepted_if_it_is_named(published: Published, sigstore: Sigstore, cosign: Cosign) -> None:
    image = publish(published, "named")
    sigstore.sign(cosign, image, "https://ci.example/build/1", "https://ci.example")
    named = ("--identity", r"https://ci\.example/build/\d+", "--issuer", "https://ci.example")
    assert published.verify(image, *named, environment=cosign.environment).status == 0
    # To the letter, as the pipeline names itself in another registry.
    literal = ("--identity", r"\Qhttps://ci.example/build/1\E", "--issuer", "https://ci.example")
    assert published.verify(image, *literal, environment=cosign.environment).status == 0
    # An expression is of the whole identity.
    part = ("--identity", r"https://ci\.example/build", "--issuer", "https://ci.example")
    assert published.verify(image, *part, environment=cosign.environment).failed == ["signature"]


def test_certificates_of_an_authority_that_nobody_trusts_are_none(
    published: Published, sigstore: Sigstore, cosign: Cosign, tmp_path: Path
) -> None:
    image, other = publish(published, "forged"), make_cosign(tmp_path / "other")
    with sigstore_trusted_by(other) as forger:
        forger.sign(other, image, f"{WORKFLOW}@refs/heads/main")
    found = published.verify(image, environment=cosign.environment)
    assert (found.status, found.failed) == (1, ["signature"])


def test_without_a_trust_root_nothing_is_known(published: Published, tmp_path: Path) -> None:
    image, other = publish(published, "untrusted"), make_cosign(tmp_path / "other")
    with sigstore_trusted_by(other) as services:
        services.sign(other, image, f"{WORKFLOW}@refs/heads/main")
    # The services have ended.
    found = published.verify(image, environment=other.environment)
    assert (found.status, found.failed) == (1, ["signature"])
    assert "trust root could not be fetched" in found.text("signature")
