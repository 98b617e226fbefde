"""Edits of model files: atomic, comments kept, nothing but the asked-for change."""

import io
import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from orchestrator.catalog.load import Catalog
from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import ModelSpec

# Wider than any line of ours: a folded line would be a change nobody asked for.
_WIDTH = 4096
_log = logging.getLogger(__name__)


def write_model(catalog: Catalog, spec: ModelSpec, comment: str | None = None) -> Path:
    """Write the model file of `spec`, over the one of the same name if there is one. Blocking file I/O.

    `comment` stands at the top of a new file. SlipstreamError conflict when a name or alias belongs to another model
    or the file cannot be changed by a program, misconfigured when the folder cannot be written.
    """
    for name in (spec.name, *spec.aliases):
        if (owner := catalog.names.get(name, spec.name)) != spec.name:
            raise SlipstreamError(Code.CONFLICT, f"the name {name!r} already belongs to the model {owner!r}")
    existing = catalog.files.get(spec.name)
    path = existing or catalog.folder / f"{spec.name}.yaml"
    if existing is None and path.exists():
        raise SlipstreamError(
            Code.CONFLICT, f"{path.name} exists and holds no valid model {spec.name!r}", hint="mend it or move it away"
        )
    _replace(path, _text(spec, existing, comment))
    return path


def delete_model(catalog: Catalog, name: str) -> None:
    """Remove the file of a model, by name or alias; the files it needed stay until `gc`. Blocking file I/O."""
    path = catalog.files[catalog.get(name).name]
    try:
        path.unlink(missing_ok=True)
    except OSError as e:
        raise _unwritable(path.parent, e) from e


def _text(spec: ModelSpec, existing: Path | None, comment: str | None) -> str:
    """The new text of a model file, which reads back as exactly `spec`."""
    wanted = _quoted(spec.model_dump(mode="json", exclude_defaults=True))
    yaml = YAML(typ="rt")
    yaml.width = _WIDTH
    text = io.StringIO()
    try:
        if existing is None:
            content = CommentedMap(wanted)
            if comment:
                content.yaml_set_start_comment(_printable(comment))
        else:
            content = yaml.load(existing.read_text(encoding="utf-8"))
            _update(content, wanted)
        yaml.dump(content, text)
        is_meant = ModelSpec.model_validate(YAML(typ="rt").load(text.getvalue())) == spec
    except Exception as e:
        # Whatever the library raises: of a file that an editor has changed meanwhile, of what it cannot write.
        _log.warning("the model file of %r cannot be changed", spec.name, exc_info=e)
        is_meant = False
    if not is_meant:
        raise SlipstreamError(
            Code.CONFLICT,
            f"the model file of {spec.name!r} cannot be changed so: it would not read back as it was meant",
            hint="anchors and aliases (`&x`, `*x`) are the usual reason; change the file in an editor",
        )
    return text.getvalue()


def _quoted(value: Any) -> Any:
    """Text with control characters in quotes that escape them: without, the library writes some that it cannot read."""
    if isinstance(value, dict):
        return {_quoted(key): _quoted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_quoted(item) for item in value]
    return DoubleQuotedScalarString(value) if isinstance(value, str) and not value.isprintable() else value


def _printable(text: str) -> str:
    """Lines without what YAML takes for the end of one, or for no text at all: names come from elsewhere."""
    return "\n".join("".join(c if c.isprintable() else "?" for c in line) for line in text.split("\n"))


def _update(node: Any, wanted: dict[str, Any]) -> None:
    """Make a mapping of a file equal to `wanted`, leaving alone what is equal already, comments included."""
    for key in [k for k in node if k not in wanted]:
        del node[key]
    for key, value in wanted.items():
        if isinstance(value, dict) and isinstance(node.get(key), dict):
            _update(node[key], value)
        elif isinstance(value, list) and isinstance(node.get(key), list):
            node[key][:] = value
        elif key not in node or node[key] != value:
            node[key] = value


def _replace(path: Path, text: str) -> None:
    beside = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # No `.yaml` at the end: a file that a kill left behind is never taken for a model.
        fd, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # As a text editor would leave it, not private to this user.
        os.chmod(beside, path.stat().st_mode & 0o777 if path.exists() else 0o644)
        os.replace(beside, path)
    except OSError as e:
        with suppress(OSError):
            os.unlink(beside)
        raise _unwritable(path.parent, e) from e


def _unwritable(folder: Path, error: OSError) -> SlipstreamError:
    return SlipstreamError(
        Code.MISCONFIGURED,
        f"the folder of model files cannot be written: {error.strerror}",
        hint=f"in a container, mount it without `:ro` and give it to user {os.getuid()}",
    )
