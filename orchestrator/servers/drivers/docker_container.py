"""What a container is made of: pure, in the Engine API's own terms (POST /containers/create)."""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.schemas.hosts import Accelerators, ContainerLimits, HostSpec

Json = dict[str, Any]
OWNER, MODEL, LAUNCH = "slipstream.owner", "slipstream.model", "slipstream.launch"
PROBE, TERMS, BINARY = "slipstream.probe", "slipstream.terms", "slipstream.llama-server"
PORT = 8080
PORT_KEY = f"{PORT}/tcp"
SCRATCH = "/tmp"
_DEFAULT_BINARY = "/opt/llama-server/llama-server"
_KEY = "LLAMA_API_KEY"
_TMPFS = "rw,nosuid,nodev,noexec,mode=1777,size=256m"
# A chatty server fills 20 MB of that host's disk, and no more.
_LOG = {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "2"}}
# Failures of an image's own health check count from its first success on: a load may take as long as it takes.
_HEALTH_START_NANOSECONDS = 7 * 24 * 3600 * 10**9


@dataclass(frozen=True)
class Image:
    """What an engine says of an image. `reference` is how it was asked for."""

    reference: str
    id: str
    labels: Mapping[str, str]
    entrypoint: tuple[str, ...]
    environment: tuple[str, ...]
    has_health_check: bool

    @classmethod
    def of(cls, reference: str, found: Json) -> "Image":
        """From the engine's record."""
        config = found.get("Config") or {}
        return cls(
            reference,
            found["Id"],
            config.get("Labels") or {},
            tuple(config.get("Entrypoint") or ()),
            tuple(config.get("Env") or ()),
            bool(config.get("Healthcheck", {}).get("Test", ["NONE"])[0] != "NONE"),
        )

    @property
    def program(self) -> tuple[str, ...] | None:
        """Its llama-server; None: the image's own entrypoint, as stock images have it."""
        if named := self.labels.get(BINARY):
            return (named,)
        return None if self.entrypoint else (_DEFAULT_BINARY,)


def create_body(spec: HostSpec, image: Image, argv: Sequence[str], labels: Mapping[str, str]) -> Json:
    """A hardened container on no network, with the accelerators of its host."""
    # A name without `=` takes the image's own variable away: LLAMA_ARG_* would be flags that nobody checked.
    stray = sorted(n for n in (e.partition("=")[0] for e in image.environment) if n.startswith("LLAMA_"))
    body: Json = {
        "Image": image.reference,
        "Cmd": list(argv),
        "User": spec.user,
        "Env": stray,
        "Labels": dict(labels),
        "HostConfig": {
            "NetworkMode": "none",
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "Tmpfs": {SCRATCH: _TMPFS},
            "Init": True,
            "IpcMode": "private",
            "RestartPolicy": {"Name": "no"},
            "LogConfig": _LOG,
            **_limits(spec.limits),
            **_devices(spec.devices),
        },
    }
    if image.program is not None:
        body["Entrypoint"] = list(image.program)
    if image.has_health_check:
        body["Healthcheck"] = {"StartPeriod": _HEALTH_START_NANOSECONDS}
    return body


def serving(body: Json, spec: HostSpec, api_key: str, mounts: Sequence[Json]) -> Json:
    """The container of `create_body` as one that serves: with a key, files, and a way to be reached."""
    host = body["HostConfig"] | {"NetworkMode": spec.network_name, "Mounts": list(mounts)}
    served = body | {"Env": [*(e for e in body["Env"] if e != _KEY), f"{_KEY}={api_key}"], "HostConfig": host}
    if spec.is_published:
        served["ExposedPorts"] = {PORT_KEY: {}}
        host["PortBindings"] = {PORT_KEY: [{"HostIp": spec.reach, "HostPort": ""}]}
    return served


def network_body(spec: HostSpec) -> Json:
    """Arguments of the SDK's create_network for the network of a host's containers."""
    options = {}
    if spec.is_published:
        # The engine publishes no port of an internal network; without masquerade nothing inside reaches out either.
        options = {
            "com.docker.network.bridge.enable_ip_masquerade": "false",
            "com.docker.network.bridge.enable_icc": "false",
        }
    return {
        "name": spec.network_name,
        "driver": "bridge",
        "internal": not spec.is_published,
        "options": options,
        "labels": {"slipstream.network": "servers"},
    }


def address_of(found: Json, spec: HostSpec) -> str | None:
    """Where a running container is reached, by the engine's record of it."""
    networks = found["NetworkSettings"]
    if spec.is_published:
        bound = (networks.get("Ports") or {}).get(PORT_KEY)
        host = f"[{spec.reach}]" if ":" in spec.reach else spec.reach
        return f"http://{host}:{bound[0]['HostPort']}" if bound else None
    address = (networks.get("Networks") or {}).get(spec.network_name, {}).get("IPAddress")
    return f"http://{address}:{PORT}" if address else None


def key_of(found: Json) -> str | None:
    """The key that a container was given."""
    for entry in found["Config"].get("Env") or ():
        name, _, value = entry.partition("=")
        if name == _KEY:
            return str(value)
    return None


def terms_of(spec: HostSpec) -> str:
    """A digest of what a host's containers are given: a container made on other terms is not taken over."""
    said = spec.model_dump_json(exclude={"name", "memory", "images", "address", "tls", "plain"})
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def new_name(model: str) -> str:
    """A name for a container of a model."""
    return f"slipstream-{model}-{secrets.token_hex(4)}"


def _limits(limits: ContainerLimits) -> Json:
    body: Json = {"PidsLimit": limits.pids}
    if limits.memory is not None:
        # As much with swap as without: a server that swaps is slower than one that is refused.
        body |= {"Memory": int(limits.memory), "MemorySwap": int(limits.memory)}
    if limits.cpus is not None:
        body["NanoCpus"] = int(limits.cpus * 1e9)
    if limits.memlock is not None:
        most = -1 if limits.memlock == "unlimited" else int(limits.memlock)
        body["Ulimits"] = [{"Name": "memlock", "Soft": most, "Hard": most}]
    return body


def _devices(devices: Accelerators) -> Json:
    body: Json = {}
    if devices.nvidia == "all":
        body["DeviceRequests"] = [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}]
    elif devices.nvidia:
        body["DeviceRequests"] = [{"Driver": "", "DeviceIDs": list(devices.nvidia), "Capabilities": [["gpu"]]}]
    if devices.rocm is not None:
        nodes = {devices.rocm.kfd: "/dev/kfd"}
        nodes |= {node: f"/dev/dri/{node.rpartition('/')[2]}" for node in devices.rocm.render}
        body["Devices"] = [
            {"PathOnHost": host, "PathInContainer": inside, "CgroupPermissions": "rw"} for host, inside in nodes.items()
        ]
        body["GroupAdd"] = [str(gid) for gid in devices.rocm.gids]
    return body
