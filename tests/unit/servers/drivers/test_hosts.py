import re
from pathlib import Path

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas.hosts import ContainerLimits, HostSpec, Rocm, Tls
from orchestrator.servers.drivers.hosts import load_hosts
from tests import REPOSITORY

FULL = """\
hosts:
  - name: here
    driver: process
    memory: {host: 24GiB, CUDA0: 30GiB}
  - name: far
    driver: docker
    address: tcp://192.0.2.7:2376
    tls: {ca: certs/ca.pem, cert: certs/cert.pem, key: /etc/keys/key.pem}
    images: {default: servers:cpu, stock: "ghcr.io/ggml-org/llama.cpp:server"}
    devices:
      nvidia: [0, GPU-5a]
      rocm: {render: [/dev/dri/renderD128], gids: [44, 105]}
    reach: 192.0.2.7
    network: models
    mounts: [{source: models, target: /var/cache/slipstream/}]
    limits: {memory: 40GiB, cpus: 7.5, pids: 500, memlock: unlimited}
    user: "1000:1000"
"""


def hosts(folder: Path, text: str) -> tuple[HostSpec, ...]:
    path = folder / "hosts.yaml"
    path.write_text(text)
    return load_hosts(path)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(SlipstreamError) as caught:
        hosts(folder, text)
    assert caught.value.code is Code.MISCONFIGURED
    return caught.value.message


def docker(*lines: str) -> str:
    return "\n".join(("hosts:", "  - name: d", "    driver: docker", *(f"    {line}" for line in lines)))


def test_every_key_is_read(tmp_path: Path) -> None:
    here, far = hosts(tmp_path, FULL)
    assert dict(here.memory) == {"host": 24 << 30, "CUDA0": 30 << 30}
    assert far.tls is not None
    assert far.tls.ca == str(tmp_path / "certs/ca.pem") and far.tls.key == "/etc/keys/key.pem"
    assert far.devices.nvidia == ("0", "GPU-5a") and far.devices.expected
    assert far.devices.rocm is not None and far.devices.rocm.gids == (44, 105)
    assert far.mounts[0].target == "/var/cache/slipstream"
    assert (far.limits.memory, far.limits.cpus, far.limits.memlock) == (40 << 30, 7.5, "unlimited")
    assert far.is_published and far.network_name == "models"


def test_a_short_host_has_safe_defaults(tmp_path: Path) -> None:
    [host] = hosts(tmp_path, docker("images: {default: servers:cpu}"))
    assert host.address == "unix:///var/run/docker.sock" and host.user == "10001:10001"
    assert host.network_name == "slipstream-servers" and not host.is_published and not host.devices.expected


@pytest.mark.parametrize(
    "accelerator, image, expected", [("cpu", "cpu", 0), ("cuda", "cuda", 1), ("rocm", "rocm-gfx906", 1)]
)
def test_our_own_hosts_files_go_by_the_accelerator(accelerator: str, image: str, expected: int) -> None:
    [host] = load_hosts(REPOSITORY / "docker" / f"hosts.{accelerator}.yaml")
    assert (host.driver, host.images) == ("docker", {"default": f"slipstream-llama-server:{image}"})
    assert host.devices.expected == expected


@pytest.mark.parametrize(
    "text, place, said",
    [
        (docker("images: {default: a}", "adress: unix:///x"), "hosts.yaml:5:5", "adress"),
        (docker("images: {default: a}", "limits:", "  memory: lots"), "hosts.yaml:6:7", "limits.memory"),
        ("hosts:\n  - {name: a, driver: podman}\n", "hosts.yaml:2:", "'process' or 'docker'"),
        ("hosts: [\n", "hosts.yaml:2:1", "expected"),
        ("- name: a\n", "hosts.yaml:1", "the list `hosts`"),
        ("hosts: []\n", "hosts.yaml:1:1", "at least 1"),
    ],
)
def test_a_mistake_is_told_with_line_and_column(tmp_path: Path, text: str, place: str, said: str) -> None:
    message = refusal(tmp_path, text)
    assert place in message and said in message


def test_a_group_by_name_is_refused_and_how_to_find_its_number_is_told(tmp_path: Path) -> None:
    rocm = "devices: {rocm: {render: [/dev/dri/renderD128], gids: [render]}}"
    message = refusal(tmp_path, docker("images: {default: a}", rocm))
    assert "'render' is a name" in message and "stat -c %g /dev/kfd" in message


@pytest.mark.parametrize(
    "lines, said",
    [
        (["images: {stock: a}"], "`images` needs a `default`"),
        (["images: {default: a}", "address: http://x"], "expected unix:///"),
        (["images: {default: a}", "address: tcp://x:2375"], "whoever reaches an unguarded engine owns its machine"),
        (["images: {default: a}", "tls: {ca: a, cert: b, key: c}"], "`tls` is for tcp:// addresses alone"),
        (["images: {default: a}", "address: ssh://u@x"], "`reach` must be an address of that host"),
        (["images: {default: a}", "address: ssh://u@x", "reach: 192.0.2.1"], "`mounts` is needed"),
        (["images: {default: a}", "reach: 0.0.0.0"], "every address"),
        (["images: {default: a}", "reach: some.name"], "neither `network` nor an IP address"),
        (["images: {default: a}", "user: root"], "user"),
        (["images: {default: a}", "mounts: [{source: a, target: ../x}]"], "no absolute path"),
        (["images: {default: a}", "memory: {host: -1}"], "memory.host"),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path: Path, lines: list[str], said: str) -> None:
    assert said in refusal(tmp_path, docker(*lines))


def test_keys_of_containers_are_refused_for_processes(tmp_path: Path) -> None:
    message = refusal(tmp_path, "hosts:\n  - {name: a, driver: process, images: {default: x}}\n")
    assert "`images` is for `driver: docker` alone" in message


def test_two_hosts_of_one_name_are_refused(tmp_path: Path) -> None:
    text = "hosts:\n  - {name: a, driver: process}\n  - {name: a, driver: process}\n"
    assert "two hosts are called 'a'" in refusal(tmp_path, text)


def test_a_socket_proxy_may_be_plain(tmp_path: Path) -> None:
    [host] = hosts(tmp_path, docker("images: {default: a}", "address: tcp://proxy:2375", "plain: true"))
    assert not host.is_published


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(SlipstreamError, match="not readable: No such file"):
        load_hosts(tmp_path / "hosts.yaml")


def test_the_document_names_every_key() -> None:
    document = (REPOSITORY / "docs" / "hosts.md").read_text()
    keys = [*HostSpec.model_fields, *ContainerLimits.model_fields, *Rocm.model_fields, *Tls.model_fields]
    assert [key for key in keys if not re.search(rf"[`{{ .]{key}\b", document)] == []
