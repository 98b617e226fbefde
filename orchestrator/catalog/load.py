"""Model files: `models/*.yaml` to `ModelSpec`, with the line and column of what is wrong."""

import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import MarkedYAMLError

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import FileProblem, ModelSpec

# Name, inode, size and time of change of every model file.
Stamps = tuple[tuple[str, int, int, int], ...]
_SETTLED_NANOSECONDS = 1_000_000_000
S = TypeVar("S", bound=BaseModel)


@dataclass(frozen=True)
class Catalog:
    """The valid models by name, the names that lead to them, the files they stand in, and the files that are wrong."""

    folder: Path
    models: dict[str, ModelSpec]
    names: dict[str, str]
    problems: tuple[FileProblem, ...]
    stamps: Stamps | None = None
    files: dict[str, Path] = field(default_factory=dict)

    def get(self, name: str) -> ModelSpec:
        """The model with this name or alias; SlipstreamError model_not_found otherwise."""
        if (canonical := self.names.get(name)) is not None:
            return self.models[canonical]
        known = ", ".join(sorted(self.models)) or "none"
        raise SlipstreamError(Code.MODEL_NOT_FOUND, f"there is no model {name[:80]!r}; known models: {known}")


def load_catalog(folder: Path, earlier: Catalog | None = None) -> Catalog:
    """Read every model file; `earlier` itself comes back when no file has changed since. Blocking file I/O.

    A wrong file becomes a problem and hides no other.
    """
    # Taken before the files are read: one that changes meanwhile is then read again the next time.
    stamps = _stamps(folder)
    if earlier is not None and stamps is not None and stamps == earlier.stamps:
        return earlier
    models: dict[str, ModelSpec] = {}
    names: dict[str, str] = {}
    files: dict[str, Path] = {}
    problems: list[FileProblem] = []
    for path in sorted(folder.glob("*.yaml")):
        spec = read_as(ModelSpec, path, problems)
        if spec is None:
            continue
        taken = [n for n in (spec.name, *spec.aliases) if n in names]
        if taken:
            message = f"the name {taken[0]!r} already belongs to the model {names[taken[0]]!r}"
            problems.append(FileProblem(file=path.name, message=message))
            continue
        models[spec.name] = spec
        files[spec.name] = path
        names |= {n: spec.name for n in (spec.name, *spec.aliases)}
    return Catalog(folder, models, names, tuple(problems), stamps, files)


def _stamps(folder: Path) -> Stamps | None:
    """None while a file is so new that a second change could leave the same stamp: clocks of files are coarse."""
    stamps = []
    for path in sorted(folder.glob("*.yaml")):
        with suppress(OSError):
            stat = path.stat()
            if time.time_ns() - stat.st_ctime_ns < _SETTLED_NANOSECONDS:
                return None
            stamps.append((path.name, stat.st_ino, stat.st_size, stat.st_ctime_ns))
    return tuple(stamps)


def read_as(
    schema: type[S], path: Path, problems: list[FileProblem], expected: str = "a mapping with `name` and `source`"
) -> S | None:
    """A YAML file as a schema; None when it is wrong, and why is added to `problems`. Blocking file I/O."""
    try:
        data = YAML(typ="rt").load(path.read_text(encoding="utf-8"))
    except MarkedYAMLError as e:
        mark = e.problem_mark
        place = (mark.line + 1, mark.column + 1) if mark else (None, None)
        problems.append(FileProblem(file=path.name, message=str(e.problem), line=place[0], column=place[1]))
        return None
    except OSError as e:
        problems.append(FileProblem(file=path.name, message=f"not readable: {e.strerror}"))
        return None
    except Exception as e:
        # The library also lets other errors out: of dates that are none, numbers that are none, too deep nesting.
        problems.append(FileProblem(file=path.name, message=f"not readable as YAML: {e}"))
        return None
    if not isinstance(data, CommentedMap):
        problems.append(FileProblem(file=path.name, message=f"expected {expected}", line=1))
        return None
    try:
        return schema.model_validate(data)
    except ValidationError as e:
        problems.extend(_problems(path, data, e))
        return None


def _problems(path: Path, data: CommentedMap, error: ValidationError) -> list[FileProblem]:
    found: dict[tuple[int | None, int | None, str], FileProblem] = {}
    for item in error.errors(include_url=False, include_context=False):
        line, column, key = _place(data, item["loc"])
        message = f"{key}: {item['msg']}" if key else item["msg"]
        found[line, column, message] = FileProblem(file=path.name, message=message, line=line, column=column)
    return list(found.values())


def _place(data: CommentedMap, loc: tuple[int | str, ...]) -> tuple[int | None, int | None, str]:
    """Line and column (from 1) of the deepest key of `loc` that the file has, and its dotted name.

    pydantic puts the names of union members into `loc`; they are in no file and are passed over.
    """
    node: Any = data
    line, column = data.lc.line + 1, data.lc.col + 1
    names: list[str] = []
    for part in loc:
        if isinstance(node, CommentedMap) and part in node:
            # A key that a merge (`<<`) brought stands elsewhere.
            row, col = node.lc.key(part) or (line - 1, column - 1)
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            row, col = node.lc.item(part)  # type: ignore[attr-defined]
        else:
            continue
        line, column, node = row + 1, col + 1, node[part]
        names.append(str(part))
    if loc and str(loc[-1]) not in names and isinstance(node, CommentedMap):
        names.append(str(loc[-1]))
    return line, column, ".".join(names)
