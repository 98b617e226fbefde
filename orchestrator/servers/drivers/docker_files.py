"""How a model's files get into a container: read-only, and no more of the host than needed."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.model import shard_names
from orchestrator.schemas.hosts import HostSpec
from orchestrator.servers.launch import Launch

Json = dict[str, Any]
# The engine binds a few files of its own into every container; their source tells which one this is.
_OWN_ID = re.compile(r"/containers/([0-9a-f]{64})/(?:hostname|hosts|resolv\.conf) ")


def own_container(mount_info: Path = Path("/proc/self/mountinfo")) -> str | None:
    """Id of the container that this process runs in, as far as the kernel tells. Blocking file I/O."""
    try:
        found = _OWN_ID.search(mount_info.read_text())
    except OSError:
        return None
    return found[1] if found else None


class Binds:
    """Makes mounts for launches. `own_mounts` are those of our own container, when we run in one of that engine."""

    def __init__(self, spec: HostSpec, own_mounts: Sequence[Json] = ()) -> None:
        self._spec = spec
        self._own = sorted(own_mounts, key=lambda m: len(m["Destination"]), reverse=True)

    def of(self, launch: Launch) -> list[Json]:
        """Mounts of the Engine API. SlipstreamError misconfigured says which file a container would not see.

        Looks at the disk: not for the event loop.
        """
        files = [file for path in (launch.target, launch.drafter) if path is not None for file in _files(path)]
        if self._spec.mounts:
            self._check_reached(files)
            return [
                {"Type": "bind" if m.source.startswith("/") else "volume", "Source": m.source, "Target": m.target}
                | {"ReadOnly": True}
                for m in self._spec.mounts
            ]
        self._check_readable(files)
        return [
            {"Type": "bind", "Source": self._on_host(file), "Target": str(file), "ReadOnly": True}
            for file in dict.fromkeys(files)
        ]

    def _on_host(self, file: Path) -> str:
        """The file's path as the engine knows it: links resolved, and our own container's mounts counted in."""
        real = file.resolve()
        for mount in self._own:
            folder = Path(mount["Destination"])
            if real.is_relative_to(folder):
                return str(Path(mount["Source"]) / real.relative_to(folder))
        if self._own:
            raise SlipstreamError(
                Code.MISCONFIGURED,
                f"{file.name} lies in the orchestrator's own container, where no other one can see it",
                hint="keep model files in a volume or a folder that is mounted into the orchestrator's container",
            )
        return str(real)

    def _check_reached(self, files: Iterable[Path]) -> None:
        targets = [mount.target for mount in self._spec.mounts]
        for file in files:
            for path in (file, file.resolve()):
                if not any(path.is_relative_to(target) for target in targets):
                    raise SlipstreamError(
                        Code.MISCONFIGURED,
                        f"{file.name} lies below no `target` of the `mounts` of host {self._spec.name!r}",
                        hint="a target is the folder by which the orchestrator knows the files; links count too",
                    )

    def _check_readable(self, files: Iterable[Path]) -> None:
        uid, gid = map(int, self._spec.user.split(":"))
        for file in files:
            try:
                facts = os.stat(file)
            except OSError as e:
                raise SlipstreamError(Code.MODEL_INCOMPLETE, f"{file.name} cannot be looked at: {e.strerror}") from e
            shift = 6 if facts.st_uid == uid else 3 if facts.st_gid == gid else 0
            if uid != 0 and not facts.st_mode >> shift & 4:
                raise SlipstreamError(
                    Code.MISCONFIGURED,
                    f"{file.name} cannot be read by user {self._spec.user}, as whom containers of host "
                    f"{self._spec.name!r} run",
                    hint=f"`chmod o+r {file.name}`, or another `user` in the hosts file",
                )


def _files(path: Path) -> list[Path]:
    """All shards of a split model; those that are not there are llama-server's to name."""
    shards = [path.with_name(name) for name in shard_names(path.name)]
    return [path, *(shard for shard in shards if shard != path and shard.exists())]
