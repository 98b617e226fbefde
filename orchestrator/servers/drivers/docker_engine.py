"""A Docker engine, asked in threads and with deadlines: nothing here blocks the event loop.

The SDK is synchronous. Its low-level client is used, with the engine's own JSON, so that what is asked for can be read
in the Engine API's reference.
"""

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from docker.api import APIClient
from docker.errors import APIError, DockerException, NotFound
from docker.tls import TLSConfig
from requests.exceptions import RequestException

from orchestrator.errors import Code, SlipstreamError
from orchestrator.jobs.secrets import without_folders
from orchestrator.schemas.hosts import HostSpec
from orchestrator.servers.aside import Aside
from orchestrator.servers.drivers.docker_ssh import Tunnel

Json = dict[str, Any]
T = TypeVar("T")
# Where the version is negotiated from; every engine of 2024 or later answers it.
_FIRST_API_VERSION = "1.44"
_READ_TIMEOUT_SECONDS = 60
DEADLINE_SECONDS = 30.0
_THREADS = 16
_CONNECTIONS = 64
_EXPLANATION_LENGTH = 500
_log = logging.getLogger(__name__)


class Gone(Exception):
    """What was asked about does not exist (any more)."""


class Engine:
    """The engine of one host."""

    def __init__(self, spec: HostSpec) -> None:
        self.spec = spec
        self._address = spec.address
        self._client: Any = None
        self._tunnel: Tunnel | None = None
        self._aside = Aside(_THREADS)
        self._unremoved: set[str] = set()

    async def open(self) -> None:
        """Connect; SlipstreamError misconfigured when no engine answers."""
        if self.spec.address.startswith("ssh://"):
            self._tunnel = Tunnel(self.spec.address)
            self._address = await self._tunnel.open()
        try:
            self._client = await self._run("connect", lambda _: _connected(self.spec, self._address), DEADLINE_SECONDS)
        except SlipstreamError as e:
            await self.close()
            raise SlipstreamError(Code.MISCONFIGURED, e.message, hint=e.hint) from e

    async def close(self) -> None:
        """Let go of the connections."""
        client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(client.close)
        if self._tunnel is not None:
            await self._tunnel.close()

    async def ask(self, what: str, work: Callable[[Any], T], deadline_seconds: float | None = None) -> T:
        """What `work` makes of the client. Gone, or SlipstreamError host_failed that says `what` did not work."""
        if self._client is None:
            raise SlipstreamError(Code.HOST_FAILED, f"the host {self.spec.name!r} is not connected: cannot {what}")
        return await self._run(what, work, deadline_seconds or DEADLINE_SECONDS)

    async def inspect(self, container: str) -> Json:
        """The engine's record of a container; Gone when there is none."""
        return await self.ask("look at a container", lambda c: _json(c.inspect_container(container)))

    async def remove(self, container: str) -> None:
        """End a container, whatever it does, with its volumes. Fine when it is gone."""

        def work(client: Any) -> None:
            with suppress(NotFound):
                try:
                    client.remove_container(container, force=True, v=True)
                except APIError as e:
                    # Its removal is under way: that is what was wanted.
                    if e.status_code != 409:
                        raise

        self._unremoved.add(container)
        await self.ask("remove a container", work)
        self._unremoved.discard(container)

    async def remove_leftovers(self) -> None:
        """Try again what could not be removed: it may hold the memory that is to be used."""
        for container in tuple(self._unremoved):
            with suppress(SlipstreamError):
                await self.remove(container)

    async def signal(self, container: str, name: str) -> None:
        """Send a signal to its first process. Fine when it has ended."""

        def work(client: Any) -> None:
            with suppress(NotFound):
                try:
                    client.kill(container, name)
                except APIError as e:
                    if e.status_code != 409:
                        raise

        await self.ask(f"send {name} to a container", work)

    def entries(self, container: str, lines: int | str, since: float | None) -> "Entries":
        """Log entries, each with its time before it, until the container ends. For a thread of its own."""
        if self._client is None:
            raise OSError("not connected")
        _knock(self._address)
        return Entries(self._client.logs(container, stream=True, follow=True, timestamps=True, tail=lines, since=since))

    def signal_soon(self, container: str, name: str) -> None:
        """Send a signal without waiting for an answer."""
        client = self._client

        def work() -> None:
            with suppress(DockerException, RequestException, OSError):
                _knock(self._address)
                client.kill(container, name)

        if client is not None:
            threading.Thread(target=work, daemon=True, name=f"{name} to {container}").start()

    async def _run(self, what: str, work: Callable[[Any], T], deadline_seconds: float) -> T:
        client, address = self._client, self._address

        def knock_and_work() -> T:
            _knock(address)
            return work(client)

        try:
            async with asyncio.timeout(deadline_seconds):
                return await self._aside.run(knock_and_work)
        except NotFound as e:
            raise Gone(without_folders(str(e.explanation))) from e
        except TimeoutError:
            raise self._failed(what, f"no answer within {deadline_seconds:g} s") from None
        except APIError as e:
            raise self._failed(what, str(e.explanation or e)) from e
        except (DockerException, RequestException, OSError) as e:
            _log.warning("the Docker engine of host %s at %s: %s", self.spec.name, self.spec.address, e)
            raise self._failed(what, "it cannot be reached", _reason_hint(e)) from e

    def _failed(self, what: str, why: str, hint: str | None = None) -> SlipstreamError:
        return SlipstreamError(
            Code.HOST_FAILED,
            f"the Docker engine of host {self.spec.name!r} did not {what}: "
            + without_folders(why)[:_EXPLANATION_LENGTH],
            hint=hint or _explained(why),
        )


class Entries:
    """A log that is read as it comes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._stream)

    def interrupt(self) -> None:
        """End a read that another thread is waiting in, where the way to the engine can do so."""
        with suppress(Exception):
            self._stream.close()

    def close(self) -> None:
        """Close its connection, which the SDK leaves to the garbage collector."""
        self.interrupt()
        with suppress(Exception):
            self._stream._response.close()


def _knock(address: str) -> None:
    """Raise OSError where nobody listens: of such an attempt the SDK would leave the socket open."""
    if address.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(DEADLINE_SECONDS)
            probe.connect(address.removeprefix("unix://"))


def _connected(spec: HostSpec, address: str) -> Any:
    arguments: Json = {
        "base_url": address,
        "timeout": _READ_TIMEOUT_SECONDS,
        "max_pool_size": _CONNECTIONS,
    }
    if spec.tls is not None:
        tls = spec.tls
        arguments["tls"] = TLSConfig(client_cert=(tls.cert, tls.key), ca_cert=tls.ca, verify=True)
    first = APIClient(version=_FIRST_API_VERSION, **arguments)
    try:
        # A proxy for web pages has no business between us and an engine.
        first.trust_env = False
        version = first.version(api_version=False)["ApiVersion"]
    finally:
        first.close()
    client = APIClient(version=version, **arguments)
    client.trust_env = False
    return client


def _json(value: Any) -> Json:
    return dict(value)


def _reason_hint(error: BaseException) -> str:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, PermissionError) or "Permission denied" in str(seen):
            return "the user of the orchestrator needs the group of the engine's socket: `stat -c %g` of it tells which"
        seen = seen.__cause__ or seen.__context__
    return "see `address` of this host in the hosts file, and whether the engine runs (`docker info`)"


def _explained(why: str) -> str | None:
    if "could not select device driver" in why or "nvidia-container" in why:
        return "the engine has no NVIDIA runtime: install nvidia-container-toolkit on that host and restart the engine"
    if "error gathering device information" in why:
        return "`devices.rocm` names a node that is not there: `ls -l /dev/kfd /dev/dri` on that host"
    if "error setting rlimit" in why or "rlimit" in why:
        return "the engine may not raise this limit: leave out `limits.memlock`"
    if "bind source path does not exist" in why:
        return "the file is not on that host by this path: see `mounts` in docs/hosts.md"
    return None
