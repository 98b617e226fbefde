"""Images of a host, and what their llama-servers say of themselves in throw-away containers."""

import asyncio
import secrets
from contextlib import suppress
from typing import Any

from docker.errors import DockerException
from requests.exceptions import RequestException

from orchestrator.errors import Code, SlipstreamError
from orchestrator.servers.binary import table_of
from orchestrator.servers.drivers.docker_container import OWNER, PROBE, Image, create_body
from orchestrator.servers.drivers.docker_engine import Engine, Gone
from orchestrator.servers.flags import FlagTable

_PROBE_SECONDS = 60
_DEADLINE_SECONDS = 90.0
_SAID_LENGTH = 300


class Images:
    """Finds images by name, never brings one. Flags are kept by image id, so that a new image is asked anew."""

    def __init__(self, engine: Engine, owner: str) -> None:
        self._engine = engine
        self._owner = owner
        self._flags: dict[str, FlagTable] = {}
        self._reading = asyncio.Lock()
        self.probes: set[str] = set()

    async def get(self, name: str | None) -> Image:
        """The image of a name of the hosts file, or with a reference; None: the default. Misconfigured if absent."""
        spec = self._engine.spec
        reference = spec.images.get(name or "default", name or "")
        try:
            return await self.find(reference)
        except Gone:
            known = ", ".join(f"{k}: {v}" for k, v in spec.images.items())
            raise SlipstreamError(
                Code.MISCONFIGURED,
                f"there is no image {reference!r} on host {spec.name!r}; its `images` are {known}",
                hint=f"on that host: `docker pull {reference}`, or build it; images are not pulled unasked",
            ) from None

    async def find(self, reference: str) -> Image:
        """What the engine knows of an image; Gone when there is none."""
        found = await self._engine.ask("look at an image", lambda c: c.inspect_image(reference))
        return Image.of(reference, found)

    async def flags(self, image: Image) -> FlagTable:
        """Flags of its llama-server, by its own --help."""
        async with self._reading:
            if image.id not in self._flags:
                version = await self.output(image, "--version")
                self._flags[image.id] = table_of(image.reference, version, await self.output(image, "--help"))
            return self._flags[image.id]

    async def output(self, image: Image, argument: str) -> str:
        """What its llama-server prints; SlipstreamError misconfigured when it fails or does not end."""
        name = f"slipstream-probe-{secrets.token_hex(4)}"
        labels = {OWNER: self._owner, PROBE: argument}
        body = create_body(self._engine.spec, image, [argument], labels)

        def work(client: Any) -> tuple[int, str]:
            try:
                client.create_container_from_config(body, name)
                client.start(name)
                status = int(client.wait(name, timeout=_PROBE_SECONDS)["StatusCode"])
                return status, client.logs(name).decode(errors="replace")
            finally:
                with suppress(DockerException, RequestException, OSError):
                    client.remove_container(name, force=True, v=True)

        self.probes.add(name)
        try:
            status, said = await self._engine.ask(f"run {argument} of {image.reference}", work, _DEADLINE_SECONDS)
        except Gone as e:
            raise SlipstreamError(
                Code.HOST_FAILED, f"a container of {image.reference} went while it was asked for {argument}: {e}"
            ) from e
        finally:
            self.probes.discard(name)
        if status != 0:
            raise SlipstreamError(
                Code.MISCONFIGURED,
                f"{argument} of image {image.reference!r} ended with status {status}: {said.strip()[-_SAID_LENGTH:]}",
                hint="the image needs a llama-server as its entrypoint, or the label `slipstream.llama-server`",
            )
        return said
