"""The hosts file: machines that run servers, and what they give (docs/hosts.md)."""

import ipaddress
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, PositiveFloat, PositiveInt, model_validator

from orchestrator.schemas.base import ModelName, Strict

_ADDRESS = re.compile(r"(unix:///|ssh://[^/]|tcp://[^/]).*")
_USER = r"^\d+:\d+$"
_SERVERS, _PUBLISHED = "slipstream-servers", "slipstream-servers-published"
_OF_ANY_DRIVER = frozenset(("name", "driver", "memory"))


def _address(value: str) -> str:
    if not _ADDRESS.fullmatch(value):
        raise ValueError(
            f"{value!r} is no address of an engine; expected unix:///…, ssh://USER@HOST or tcp://HOST:PORT"
        )
    return value


def _gid(value: object) -> object:
    if isinstance(value, str):
        raise ValueError(
            f"{value!r} is a name; inside an image it may mean another group or none. Expected the number that "
            "`stat -c %g /dev/kfd /dev/dri/renderD128` prints on that host"
        )
    return value


def _gpu(value: object) -> object:
    # The YAML reader has a type of its own for whole numbers.
    return f"{value:d}" if isinstance(value, int) and not isinstance(value, bool) else value


def _reach(value: str) -> str:
    if value == "network":
        return value
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        raise ValueError(f"{value!r} is neither `network` nor an IP address of that host") from None
    if address.is_unspecified:
        raise ValueError(f"{value!r} would publish servers on every address of that host; name one of them")
    return value


def _inside(value: str) -> str:
    if not value.startswith("/") or ".." in value.split("/"):
        raise ValueError(f"{value!r} is no absolute path")
    return value.rstrip("/") or "/"


Size = Annotated[ByteSize, Field(gt=0)]


class Tls(Strict):
    """Files for a tcp:// engine that asks for certificates; paths count from the folder of the hosts file."""

    ca: str = Field(description="Certificate of the authority that signed the engine's.")
    cert: str = Field(description="Our certificate.")
    key: str = Field(description="Its key.")


class Rocm(Strict):
    """AMD accelerators for containers."""

    kfd: str = Field("/dev/kfd", description="The compute node on the host.")
    render: tuple[str, ...] = Field(min_length=1, description="Render nodes on the host, such as /dev/dri/renderD128.")
    gids: tuple[Annotated[int, BeforeValidator(_gid), Field(ge=0)], ...] = Field(
        min_length=1, description="Numeric groups that own these nodes on the host."
    )


class Accelerators(Strict):
    """Accelerators that every container of the host gets."""

    nvidia: Literal["all"] | tuple[Annotated[str, BeforeValidator(_gpu)], ...] = Field(
        (), description="`all`, or indices or UUIDs of GPUs."
    )
    rocm: Rocm | None = Field(None, description="AMD GPUs.")

    @property
    def expected(self) -> int:
        """How many a llama-server with them must see, at least."""
        nvidia = 1 if self.nvidia == "all" else len(self.nvidia)
        return nvidia + (len(self.rocm.render) if self.rocm is not None else 0)


class Mount(Strict):
    """A volume or folder of the host that containers see, read-only."""

    source: str = Field(min_length=1, description="Name of a volume, or an absolute path on that host.")
    target: Annotated[str, AfterValidator(_inside)] = Field(
        description="Where it is in the container: the path by which the orchestrator knows it too."
    )


class ContainerLimits(Strict):
    """What one container may have at most."""

    memory: Size | None = Field(None, description="RAM, such as 24GiB; without swap.")
    cpus: PositiveFloat | None = Field(None, description="Processors.")
    pids: PositiveInt = Field(4096, description="Processes and threads.")
    memlock: Literal["unlimited"] | Size | None = Field(
        None, description="Memory it may lock, for `load_mode: mlock`; absent: the engine's default."
    )


class HostSpec(Strict):
    """One machine that runs servers."""

    name: ModelName = Field(description="The name that model files give in `place.host`.")
    driver: Literal["process", "docker"] = Field(description="Child processes of the orchestrator, or containers.")
    memory: dict[str, Size] = Field(
        default_factory=dict, description="What servers may hold by device: `host` is RAM, others as in CUDA0."
    )
    address: Annotated[str, AfterValidator(_address)] = Field(
        "unix:///var/run/docker.sock", description="Where the engine answers."
    )
    tls: Tls | None = Field(None, description="Certificates for a tcp:// address.")
    plain: bool = Field(False, description="A tcp:// address without TLS: a socket proxy in a network of its own.")
    images: dict[str, str] = Field(default_factory=dict, description="Images by name; `default` is needed.")
    devices: Accelerators = Field(default_factory=Accelerators, description="Accelerators for its containers.")
    network: str | None = Field(None, min_length=1, description="Network of its containers; made where it is absent.")
    reach: Annotated[str, AfterValidator(_reach)] = Field(
        "network", description="`network`: by the container's address; else the address to publish ports on."
    )
    mounts: tuple[Mount, ...] = Field((), description="How model files get there; absent: each file by itself.")
    limits: ContainerLimits = Field(default_factory=ContainerLimits, description="What a container may have.")
    user: str = Field("10001:10001", pattern=_USER, description="User and group of containers, in numbers.")

    @property
    def is_published(self) -> bool:
        """Whether servers are reached by a port of the host."""
        return self.reach != "network"

    @property
    def network_name(self) -> str:
        """The network of its containers."""
        return self.network or (_PUBLISHED if self.is_published else _SERVERS)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.driver == "process":
            if strange := sorted(self.model_fields_set - _OF_ANY_DRIVER):
                raise ValueError(f"`{strange[0]}` is for `driver: docker` alone")
            return self
        if "default" not in self.images:
            raise ValueError("`images` needs a `default`, the image of models that name none")
        is_tcp = self.address.startswith("tcp://")
        if self.tls is not None and not is_tcp:
            raise ValueError("`tls` is for tcp:// addresses alone")
        if is_tcp and (self.tls is None) is not self.plain:
            raise ValueError(
                "a tcp:// address needs either `tls`, or `plain: true` where only a socket proxy answers: whoever "
                "reaches an unguarded engine owns its machine"
            )
        if self.address.startswith("ssh://") or self.tls is not None:
            if not self.is_published:
                raise ValueError("`reach` must be an address of that host: its containers' own cannot be reached")
            if not self.mounts:
                raise ValueError("`mounts` is needed: files of this machine are not on that host")
        return self


class HostsFile(Strict):
    """Every machine that runs servers, the one that is preferred first."""

    hosts: tuple[HostSpec, ...] = Field(min_length=1, description="Machines.")

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [host.name for host in self.hosts]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two hosts are called {twice[0]!r}")
        return self
