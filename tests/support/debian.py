"""Programs out of Debian packages, unpacked into a folder of the cache: nothing is installed, no root is needed."""

import fcntl
import re
import shutil
from pathlib import Path

import pytest

from orchestrator.settings import Settings
from tests.support.commands import must

# Its packages are new enough for what the pipeline signs, and run on Debian 12 too.
SUITE = "forky"
APT_SECONDS = 180
_SOURCES = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
# `URIs: http://host/debian` of one kind of file, `deb [options] http://host/debian bookworm main` of the other.
_ARCHIVE = re.compile(r"^(?:URIs:|deb(?: \[[^]]*\])?) +(https?://\S+/debian)/?(?:\s|$)", re.MULTILINE)
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def debian_program(name: str, *, any_version: bool = True) -> Path:
    """Path of a program whose package has its name: the installed one if `any_version` will do, else the package's.

    Skips the test where the package cannot be had.
    """
    if any_version and (installed := shutil.which(name)) is not None:
        return Path(installed)
    folder = Settings().cache / "programs" / name
    program = folder / "root/usr/bin" / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _unpack(name, folder)
    return program


def _unpack(package: str, folder: Path) -> None:
    archive = next(
        (found[1] for path in _SOURCES if path.exists() and (found := _ARCHIVE.search(path.read_text()))), ""
    )
    if not archive or shutil.which("apt-get") is None:
        pytest.skip(f"NOT TESTED: there is no Debian archive to take the package {package} from.")
    # apt with a state of its own: the machine's suites and preferences stay as they are.
    sources = folder / "sources.list"
    sources.write_text(f"deb [signed-by={_KEYRING}] {archive} {SUITE} main\n")
    for made in ("lists/partial", "cache/archives/partial"):
        (folder / made).mkdir(parents=True, exist_ok=True)
    options = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "Acquire::Languages": "none",
        "Acquire::Check-Valid-Until": "false",
        "APT::Sandbox::User": "",
    }
    apt = ["apt-get", "-qq", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    must([*apt, "update"], folder=folder, timeout_seconds=APT_SECONDS)
    must([*apt, "download", package], folder=folder, timeout_seconds=APT_SECONDS)
    (archive_file,) = folder.glob("*.deb")
    must(["dpkg-deb", "--extract", archive_file, "new"], folder=folder, timeout_seconds=APT_SECONDS)
    # Whole or not at all.
    (folder / "new").rename(folder / "root")
    archive_file.unlink()
    for left in ("lists", "cache"):
        shutil.rmtree(folder / left)
