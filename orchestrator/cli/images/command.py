"""`slipstream images verify`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from orchestrator.cli.images.checks import Check, Report, Status
from orchestrator.cli.images.names import parse_name
from orchestrator.cli.images.programs import Programs
from orchestrator.cli.images.signature import GITHUB_ISSUER, Signer, whole
from orchestrator.cli.images.verification import Verification
from orchestrator.cli.invocation import Output, plain
from orchestrator.cli.options import Json

_STYLE = {Status.PASSED: "green", Status.FAILED: "bold red", Status.NOT_CHECKED: "yellow"}
_WIDTHS = (13, 15)

images = typer.Typer(no_args_is_help=True, help="Whether an image is what it says.")


@images.callback()
def _group() -> None:
    """Whether an image is what it says."""


@images.command()
def verify(
    image: Annotated[str, typer.Argument(help="Image in a registry, by tag or digest.")],
    identity: Annotated[
        str | None,
        typer.Option(
            help="Who may have signed: a regular expression of the whole identity. Without it: the workflow of the "
            "repository that the image names, if its owner is the image's."
        ),
    ] = None,
    issuer: Annotated[
        str | None, typer.Option(metavar="URL", help=f"Who vouches for the identity; {GITHUB_ISSUER} if unset.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Public key (PEM) in place of an identity.")
    ] = None,
    patches: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Folder patches/ of a checkout to compare with.")
    ] = None,
    pull: Annotated[bool, typer.Option("--pull", help="Bring the image, to look into it too.")] = False,
    local: Annotated[
        bool, typer.Option("--local", help="An image of this machine, in no registry: no signature, no SBOM.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show on stderr what was asked of docker and cosign.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check signature, digest, SBOM, provenance, patches and GPU architectures (exit status 1 if one is wrong)."""
    if key is not None and (identity is not None or issuer is not None):
        raise typer.BadParameter("--key stands for itself: neither --identity nor --issuer goes with it")
    if local and (key is not None or identity is not None or issuer is not None or pull):
        raise typer.BadParameter(
            "--local asks no registry: none of --key, --identity, --issuer and --pull goes with it"
        )
    output = Output(as_json)
    programs = Programs(output.warn if verbose else None)
    signer = Signer(key, whole(identity) if identity else "", issuer or GITHUB_ISSUER)
    verification = Verification(programs, parse_name(image), signer, patches, pull)
    digest = None if local else verification.resolve()
    checks: list[Check] = []
    for check in verification.local() if digest is None else verification.remote(digest):
        checks.append(check)
        if not as_json:
            _show(output, check)
    report = Report(image, digest, tuple(checks))
    if as_json:
        output.emit(report.as_json())
    else:
        output.say(report.verdict, "green" if report.passed else "bold red")
    if not report.passed:
        raise typer.Exit(1)


def _show(output: Output, check: Check) -> None:
    words = ((check.status.ljust(_WIDTHS[0]), _STYLE[check.status]), check.name.ljust(_WIDTHS[1]), plain(check.text))
    output.out.print(Text.assemble(*words), soft_wrap=True)
