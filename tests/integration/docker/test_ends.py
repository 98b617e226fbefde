"""How a container ends, and what is said of it."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.integration.docker.conftest import Site
from tests.support.docker import build_variant

pytestmark = pytest.mark.integration


def script(path: str, *lines: str) -> tuple[str, ...]:
    """Lines of a Dockerfile: a shell script takes the place of llama-server."""
    text = "\\n".join(("#!/bin/bash", *lines, ""))
    return ("USER 0", f"RUN printf '{text}' > {path} && chmod 755 {path}", f"LABEL slipstream.llama-server={path}")


async def test_a_killed_server_is_told_from_one_that_we_killed(site: Site) -> None:
    driver = await site.driver()
    crashed = await (await site.start(driver, site.order())).listens()
    processes = site.engine.run("top", crashed.child.id, "-eo", "pid,comm").splitlines()
    [pid] = [int(row.split()[0]) for row in processes if "llama-server" in row]
    os.kill(pid, signal.SIGSEGV)
    await crashed.ends()
    failure = crashed.child.failure()
    assert (failure.reason, failure.exit_code) == ("killed", -signal.SIGSEGV) and "SIGSEGV" in failure.message
    assert any("listening on" in line for line in failure.log_tail)

    ours = await (await site.start(driver, site.order())).listens()
    ours.child.kill()
    await ours.ends()
    assert ours.child.is_dead and ours.child.failure().exit_code == -signal.SIGKILL
    for server in (crashed, ours):
        await server.child.stop(1.0)
    assert site.engine.owned(site.owner) == []


async def test_a_limit_that_is_exceeded_is_out_of_memory(site: Site) -> None:
    driver = await site.driver(limits={"memory": "24MiB"})
    server = await site.start(driver, site.order("--ctx-size", "1048576"))
    await server.ends()
    failure = server.child.failure()
    assert failure.reason == "out_of_memory", failure
    assert "kernel" in failure.message and failure.exit_code == -signal.SIGKILL
    assert site.engine.inspect(server.child.id)["State"]["OOMKilled"]
    await server.child.stop(1.0)


async def test_a_wrong_file_and_a_wrong_argument_are_told_from_the_log(site: Site) -> None:
    driver = await site.driver()
    server = await (await site.start(driver, site.order("--no-such-flag"))).ends()
    assert server.child.failure().reason == "unknown_argument", server.child.failure()
    await server.child.stop(1.0)
    broken = site.model.parent / f"{site.owner}.gguf"
    broken.write_bytes(site.model.read_bytes()[:4096])
    site.model = broken
    server = await (await site.start(driver, site.order())).ends()
    assert server.child.failure().reason == "bad_file", server.child.failure()
    assert str(broken.parent) not in server.child.failure().message
    await server.child.stop(1.0)


async def test_what_ignores_term_is_killed_after_its_grace(site: Site) -> None:
    lines = script("/deaf", 'trap "" TERM', "echo listening on http://x", "while :; do sleep 0.1; done")
    deaf = build_variant(f"slipstream-deaf:{site.owner}", site.image, *lines)
    try:
        server = await (await site.start(await site.driver(), site.order(image=deaf))).listens()
        began = asyncio.get_running_loop().time()
        await server.child.stop(0.5)
        assert 0.5 <= asyncio.get_running_loop().time() - began < 10
        assert site.engine.owned(site.owner) == []
        assert server.child.failure().exit_code == -signal.SIGKILL
    finally:
        site.engine.run("image", "rm", "--force", deaf)


async def test_health_is_the_engines_and_a_sick_server_has_failed(site: Site) -> None:
    """The image's own check, which needs no program that the image lacks, and one that turns."""
    driver = await site.driver()
    server = await (await site.start(driver, site.order())).listens()
    async with asyncio.timeout(30):
        while (health := site.engine.inspect(server.child.id)["State"]["Health"])["Status"] != "healthy":
            assert health["Status"] == "starting", health
            await asyncio.sleep(0.1)
    assert "200 OK" in health["Log"][-1]["Output"]
    await server.child.stop(5.0)

    check = "HEALTHCHECK --interval=1s --retries=1 CMD test ! -e /tmp/sick || { echo the fans have stopped; exit 1; }"
    sick = build_variant(f"slipstream-sick:{site.owner}", site.image, check)
    try:
        server = await (await site.start(driver, site.order(image=sick))).listens()
        async with asyncio.timeout(30):
            while site.engine.inspect(server.child.id)["State"]["Health"]["Status"] != "healthy":  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        site.engine.run("exec", server.child.id, "touch", "/tmp/sick")
        await server.ends()
        failure = server.child.failure()
        assert failure.reason == "unhealthy" and "the fans have stopped" in failure.message
        await server.child.stop(1.0)
    finally:
        site.engine.run("image", "rm", "--force", sick)


async def test_a_check_that_fails_while_the_model_loads_is_no_failure(site: Site) -> None:
    check = "HEALTHCHECK --interval=1s --retries=1 CMD exit 1"
    loading = build_variant(f"slipstream-loading:{site.owner}", site.image, check)
    try:
        server = await (await site.start(await site.driver(), site.order(image=loading))).listens()
        async with asyncio.timeout(30):
            while len(site.engine.inspect(server.child.id)["State"]["Health"]["Log"]) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert site.engine.inspect(server.child.id)["State"]["Health"]["Status"] == "starting"
        assert not server.child.is_dead
    finally:
        await server.child.stop(1.0)
        site.engine.run("image", "rm", "--force", loading)


async def test_a_flood_fills_neither_memory_nor_disk_and_the_end_is_told(site: Site) -> None:
    lines = script("/flood", f"yes {'0123456789' * 4} | head -n 1500000", "echo error: the last line", "exit 3")
    flood = build_variant(f"slipstream-flood:{site.owner}", site.image, *lines)
    try:
        server = await (await site.start(await site.driver(), site.order(image=flood))).ends()
        assert len(server.log.tail(10**6)) == 5000
        written = Path(site.engine.inspect(server.child.id)["LogPath"]).parent.glob("*-json.log*")
        assert sum(file.stat().st_size for file in written) < 21 << 20
        failure = server.child.failure()
        assert failure.exit_code == 3 and failure.log_tail[-1] == "error: the last line"
        await server.child.stop(1.0)
    finally:
        site.engine.run("image", "rm", "--force", flood)


async def test_a_container_removed_by_hand_has_ended(site: Site) -> None:
    server = await (await site.start(await site.driver(), site.order())).listens()
    site.engine.run("rm", "--force", server.child.id)
    await server.ends()
    assert server.child.is_dead
    await server.child.stop(1.0)
    assert server.child.failure().exit_code == -signal.SIGKILL
