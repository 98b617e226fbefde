"""docker/install-packages: where a base's packages come from, and which kernels of rocBLAS an image keeps."""

import subprocess
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.support.docker import MAIN, bases, require_engine

SCRIPT = REPOSITORY / "docker/install-packages"
# As an official image has them, with a mirror and an archive that there are not.
SOURCES = """\
Types: deb
# http://old.example.org/archive/debian/20261005T000000Z
URIs: http://mirror.example.org/debian
Suites: forky forky-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
# http://old.example.org/archive/debian-security/20261005T000000Z
URIs: http://mirror.example.org/debian-security
Suites: forky-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
UNRELEASED, RELEASED = "ID=debian\nVERSION_CODENAME=forky\n", 'ID=debian\nVERSION_ID="13"\n'

pytestmark = pytest.mark.integration


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The files of an image that a date in its sources is read from."""
    for folder in ("apt.conf.d", "sources.list.d", "lists"):
        (tmp_path / "etc/apt" / folder).mkdir(parents=True)
    (tmp_path / "etc/apt/sources.list.d/debian.sources").write_text(SOURCES)
    (tmp_path / "etc/os-release").write_text(UNRELEASED)
    return tmp_path


def pin_to_date(root: Path) -> None:
    command = ["bash", "-euo", "pipefail", "-c", 'source "$1"; pin_to_date "$2"', "bash", str(SCRIPT), str(root)]
    subprocess.run(command, check=True)


def indexes(root: Path) -> set[str]:
    """What apt would ask for, by its own reading of the sources."""
    folders = {"Etc::sourcelist": "/dev/null", "Etc::sourceparts": f"{root}/etc/apt/sources.list.d"}
    folders["State::lists"] = f"{root}/etc/apt/lists"
    options = [word for name, value in folders.items() for word in ("-o", f"Dir::{name}={value}")]
    done = subprocess.run(["apt-get", "update", "--print-uris", *options], capture_output=True, text=True, check=True)
    return {line.split("'")[1] for line in done.stdout.splitlines() if "InRelease" in line}


def test_a_debian_that_is_not_released_takes_the_packages_of_its_date(root: Path) -> None:
    file, conf = root / "etc/apt/sources.list.d/debian.sources", root / "etc/apt/apt.conf.d/dated-archive"
    pin_to_date(root)
    old = "http://old.example.org/archive"
    assert indexes(root) == {
        f"{old}/debian/20261005T000000Z/dists/forky/InRelease",
        f"{old}/debian/20261005T000000Z/dists/forky-updates/InRelease",
        f"{old}/debian-security/20261005T000000Z/dists/forky-security/InRelease",
    }
    read = ["apt-config", "-c", str(conf), "dump", "Acquire::Check-Valid-Until"]
    assert 'Check-Valid-Until "false"' in subprocess.run(read, capture_output=True, text=True, check=True).stdout
    # Each stage of one image asks for it.
    before = file.read_text()
    pin_to_date(root)
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("os_release", "sources"),
    [(RELEASED, SOURCES), (UNRELEASED, SOURCES.replace("# http", "# see http")), (UNRELEASED, None)],
    ids=["released", "no date", "no sources"],
)
def test_other_sources_are_left_alone(root: Path, os_release: str, sources: str | None) -> None:
    file = root / "etc/apt/sources.list.d/debian.sources"
    (root / "etc/os-release").write_text(os_release)
    file.unlink()
    if sources:
        file.write_text(sources)
    pin_to_date(root)
    assert (file.read_text() if file.exists() else None) == sources
    assert not list((root / "etc/apt/apt.conf.d").iterdir())


def test_of_rocblas_the_kernels_for_the_named_gpus_are_kept(tmp_path: Path) -> None:
    """A package with rocBLAS' names, unpacked by an image's own dpkg."""
    require_engine()
    folder = "usr/lib/x86_64-linux-gnu/rocblas/4.4.1/library"
    for architecture in ("gfx906", "gfx90a-xnack+", "gfx1030"):
        for name in (f"Kernels.so-000-{architecture}.hsaco", f"TensileLibrary_lazy_{architecture.split('-')[0]}.dat"):
            (tmp_path / "root" / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / "root" / folder / name).touch()
    (tmp_path / "root" / folder / "TensileLibrary_Type_HH_fallback.dat").touch()
    (tmp_path / "root" / folder).parents[2].joinpath("librocblas.so.4").touch()
    (tmp_path / "root/DEBIAN").mkdir()
    control = "Package: rocblas\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: names alone\n"
    (tmp_path / "root/DEBIAN/control").write_text(control)
    subprocess.run(
        ["dpkg-deb", "--build", tmp_path / "root", tmp_path / "rocblas.deb"], check=True, capture_output=True
    )
    script = "source /install-packages; keep_kernels_of gfx906 gfx90a; dpkg -i /rocblas.deb >&2; "
    script += "ls /usr/lib/x86_64-linux-gnu/librocblas.so.4; ls /usr/lib/x86_64-linux-gnu/rocblas/4.4.1/library"
    mounts = (f"--volume={SCRIPT}:/install-packages:ro", f"--volume={tmp_path}/rocblas.deb:/rocblas.deb:ro")
    listed = MAIN.run("run", "--rm", *mounts, bases()["CPU_BASE"], "bash", "-euc", script)
    assert listed.splitlines() == [
        "/usr/lib/x86_64-linux-gnu/librocblas.so.4",
        "Kernels.so-000-gfx906.hsaco",
        "Kernels.so-000-gfx90a-xnack+.hsaco",
        "TensileLibrary_Type_HH_fallback.dat",
        "TensileLibrary_lazy_gfx906.dat",
        "TensileLibrary_lazy_gfx90a.dat",
    ]


@pytest.mark.parametrize("accelerator, variant", [("cpu", "rocm-gfx906"), ("rocm", "cuda"), ("cuda", "")])
def test_a_variant_of_another_accelerator_is_refused(accelerator: str, variant: str) -> None:
    require_engine()
    script = f"/install-packages runtime {accelerator} '{variant}' 2>&1 && echo installed || true"
    alone = ("run", "--rm", "--network", "none", f"--volume={SCRIPT}:/install-packages:ro")
    said = MAIN.run(*alone, bases()["CPU_BASE"], "bash", "-c", script)
    assert f"variant '{variant}' is none of {accelerator}: expected {accelerator}" in said and "installed" not in said


def test_a_library_is_found_in_a_list_of_any_length() -> None:
    # More than a pipe holds: whoever stops reading at the first find ends the program that lists.
    listing = "ldconfig() { echo libcublas.so.12; printf '%200000s' x; }"
    script = f'source "$1"; {listing}; has_library libcublas.so && ! has_library libhipblas.so'
    subprocess.run(["bash", "-euo", "pipefail", "-c", script, "bash", str(SCRIPT)], check=True)
