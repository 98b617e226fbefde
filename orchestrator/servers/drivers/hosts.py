"""The hosts file, read: every mistake is an error with line and column."""

from pathlib import Path

from orchestrator.catalog import read_as
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import FileProblem
from orchestrator.schemas.hosts import HostsFile, HostSpec


def load_hosts(path: Path) -> tuple[HostSpec, ...]:
    """The hosts in the order of the file, paths of certificates made absolute. Blocking file I/O.

    SlipstreamError misconfigured names every mistake.
    """
    problems: list[FileProblem] = []
    file = read_as(HostsFile, path, problems, "a mapping with the list `hosts`")
    if file is None:
        raise SlipstreamError(
            Code.MISCONFIGURED,
            "the hosts file cannot be used: " + "; ".join(map(_told, problems)),
            hint="docs/hosts.md lists every key; SLIPSTREAM_HOSTS_FILE names the file",
        )
    return tuple(_with_absolute_paths(host, path.parent) for host in file.hosts)


def _told(problem: FileProblem) -> str:
    where = "" if problem.line is None else f":{problem.line}" + (f":{problem.column}" if problem.column else "")
    return f"{problem.file}{where}: {problem.message.replace('Value error, ', '')}"


def _with_absolute_paths(host: HostSpec, folder: Path) -> HostSpec:
    if host.tls is None:
        return host
    files = {name: str(folder / value) for name, value in host.tls.model_dump().items()}
    return host.model_copy(update={"tls": host.tls.model_copy(update=files)})
