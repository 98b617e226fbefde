"""What to say when an Ollama store may not be read: by Ollama's installer it belongs to a user of its own."""

import grp
import os
import pwd
import stat
from pathlib import Path

from orchestrator.errors import Code, SlipstreamError

_OLLAMA_GROUP = "ollama"


def forbidden(root: Path, label: str, path: Path) -> SlipstreamError:
    """Which file or folder on the way to `path` is closed, whose it is, and both ways out.

    `label` names the store `root` in messages.
    """
    barrier = next((p for p in (*reversed(path.parents), path) if _is_closed(p)), path)
    if barrier == root:
        shown = label
    elif barrier.is_relative_to(root):
        shown = f"{label}/{barrier.relative_to(root)}"
    else:
        shown = f"a folder above {label}"
    group, whose, me = _OLLAMA_GROUP, "", user_name(os.geteuid())
    try:
        facts = barrier.stat()
    except OSError:
        pass
    else:
        group = group_name(facts.st_gid)
        whose = f" belongs to {user_name(facts.st_uid)}:{group} with mode {stat.filemode(facts.st_mode)} and"
    return SlipstreamError(
        Code.SOURCE_FAILED,
        f"the Ollama store cannot be read: {shown}{whose} is closed to the user {me}",
        hint=f"join its group and start Slipstream anew: sudo usermod -aG {group} {me} (`sg {group}` for one shell); "
        f"or open it for reading: sudo setfacl -R -m u:{me}:rX on the store and u:{me}:x on the folders above it",
    )


def _is_closed(path: Path) -> bool:
    """Whether it is there, and neither readable nor, for a folder, passable."""
    try:
        needed = os.X_OK if stat.S_ISDIR(path.stat().st_mode) else os.R_OK
    except OSError:
        return False
    return not os.access(path, needed, effective_ids=True)


def user_name(uid: int) -> str:
    """Name of a user; the number where it has none here, as in a container."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    """Name of a group, likewise."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
