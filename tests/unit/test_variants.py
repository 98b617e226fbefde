"""Names of variants, what each means, and what docker/accelerators.toml must say."""

from pathlib import Path

import pytest

from llamacpp.pin import PinError, load_series
from llamacpp.variants import ACCELERATORS_FILE, accelerators, load_variant


@pytest.mark.parametrize(
    ("wanted", "name", "accelerator", "architectures"),
    [
        ("cpu", "cpu", "cpu", ()),
        ("rocm", "rocm-gfx906", "rocm", ("gfx906",)),
        ("rocm-gfx906", "rocm-gfx906", "rocm", ("gfx906",)),
        ("rocm-gfx1030_gfx90a", "rocm-gfx1030_gfx90a", "rocm", ("gfx1030", "gfx90a")),
        ("cuda-86-real", "cuda-86-real", "cuda", ("86-real",)),
        ("cuda-86-real_90-virtual", "cuda-86-real_90-virtual", "cuda", ("86-real", "90-virtual")),
    ],
)
def test_a_variant_by_its_name(wanted: str, name: str, accelerator: str, architectures: tuple[str, ...]) -> None:
    variant = load_variant(wanted)
    assert (variant.name, variant.accelerator, variant.architectures) == (name, accelerator, architectures)
    assert load_variant(variant.name) == variant


def test_the_long_list_of_cuda_stays_out_of_its_name() -> None:
    variant = load_variant("cuda")
    assert variant.name == "cuda"
    assert len(variant.architectures) > 5
    assert load_variant("cuda-" + "_".join(variant.architectures)) == variant


def test_cmake_gets_the_architectures_of_gpus_alone() -> None:
    assert load_variant("cpu").cmake_options() == {}
    assert load_variant("cuda-86-real_89-real").cmake_options()["CMAKE_CUDA_ARCHITECTURES"] == "86-real;89-real"
    options = load_variant("rocm").cmake_options()
    assert options["CMAKE_HIP_ARCHITECTURES"] == "gfx906"
    assert options["GGML_HIP"] == "ON"
    assert "CMAKE_CUDA_ARCHITECTURES" not in options


@pytest.mark.parametrize("accelerator", accelerators())
def test_every_accelerator_names_a_series_that_there_is(accelerator: str) -> None:
    variant = load_variant(accelerator)
    assert load_series(variant.patches).patches
    assert set(variant.platforms) <= {"linux/amd64", "linux/arm64"}


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("vulkan", "unknown variant 'vulkan'; accelerators.toml has cpu, cuda, rocm"),
        ("", "unknown variant ''"),
        ("cpu-gfx906", "cpu has no architectures, got gfx906"),
        ("rocm-906", "'906' is no architecture of rocm; expected names such as gfx906 or gfx1030"),
        ("rocm-gfx906;gfx1030", "'gfx906;gfx1030' is no architecture of rocm"),
        ("rocm-gfx906_", "'' is no architecture of rocm"),
        ("rocm-", "'' is no architecture of rocm"),
        ("cuda-gfx906", "'gfx906' is no architecture of cuda; expected names such as 86-real or 90"),
        ("rocm-gfx906_gfx906", "rocm is given the architecture gfx906 twice"),
    ],
)
def test_a_wrong_name_is_refused_with_what_was_expected(wanted: str, message: str) -> None:
    with pytest.raises(PinError, match=message.replace("(", r"\(")):
        load_variant(wanted)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('patches = "series.rocm"', "", r"\[rocm\] patches is None, expected a value of type str"),
        (
            'architectures = ["gfx906"]',
            'architectures = "gfx906"',
            r"\[rocm\] architectures is 'gfx906', expected .* list",
        ),
        ('architectures = ["gfx906"]', "architectures = []", "rocm needs at least one architecture, such as gfx906"),
        ("[rocm]", "[rocm", "not valid TOML"),
    ],
)
def test_a_malformed_file_is_refused_by_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = ACCELERATORS_FILE.read_text()
    assert old in text
    path = tmp_path / "accelerators.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(PinError, match=message):
        load_variant("rocm", path)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PinError, match=r"cannot read the accelerators .*none\.toml: No such file"):
        load_variant("cpu", tmp_path / "none.toml")
