"""What a container may do, asked of the engine and of the kernel."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from tests.integration.docker.conftest import Site
from tests.support.orchestrator import environment_of

pytestmark = pytest.mark.integration


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


async def test_it_is_confined(site: Site) -> None:
    keys: dict[str, Any] = {"limits": {"memory": "512MiB", "cpus": 1.5, "pids": 300}}
    server = await (await site.start(await site.driver(**keys), site.order())).listens()
    found = site.engine.inspect(server.child.id)
    config = found["HostConfig"]
    assert config["ReadonlyRootfs"] and config["CapDrop"] == ["ALL"] and not config["CapAdd"]
    assert not config["Privileged"] and config["SecurityOpt"] == ["no-new-privileges:true"]
    assert config["RestartPolicy"]["Name"] == "no" and config["PidMode"] == "" and config["IpcMode"] == "private"
    assert (config["Memory"], config["MemorySwap"]) == (512 << 20, 512 << 20)
    assert (config["NanoCpus"], config["PidsLimit"]) == (1_500_000_000, 300)
    assert config["LogConfig"] == {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "2"}}
    assert not config["Binds"] and not config["Devices"] and not config["DeviceRequests"]

    kernel = status_of(found["State"]["Pid"])
    assert int(kernel["CapEff"], 16) == int(kernel["CapBnd"], 16) == 0
    assert kernel["NoNewPrivs"] == "1" and kernel["Seccomp"] == "2"
    assert set(kernel["Uid"].split()) == set(kernel["Gid"].split()) == {"10001"}
    assert kernel["Groups"] in ("", "10001")


async def test_it_sees_its_model_read_only_and_nothing_else_of_the_host(site: Site) -> None:
    server = await (await site.start(await site.driver(), site.order())).listens()
    [mount] = site.engine.inspect(server.child.id)["Mounts"]
    assert (mount["Type"], mount["Destination"], mount["RW"]) == ("bind", str(site.model), False)
    ls = site.engine.run("exec", server.child.id, "ls", str(site.model.parent))
    assert ls.split() == [site.model.name]
    for path in (str(site.model), "/etc/passwd", "/opt/llama-server/llama-server"):
        with pytest.raises(AssertionError, match=r"Permission denied|Read-only file system"):
            site.engine.run("exec", server.child.id, "bash", "-c", f"echo x >> {path}")


async def test_nothing_is_published_and_nothing_outside_is_reached(site: Site) -> None:
    server = await (await site.start(await site.driver(), site.order())).listens()
    found = site.engine.inspect(server.child.id)
    assert not any(found["NetworkSettings"]["Ports"].values()) and not found["HostConfig"]["PortBindings"]
    assert list(found["NetworkSettings"]["Networks"]) == [site.network]
    assert site.engine.run("port", server.child.id) == ""
    routes = site.engine.run("exec", server.child.id, "cat", "/proc/net/route").splitlines()[1:]
    assert all(route.split()[1] != "00000000" for route in routes), "a default route"


async def test_its_environment_is_the_images_and_a_key(site: Site) -> None:
    first, second = [await site.start(await site.driver(), site.order()) for _ in range(2)]
    keys = set()
    for server in (first, second):
        await server.listens()
        environment = environment_of(site.engine.inspect(server.child.id)["State"]["Pid"])
        keys.add(environment.pop("LLAMA_API_KEY"))
        assert server.child.authorization.removeprefix("Bearer ") in keys
        assert not [name for name in environment if name.startswith(("LLAMA", "HF_"))]
        # The image's own words on itself.
        ours = {name for name in environment if name.startswith("SLIPSTREAM")}
        assert ours == {"SLIPSTREAM_ACCELERATOR", "SLIPSTREAM_LLAMA_SERVER"}
    assert len(keys) == 2


async def test_a_file_that_its_user_cannot_read_is_named_before_anything_starts(site: Site, tmp_path: Path) -> None:
    private = tmp_path / "private.gguf"
    private.write_bytes(site.model.read_bytes())
    private.chmod(0o600)
    site.model = private
    with pytest.raises(SlipstreamError) as caught:
        await (await site.driver()).start(site.order())
    assert caught.value.code is Code.MISCONFIGURED
    assert "private.gguf" in caught.value.message and "10001:10001" in caught.value.message
    assert site.engine.owned(site.owner) == []


async def test_links_are_followed_to_the_file_itself(site: Site, tmp_path: Path) -> None:
    link = tmp_path / "by-another-name.gguf"
    link.symlink_to(site.model)
    site.model = link
    server = await (await site.start(await site.driver(), site.order())).listens()
    assert (await server.complete()).status_code == 200


async def test_a_path_serves_as_a_mount_and_files_outside_are_refused(site: Site, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir(mode=0o755)
    site.model = Path(shutil.copy(site.model, models))
    folder = str(models)
    driver = await site.driver(mounts=[{"source": folder, "target": folder}])
    server = await (await site.start(driver, site.order())).listens()
    [mount] = site.engine.inspect(server.child.id)["Mounts"]
    assert (mount["Source"], mount["RW"]) == (folder, False)
    stray = tmp_path / "stray.gguf"
    stray.write_bytes(site.model.read_bytes())
    site.model = stray
    with pytest.raises(SlipstreamError, match="below no `target`"):
        await driver.start(site.order())
