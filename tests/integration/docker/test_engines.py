"""Several engines, ways to reach them, and one that goes away."""

import asyncio
import getpass
import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from orchestrator.errors import Code, SlipstreamError
from orchestrator.servers.drivers.docker import DockerDriver
from orchestrator.servers.drivers.hosts import load_hosts
from tests import REPOSITORY
from tests.integration.docker.conftest import Site
from tests.support.docker import docker_host, write_hosts

pytestmark = pytest.mark.integration

SOCKET = "/var/run/docker.sock"


class Relay:
    """A way to the engine that can be broken and mended."""

    def __init__(self) -> None:
        self._open: set[asyncio.Task[None]] = set()
        self.server: asyncio.Server | None = None

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        engine_reader, engine_writer = await asyncio.open_unix_connection(SOCKET)
        ways = [asyncio.create_task(_pass(reader, engine_writer)), asyncio.create_task(_pass(engine_reader, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open.discard(task)
            for way in ways:
                way.cancel()
            for end in (writer, engine_writer):
                end.transport.abort()

    async def cut(self) -> None:
        """End it and everything that goes over it."""
        if self.server is not None:
            self.server.close()
        for task in self._open.copy():
            task.cancel()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def relay(path: Path) -> AsyncIterator[Relay]:
    made = Relay()
    made.server = await asyncio.start_unix_server(made, path)
    try:
        yield made
    finally:
        await made.cut()


async def test_two_engines_are_two_hosts(site: Site, second_site: Site, tmp_path: Path) -> None:
    file = write_hosts(
        tmp_path / "hosts.yaml",
        docker_host("one", site.image, network=site.network, memory={"host": "1GiB"}),
        docker_host("two", site.image, address=second_site.engine.address, network=second_site.network),
    )
    specs = load_hosts(file)
    assert [spec.name for spec in specs] == ["one", "two"] and dict(specs[0].memory) == {"host": 1 << 30}
    drivers = [DockerDriver(spec, s.owner) for spec, s in zip(specs, (site, second_site), strict=True)]
    for driver, its in zip(drivers, (site, second_site), strict=True):
        await driver.open()
        its.stack.push_async_callback(driver.close)
    servers = [await site.start(driver, site.order()) for driver in drivers]
    for server in servers:
        assert (await (await server.listens()).complete()).status_code == 200
    assert site.engine.owned(site.owner) == [servers[0].child.container]
    assert second_site.engine.owned(second_site.owner) == [servers[1].child.container]
    assert len({server.child.url for server in servers}) == 2
    for server in servers:
        await server.child.stop(5.0)


async def test_a_lost_engine_is_no_proof_of_a_death(site: Site, tmp_path: Path) -> None:
    way = tmp_path / "engine.sock"
    async with relay(way) as broken:
        driver = await site.driver(address=f"unix://{way}")
        server = await (await site.start(driver, site.order())).listens()
        told = server.log.count
        doomed = await (await site.start(driver, site.order())).listens()
        await broken.cut()
        with pytest.raises(SlipstreamError, match="cannot be reached"):
            await doomed.child.stop(0.1)
        with pytest.raises(SlipstreamError) as caught:
            await driver.start(site.order())
        assert caught.value.code is Code.HOST_FAILED and "cannot be reached" in caught.value.message
        with pytest.raises(SlipstreamError):
            await driver.found()
        assert (await server.complete()).status_code == 200, "the way to the server is another one"
        while server.child._silent_since is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert not server.child.is_dead and server.child.url
        way.unlink()
        async with relay(way):
            async with asyncio.timeout(20):
                while server.log.count == told:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                while server.child._silent_since is not None:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            lines = server.log.tail(5000)
            assert len(lines) == len(set(lines)), "a line was told twice"
            assert (await server.complete()).status_code == 200
            another = await site.start(driver, site.order())
            left = {server.child.container, another.child.container}
            assert set(site.engine.owned(site.owner)) == left, "what could not be removed is removed before a start"
            for ended in (server, another):
                await ended.child.stop(5.0)
            assert server.child.failure().exit_code == 0
    assert site.engine.owned(site.owner) == []


async def test_a_hanging_engine_meets_a_deadline(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.servers.drivers.docker_engine.DEADLINE_SECONDS", 0.5)

    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(tmp_path / "engine.sock"))
        deaf.listen()
        with pytest.raises(SlipstreamError, match=r"no answer within 0\.5 s"):
            await site.driver(address=f"unix://{tmp_path / 'engine.sock'}")


async def test_a_proxy_is_asked_for_nothing_that_the_document_does_not_name(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[tuple[str, str]] = set()
    send = requests.Session.send

    def recorded(self: Any, request: Any, **keys: Any) -> Any:
        path = re.sub(r"^/v[\d.]+", "", request.path_url.partition("?")[0])
        asked.add((request.method, path))
        return send(self, request, **keys)

    monkeypatch.setattr(requests.Session, "send", recorded)
    way = Relay()
    async with await asyncio.start_server(way, "127.0.0.1", 0) as listener:
        address = f"tcp://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        driver = await site.driver(address=address, plain=True)
        await driver.flags(None)
        await driver.devices()
        server = await (await site.start(driver, site.order())).listens()
        await server.child.host_bytes()
        await server.child.stop(5.0)
        left = await (await site.start(driver, site.order())).listens()
        await left.child.let_go()
        later = await site.driver(address=address, plain=True)
        [found] = await later.found()
        await later.remove(found)
        await asyncio.gather(driver.close(), later.close())
        await way.cut()
    strange = {(method, path) for method, path in asked if not any(rule.fullmatch(path) for rule in allowed(method))}
    assert strange == set()


def allowed(method: str) -> list[re.Pattern[str]]:
    """Paths that the table in docs/hosts.md lets a proxy pass."""
    document = (REPOSITORY / "docs" / "hosts.md").read_text()
    rules = []
    for calls in re.findall(r"^\| ((?:GET|POST|DELETE) .*?) \|", document, re.M):
        for part in calls.split("; "):
            verb, _, paths = part.partition(" ")
            for path in re.findall(r"`([^`]+)`", paths) if verb == method else ():
                choices = re.sub(r"\{(\w+(?:,\w+)+)\}", lambda m: f"({m[1].replace(',', '|')})", path)
                rules.append(re.compile(re.sub(r"\{\w+\}", ".+", choices)))
    return rules


def ssh_options(folder: Path) -> str:
    """Options of ssh that lead to a real sshd, which lets this user in with a new key."""
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if sshd is None or not Path("/run/sshd").is_dir():
        pytest.skip("NOT TESTED: an engine by ssh. There is no sshd on this machine, or no /run/sshd, which it needs.")
    for name in ("host", "user"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(argv, check=True, timeout=60)
    shutil.copy(folder / "user.pub", folder / "authorized")
    options = {
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "authorized",
        "PidFile": "none",
        "UsePAM": "no",
        "StrictModes": "no",
        "PermitRootLogin": "yes",
    }
    server = [sshd, "-i", "-e", "-f", os.devnull, *(f"-o{name}={value}" for name, value in options.items())]
    known = (folder / "host.pub").read_text().split()[:2]
    (folder / "known").write_text(f"elsewhere {' '.join(known)}\n")
    return f'-F {os.devnull} -i {folder}/user -o UserKnownHostsFile={folder}/known -o "ProxyCommand={" ".join(server)}"'


async def test_by_ssh(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real ssh and sshd; they talk over a pipe, so that no port is needed."""
    options = ssh_options(tmp_path)
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/bash\nexec {shutil.which("ssh")} {options} "$@"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    models = tmp_path / "models"
    models.mkdir()
    site.model = Path(shutil.copy(site.model, models))
    mounts = [{"source": str(models), "target": str(models)}]
    user = getpass.getuser()
    driver = await site.driver(address=f"ssh://{user}@elsewhere", reach="127.0.0.1", mounts=mounts)
    server = await (await site.start(driver, site.order())).listens()
    assert (await server.complete()).status_code == 200
    tunnel = driver._engine._tunnel
    assert tunnel is not None and tunnel._process is not None
    tunnel._process.kill()
    async with asyncio.timeout(30):
        while server.child._silent_since is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        while server.child._silent_since is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await server.child.stop(5.0)
    assert server.child.failure().exit_code == 0 and site.engine.owned(site.owner) == []
    with pytest.raises(SlipstreamError, match="Host key verification failed"):
        await site.driver(address=f"ssh://{user}@stranger", reach="127.0.0.1", mounts=mounts)


async def test_by_tls_with_a_certificate_of_ours(site: Site, tmp_path: Path) -> None:
    certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "engine.pem", tmp_path / "engine.key")
    context.load_verify_locations(tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    models = tmp_path / "models"
    models.mkdir()
    site.model = Path(shutil.copy(site.model, models))
    way = Relay()
    async with await asyncio.start_server(way, "127.0.0.1", 0, ssl=context) as listener:
        port = listener.sockets[0].getsockname()[1]
        host = docker_host(
            "far",
            site.image,
            address=f"tcp://127.0.0.1:{port}",
            tls={"ca": "ca.pem", "cert": "us.pem", "key": "us.key"},
            reach="127.0.0.1",
            mounts=[{"source": str(models), "target": str(models)}],
            network=site.network,
        )
        [spec] = load_hosts(write_hosts(tmp_path / "hosts.yaml", host))
        driver = DockerDriver(spec, site.owner)
        await driver.open()
        site.stack.push_async_callback(driver.close)
        server = await (await site.start(driver, site.order())).listens()
        assert (await server.complete()).status_code == 200
        await server.child.stop(5.0)
        await driver.close()

        # Signed by itself: the engine's authority does not know it.
        wrong = host | {"tls": {"ca": "ca.pem", "cert": "stranger.pem", "key": "stranger.key"}}
        [spec] = load_hosts(write_hosts(tmp_path / "hosts.yaml", wrong))
        with pytest.raises(SlipstreamError) as caught:
            await DockerDriver(spec, site.owner).open()
        assert caught.value.code is Code.MISCONFIGURED
        await way.cut()
    assert site.engine.owned(site.owner) == []


def certificates(folder: Path) -> None:
    """An authority, a certificate of it for the engine and one for us, and one that signed itself."""

    def openssl(*argv: str) -> None:
        subprocess.run(["openssl", *argv], cwd=folder, check=True, capture_output=True, timeout=60)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-days", "2", "-x509")
    openssl(*new, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    openssl(*new, "-subj", "/CN=stranger", "-keyout", "stranger.key", "-out", "stranger.pem")
    for name in ("engine", "us"):
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1")
        plain = ("-addext", "basicConstraints=critical,CA:FALSE")
        openssl(*new, *signed, *plain, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
