"""The Docker driver: llama-servers in containers that nothing but this orchestrator reaches, and that outlive it."""

import asyncio
import logging
import secrets
import threading
from contextlib import suppress
from typing import Any

from docker.errors import APIError, NotFound

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas.hosts import HostSpec
from orchestrator.servers.devices import parse_devices
from orchestrator.servers.drivers import docker_container as made
from orchestrator.servers.drivers.base import HOST, Device, Found, Order
from orchestrator.servers.drivers.docker_child import DockerChild
from orchestrator.servers.drivers.docker_engine import Engine, Gone
from orchestrator.servers.drivers.docker_files import Binds, own_container
from orchestrator.servers.drivers.docker_images import Images
from orchestrator.servers.flags import FlagTable

Json = dict[str, Any]
_START_DEADLINE_SECONDS = 120.0
_LEFTOVER_SECONDS = 5.0
_ADDRESS_SECONDS = 10.0
_POLL_SECONDS = 0.05
_ADOPTED_LINES = 1000
_HEALTH_SECONDS = 3.0
_log = logging.getLogger(__name__)


class DockerDriver:
    """Runs servers on the engine of one host. `owner` marks its containers: after a restart of ours they are ours."""

    def __init__(self, spec: HostSpec, owner: str) -> None:
        self.spec = spec
        self._owner = owner
        self._engine = Engine(spec)
        self._images = Images(self._engine, owner)
        self._binds = Binds(spec)
        self._names: set[str] = set()

    async def open(self) -> None:
        """Connect, and make the network of the containers where it is absent."""
        await self._engine.open()
        await self._ensure_network()
        own = await self._own_container()
        if own is not None:
            self._binds = Binds(self.spec, [m for m in own["Mounts"] if m["Type"] in ("bind", "volume")])
            if not self.spec.is_published and self.spec.network_name not in own["NetworkSettings"]["Networks"]:
                raise SlipstreamError(
                    Code.MISCONFIGURED,
                    f"the orchestrator's container is not on the network {self.spec.network_name!r}, so that it could "
                    f"not reach the servers of host {self.spec.name!r}",
                    hint=f"docker network connect {self.spec.network_name} {own['Name'].removeprefix('/')}",
                )

    async def close(self) -> None:
        """Let go of the connection; containers go on."""
        await self._engine.close()

    async def flags(self, image: str | None) -> FlagTable:
        """Flags of the image's llama-server, by its own --help; read once for each image."""
        return await self._images.flags(await self._images.get(image))

    async def devices(self, image: str | None = None) -> tuple[Device, ...]:
        """RAM of the host, and the accelerators that the image's llama-server sees there.

        SlipstreamError host_failed (reason no_accelerator) when it should see some and sees none: it would run on the
        processor without a word. How much RAM others hold an engine does not tell: all of it counts as free.
        """
        total = int((await self._engine.ask("tell of itself", lambda c: c.info()))["MemTotal"])
        host = Device(HOST, HOST, total, total)
        if not self.spec.devices.expected:
            return (host,)
        found = await self._images.get(image)
        listed = await self._images.output(found, "--list-devices")
        accelerators = parse_devices(listed)
        if not accelerators:
            raise SlipstreamError(
                Code.HOST_FAILED,
                f"the host {self.spec.name!r} gives its containers accelerators, and the llama-server of image "
                f"{found.reference!r} sees none: it would compute on the processor",
                hint="an image for other cards, a driver that is too old, or `gids` that do not own the nodes; "
                f"its --list-devices said: {listed.strip()[-300:]}",
                details={"reason": "no_accelerator"},
            )
        return (host, *accelerators)

    async def start(self, order: Order) -> DockerChild:
        """Make and start a container; SlipstreamError host_failed or misconfigured when that cannot be done."""
        launch = order.launch
        await self._engine.remove_leftovers()
        await self._ensure_network()
        image = await self._images.get(launch.image)
        mounts = await asyncio.to_thread(self._binds.of, launch)
        argv = launch.argv_at("0.0.0.0", made.PORT, made.SCRATCH)
        api_key = secrets.token_urlsafe(24)
        labels = {made.OWNER: self._owner, made.MODEL: order.model, made.LAUNCH: launch.key}
        labels[made.TERMS] = made.terms_of(self.spec)
        body = made.serving(made.create_body(self.spec, image, argv, labels), self.spec, api_key, mounts)
        name = made.new_name(order.model)
        self._names.add(name)
        given_up = threading.Event()
        try:
            await self._engine.ask(
                "start a container", lambda c: _run(c, body, name, given_up), _START_DEADLINE_SECONDS
            )
            found, url = await self._addressed(name)
        except (SlipstreamError, Gone) as e:
            given_up.set()
            with suppress(SlipstreamError):
                await self._engine.remove(name)
            if isinstance(e, Gone):
                raise SlipstreamError(
                    Code.HOST_FAILED, f"a container on host {self.spec.name!r} could not be started: {e}"
                ) from e
            raise
        child = DockerChild(self._engine, found, url, api_key, order)
        child.begin("all")
        return child

    async def found(self) -> tuple[Found, ...]:
        """Running containers with our mark that this driver did not start. What is left of dead ones is removed."""
        filters = {"label": f"{made.OWNER}={self._owner}"}
        listed = await self._engine.ask("list containers", lambda c: c.containers(all=True, filters=filters))
        running = []
        for entry in listed:
            name, labels = entry["Names"][0].removeprefix("/"), entry["Labels"]
            if name in self._names | self._images.probes:
                continue
            if entry["State"] in ("running", "paused") and made.MODEL in labels:
                running.append(Found(entry["Id"], labels[made.MODEL], await self._launch_of(entry["Id"], labels)))
            else:
                _log.info("%s is left over on host %s and is removed", name, self.spec.name)
                await self._engine.remove(entry["Id"])
        return tuple(running)

    async def adopt(self, found: Found, order: Order) -> DockerChild:
        """Take a container over, its last log lines included."""
        try:
            record, url = await self._addressed(found.id)
        except Gone as e:
            raise SlipstreamError(Code.CONFLICT, f"the container of {found.model!r} has gone: {e}") from e
        api_key = made.key_of(record)
        if api_key is None:
            raise SlipstreamError(Code.CONFLICT, f"the container of {found.model!r} has no key that we know")
        self._names.add(record["Name"].removeprefix("/"))
        child = DockerChild(self._engine, record, url, api_key, order)
        child.begin(_ADOPTED_LINES)
        # The line that says so may be older than what is left of the log.
        if await _answers(url):
            child.listening.set()
        return child

    async def remove(self, found: Found) -> None:
        """End a container that nobody wants: TERM, wait, KILL, remove."""
        with suppress(Gone):
            await self._engine.ask(
                "stop a container", lambda c: c.stop(found.id, timeout=int(_LEFTOVER_SECONDS)), _START_DEADLINE_SECONDS
            )
            await self._engine.remove(found.id)

    async def _launch_of(self, container: str, labels: Json) -> str:
        """The key of its launch; empty when it would be made otherwise today: from another image, on other terms."""
        with suppress(Gone):
            record = await self._engine.inspect(container)
            image = await self._images.find(record["Config"]["Image"])
            if image.id == record["Image"] and labels.get(made.TERMS) == made.terms_of(self.spec):
                return str(labels.get(made.LAUNCH, ""))
        return ""

    async def _addressed(self, container: str) -> tuple[Json, str]:
        """The engine's record of a running container, and where it is reached."""
        record = await self._engine.inspect(container)
        url = made.address_of(record, self.spec)
        if url is None and record["State"]["Running"]:
            raise SlipstreamError(
                Code.HOST_FAILED,
                f"a container on host {self.spec.name!r} has no address on the network {self.spec.network_name!r}",
                hint="the engine publishes no port of a network that is `internal`" if self.spec.is_published else None,
            )
        # One that has ended already is told of by its log and its exit status.
        return record, url or f"http://{self.spec.name}.invalid"

    async def _own_container(self) -> Json | None:
        """The engine's record of the container that we run in, if it knows one."""
        own = await asyncio.to_thread(own_container)
        if own is not None:
            with suppress(Gone):
                return await self._engine.inspect(own)
        return None

    async def _ensure_network(self) -> None:
        def work(client: Any) -> Json:
            name = self.spec.network_name
            with suppress(NotFound):
                return dict(client.inspect_network(name))
            try:
                client.create_network(**made.network_body(self.spec))
            except APIError as e:
                if e.status_code != 409:  # made by another orchestrator meanwhile
                    raise
            return dict(client.inspect_network(name))

        network = await self._engine.ask("make a network", work)
        if network["Internal"] and self.spec.is_published:
            raise SlipstreamError(
                Code.MISCONFIGURED,
                f"the network {self.spec.network_name!r} of host {self.spec.name!r} is internal, and the engine "
                "publishes no port of such a network; `reach` needs one",
                hint="leave `network` out, or name one that is not internal",
            )
        if not network["Internal"] and not self.spec.is_published:
            _log.warning("network %s is not internal: servers on it can reach others", self.spec.network_name)


def _run(client: Any, body: Json, name: str, given_up: threading.Event) -> None:
    client.create_container_from_config(body, name)
    if not given_up.is_set():
        client.start(name)
    # Nobody waits for it any more: a slow engine may have come to it after it was told to remove it.
    if given_up.is_set():
        with suppress(APIError):
            client.remove_container(name, force=True, v=True)


async def _answers(url: str) -> bool:
    """Whether a llama-server has loaded its model, by its health."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    try:
        async with asyncio.timeout(_HEALTH_SECONDS):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            try:
                writer.write(b"GET /health HTTP/1.0\r\n\r\n")
                await writer.drain()
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return False
