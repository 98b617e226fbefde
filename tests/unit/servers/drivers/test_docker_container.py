from typing import Any

import pytest

from orchestrator.schemas.hosts import HostSpec
from orchestrator.servers.drivers import docker_container as made
from orchestrator.servers.drivers.docker_container import Image
from orchestrator.servers.failures import exit_code_of


def spec(**keys: Any) -> HostSpec:
    return HostSpec.model_validate({"name": "d", "driver": "docker", "images": {"default": "i"}} | keys)


def image(**config: Any) -> Image:
    return Image.of("i:1", {"Id": "sha256:1", "Config": config})


def serving(host: HostSpec, its: Image) -> dict[str, Any]:
    return made.serving(made.create_body(host, its, ["--port", "8080"], {}), host, "key", [])


@pytest.mark.parametrize(
    "config, program",
    [
        ({"Labels": {"slipstream.llama-server": "/x/llama-server"}, "Entrypoint": ["/y"]}, ("/x/llama-server",)),
        ({"Entrypoint": ["/app/llama-server"], "Labels": None}, None),
        ({}, ("/opt/llama-server/llama-server",)),
    ],
)
def test_the_program_is_the_label_then_the_entrypoint_then_the_usual_place(
    config: dict[str, Any], program: tuple[str, ...] | None
) -> None:
    assert image(**config).program == program
    body = made.create_body(spec(), image(**config), [], {})
    assert body.get("Entrypoint") == (None if program is None else list(program))


def test_variables_of_the_image_that_are_flags_are_taken_away() -> None:
    body = serving(spec(), image(Env=["PATH=/bin", "LLAMA_ARG_HOST=0.0.0.0", "LLAMA_API_KEY=theirs", "LLAMA_X="]))
    assert body["Env"] == ["LLAMA_ARG_HOST", "LLAMA_X", "LLAMA_API_KEY=key"]


def test_a_throw_away_container_has_neither_key_nor_network_and_the_accelerators() -> None:
    body = made.create_body(spec(devices={"nvidia": "all"}), image(), ["--help"], {made.PROBE: "--help"})
    assert body["Env"] == [] and body["HostConfig"]["NetworkMode"] == "none"
    assert body["HostConfig"]["DeviceRequests"] == [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}]
    assert body["HostConfig"]["CapDrop"] == ["ALL"] and body["HostConfig"]["ReadonlyRootfs"]


def test_failures_of_the_images_health_check_count_from_its_first_success_on() -> None:
    body = made.create_body(spec(), image(Healthcheck={"Test": ["CMD", "x"]}), [], {})
    assert list(body["Healthcheck"]) == ["StartPeriod"] and body["Healthcheck"]["StartPeriod"] > 3600 * 10**9
    assert "Healthcheck" not in made.create_body(spec(), image(Healthcheck={"Test": ["NONE"]}), [], {})
    assert "Healthcheck" not in made.create_body(spec(), image(), [], {})


def test_limits_that_are_not_asked_for_are_not_set() -> None:
    config = made.create_body(spec(), image(), [], {})["HostConfig"]
    assert not {"Memory", "NanoCpus", "Ulimits", "Devices", "DeviceRequests", "GroupAdd"} & set(config)
    asked = spec(limits={"memory": "1GiB", "cpus": 0.5, "memlock": "unlimited"})
    config = made.create_body(asked, image(), [], {})["HostConfig"]
    assert (config["Memory"], config["MemorySwap"], config["NanoCpus"]) == (1 << 30, 1 << 30, 500_000_000)
    assert config["Ulimits"] == [{"Name": "memlock", "Soft": -1, "Hard": -1}]


def test_ports_are_published_on_the_one_address_that_reaches_the_host() -> None:
    assert "PortBindings" not in serving(spec(), image())["HostConfig"]
    body = serving(spec(reach="192.0.2.7"), image())
    assert body["HostConfig"]["PortBindings"] == {"8080/tcp": [{"HostIp": "192.0.2.7", "HostPort": ""}]}
    assert made.network_body(spec())["internal"] and not made.network_body(spec(reach="192.0.2.7"))["internal"]


def test_addresses_come_from_the_engines_record() -> None:
    networks = {"Networks": {"slipstream-servers": {"IPAddress": "172.18.0.2"}}, "Ports": {}}
    assert made.address_of({"NetworkSettings": networks}, spec()) == "http://172.18.0.2:8080"
    ports = {"Ports": {"8080/tcp": [{"HostIp": "fd00::2", "HostPort": "32768"}]}}
    assert made.address_of({"NetworkSettings": ports}, spec(reach="fd00::2")) == "http://[fd00::2]:32768"
    nothing: tuple[dict[str, Any], ...] = (
        {"Networks": {}},
        {"Networks": {"slipstream-servers": {"IPAddress": ""}}},
        {"Ports": None},
    )
    for empty in nothing:
        assert made.address_of({"NetworkSettings": empty}, spec()) is None
        assert made.address_of({"NetworkSettings": empty}, spec(reach="192.0.2.7")) is None


def test_terms_change_with_what_containers_get_and_with_nothing_else() -> None:
    same = made.terms_of(spec())
    assert made.terms_of(spec(memory={"host": "1GiB"}, images={"default": "other"}, name="e")) == same
    assert made.terms_of(spec(user="0:0")) != same != made.terms_of(spec(devices={"nvidia": "all"}))


@pytest.mark.parametrize("status, code", [(0, 0), (1, 1), (137, -9), (139, -11), (128, 128), (255, 255)])
def test_exit_statuses_of_signals_are_negative(status: int, code: int) -> None:
    assert exit_code_of(status) == code


def test_the_key_is_read_back_from_the_record() -> None:
    assert made.key_of({"Config": {"Env": ["A=b", "LLAMA_API_KEY=a=b"]}}) == "a=b"
    assert made.key_of({"Config": {"Env": None}}) is None
