"""A part of the ROCm server really compiled, in the stage that the image is built in. No AMD GPU is needed, or asked.

The stage takes Debian's ROCm packages: some minutes and 5 GB the first time. `-m 'not rocm'` leaves this out.
"""

import re

import pytest

from llamacpp.pin import ROOT, load_pin, load_series
from llamacpp.source import bring_sdist, cache_root
from tests.support.docker import MAIN, bases, build_image, require_engine

# The file that patch 0007 touches, and a small kernel.
FILES = ("ggml/src/ggml-cuda/ggml-cuda.cu", "ggml/src/ggml-cuda/argmax.cu")
OBJECTS = "/cache/work/*/build"
# ccache outlives the test: the next one compiles what has changed.
CACHE_VOLUME = "slipstream-test-rocm-cache"
# apt's words for a distribution between two states; nothing of ours can mend that.
MOVING = re.compile(
    r"unmet dependencies|Unable to (?:correct problems|locate package)|no installation candidate|Failed to fetch"
)

pytestmark = [pytest.mark.integration, pytest.mark.rocm]


@pytest.fixture(scope="module")
def compiler() -> str:
    """The image of the stage."""
    require_engine()
    base = f"ROCM_BUILD_BASE={bases('rocm')['ROCM_BUILD_BASE']}"
    try:
        return build_image("compiler", "slipstream-compiler:rocm", "ACCELERATOR=rocm", base)
    except AssertionError as failure:
        if found := MOVING.search(str(failure)):
            pytest.skip(f"NOT TESTED: code for AMD's GPUs. Debian's ROCm packages cannot be installed now: {found[0]}.")
        raise


def test_gfx906_code_is_compiled_by_the_script_of_the_image(compiler: str) -> None:
    sdist = bring_sdist(load_pin(), cache_root() / "downloads")
    mounts = [f"{ROOT / name}:/src/{name}:ro" for name in ("docker", "patches")]
    mounts += [f"{CACHE_VOLUME}:/cache", f"{sdist}:/cache/downloads/{sdist.name}:ro"]
    build = "docker/build-llama-server --profile portable --variant rocm --keep" + "".join(
        f" --only {f}" for f in FILES
    )
    script = f"rm -rf /cache/work; {build}; cd {OBJECTS}; "
    script += "grep -rlaF GGML_HIP_NO_STAGING --include '*.cu.o' . >/cache/patched; "
    script += "find . -name '*.cu.o' -exec grep -aoEH 'amdhsa--gfx[0-9a-f]+' {} + | sort -u; cat /cache/patched"
    said = MAIN.run(
        *("run", "--rm", "--network", "none", "--env", "SLIPSTREAM_CACHE=/cache", "--env", "PYTHONDONTWRITEBYTECODE=1"),
        *(word for mount in mounts for word in ("--volume", mount)),
        *(compiler, "bash", "-euo", "pipefail", "-c", script),
        timeout_seconds=1200,
    )
    code = re.findall(r"(\w[\w-]*\.cu)\.o:amdhsa--(\w+)", said)
    assert sorted(code) == [("argmax.cu", "gfx906"), ("ggml-cuda.cu", "gfx906")]
    assert re.findall(r"/([\w-]*\.cu)\.o$", said, re.MULTILINE) == ["ggml-cuda.cu"]
    assert load_series("series.rocm").patches[-1].name == "0007-hip-pinned-staging.patch"
