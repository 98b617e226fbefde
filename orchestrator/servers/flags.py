"""The flags of one llama-server binary, read from its own `--help`, and the check of flags against them.

Nothing about a flag is remembered from another version: a renamed or removed flag is found before the running
server is touched (field cases: LLMKube#1382, mesh-llm#571).
"""

import difflib
import re
from dataclasses import dataclass
from functools import cached_property

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import FlagInfo, FlagValue

_OPTION = re.compile(r"^(?P<names>-[^\s,]+(?:,\s+-[^\s,]+)*)(?:\s+(?P<value>\S.*))?$")
_ENV = re.compile(r"\(env: (\w+)\)")
_CHOICES = re.compile(r"^[\[{<]([\w-]+(?:[|,][\w-]+)+)[\]}>]$")
_SEVERAL = re.compile(r"^[a-z][a-z0-9-]*(,[a-z][a-z0-9-]*)+$")
_PATH_VALUE = re.compile(r"FNAME|FILE|PATH|\bDIR\b")
_PATH_NAME = re.compile(r"(^|-)(file|path|dir|cache-static|cache-dynamic|preset)($|-)")
_NUMBERS = frozenset({"N", "P", "L", "R", "SEED", "SECONDS", "SIMILARITY", "INDEX"})
_HELP_COLUMN = 40

# What Slipstream sets itself, by reason. A test lists every flag of the pinned binary that ends up refused.
_MANAGED = {
    "model": "the model file names the model",
    "alias": "the model file names the model",
    "spec-draft-model": "the model file's `drafter` names the drafter",
    "spec-default": "the model file's `speculation.type` chooses it",
    "verbosity": "Slipstream reads the log, and a verbose one holds prompts",
    "verbose": "Slipstream reads the log, and a verbose one holds prompts",
    "spec-type": "the model file's `speculation.type` chooses it",
    "host": "Slipstream chooses the address",
    "port": "Slipstream chooses the port",
    "reuse-port": "Slipstream chooses the port",
    "api-prefix": "Slipstream's own address is the public one",
    "api-key": "Slipstream makes a key for each process",
    "metrics": "Slipstream reads the metrics and always has them on",
    "slots": "Slipstream reads the slots and always has them on",
    "offline": "Slipstream brings the files, and its servers never download",
    "props": "it would let clients change the server's settings behind Slipstream",
    "rpc": "it opens connections to other machines",
    "ui": "the server is built without it",
    "agent": "it gives clients access to this machine",
    "tools": "it gives clients access to this machine",
    "tools-runtime": "it gives clients access to this machine",
    "mcp-servers-json": "it starts programs on this machine",
    "ui-mcp-proxy": "it opens connections to other machines",
    "ui-config": "the server is built without it",
    "models-max": "Slipstream does the work of router mode",
    "models-autoload": "Slipstream does the work of router mode",
    "log-disable": "Slipstream reads the log",
    "log-jsonl": "Slipstream reads the log",
    "log-colors": "Slipstream reads the log",
    "log-prefix": "Slipstream reads the log",
    "log-timestamps": "Slipstream reads the log",
    "help": "it prints and exits",
    "version": "it prints and exits",
    "cache-list": "it prints and exits",
    "list-devices": "it prints and exits",
    "completion-bash": "it prints and exits",
}
_DOWNLOAD = re.compile(r"^(hf-|model-url|docker-repo|mmproj-url|spec-draft-hf)|-(default|spec)$")
_DOWNLOAD_EXCEPT = frozenset({"spec-default"})


@dataclass(frozen=True)
class FlagTable:
    """Every flag of a binary. `version` is the binary's own version text."""

    flags: tuple[FlagInfo, ...]
    version: str

    @cached_property
    def _by_name(self) -> dict[str, FlagInfo]:
        return {n.lstrip("-"): flag for flag in self.flags for n in flag.names}

    def has(self, name: str) -> bool:
        """Whether the binary knows the flag and has not removed it."""
        flag = self._by_name.get(normal(name))
        return flag is not None and not _removed(flag)

    def knows(self, name: str) -> bool:
        """Whether the binary has the flag, settable here or not."""
        return normal(name) in self._by_name

    @property
    def build(self) -> int | None:
        """llama.cpp's build number, where the binary tells one."""
        found = re.search(r"\bbuild (\d+)", self.version)
        return int(found[1]) if found else None

    @property
    def is_patched(self) -> bool:
        """Whether the binary carries our patches: 0004 brings a flag, and none of them comes alone."""
        return self.has("spec-draft-relaxed-top-n")

    def choices_of(self, name: str) -> tuple[str, ...]:
        """The values the binary lists for a flag; empty where it lists none."""
        flag = self._by_name.get(normal(name))
        return flag.choices if flag else ()

    def check(self, values: dict[str, FlagValue]) -> dict[str, FlagValue]:
        """Canonical names and values of operator-set flags; SlipstreamError invalid_flag names what is wrong."""
        checked: dict[str, FlagValue] = {}
        problems: list[str] = []
        for name, value in values.items():
            flag = self._by_name.get(normal(name))
            problem = self._problem(name, flag, value)
            if problem or flag is None:
                problems.append(problem or name)
            elif flag.name in checked:
                problems.append(f"{name} is another spelling of --{flag.name}, which is set already")
            else:
                checked[flag.name] = value
        if problems:
            raise SlipstreamError(Code.INVALID_FLAG, "; ".join(problems), details={"problems": problems})
        return checked

    def argv(self, values: dict[str, FlagValue]) -> list[str]:
        """Arguments for checked values. A switch that is false becomes its `--no-` spelling, or is left out."""
        argv: list[str] = []
        for name, value in values.items():
            flag = self._by_name[name]
            if flag.value is not None:
                text = ("on" if value else "off") if isinstance(value, bool) else str(value)
                argv += [f"--{name}", text]
            elif value:
                argv.append(f"--{name}")
            else:
                argv += [n for n in flag.names if n.startswith("--no-")][:1]
        return argv

    def _problem(self, name: str, flag: FlagInfo | None, value: FlagValue) -> str | None:
        shown = name if name.startswith("-") else f"--{normal(name)}"
        if flag is None:
            what, near = f"{shown} is not a flag of this llama-server", self.nearest(name)
        elif flag.refused:
            what, near = f"{shown} is refused: {flag.refused}", self._replacement(flag)
        else:
            return _value_problem(shown, flag, value)
        return what + (f"; the nearest is --{near}" if near else "")

    def nearest(self, name: str) -> str | None:
        """The settable flag whose spelling is closest."""
        usable = [n for n, flag in self._by_name.items() if not flag.refused and f"--{n}" in flag.names[:2]]
        close = difflib.get_close_matches(normal(name), usable, n=1, cutoff=0.3)
        return close[0] if close else None

    def _replacement(self, flag: FlagInfo) -> str | None:
        """What a removed flag's help says to use, else the nearest spelling; nothing for a flag that is ours."""
        if flag.refused in _MANAGED.values():
            return None
        named = [m for m in re.findall(r"--([\w-]+)", flag.help) if self.has(m)]
        return named[0] if named else self.nearest(flag.name)


def normal(name: str) -> str:
    """`--ctx_size`, `ctx_size` and `ctx-size` are one name."""
    return name.strip().lstrip("-").replace("_", "-") if len(name) > 3 else name.strip().lstrip("-")


def parse_help(text: str, version: str) -> FlagTable:
    """Read the text of `llama-server --help` (layout: upstream common/arg.cpp, common_arg::to_string)."""
    blocks: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("-") and not line.startswith("-----"):
            head, _, rest = line.partition("  ") if len(line) <= _HELP_COLUMN else (line, "", "")
            if line[:_HELP_COLUMN].rstrip() != line.rstrip() and line[_HELP_COLUMN - 1 : _HELP_COLUMN] == " ":
                head, rest = line[:_HELP_COLUMN], line[_HELP_COLUMN:]
            blocks.append((re.sub(r",\s+", ", ", head.strip()), [rest.strip()] if rest.strip() else []))
        elif line.startswith(" ") and line.strip() and blocks:
            blocks[-1][1].append(line.strip())
    return FlagTable(tuple(f for head, body in blocks if (f := _flag(head, " ".join(body)))), version)


def _flag(head: str, body: str) -> FlagInfo | None:
    match = _OPTION.match(head)
    if match is None:
        return None
    names = tuple(n.strip() for n in match["names"].split(","))
    long = [n for n in names if n.startswith("--") and not n.startswith("--no-")] or list(names)
    name = long[0].lstrip("-")
    value = match["value"]
    env = _ENV.search(body)
    choices = _CHOICES.match(value or "")
    listed = choices[1] if choices else value if _SEVERAL.match(value or "") else None
    info = FlagInfo(
        name=name,
        names=names,
        value=value,
        choices=tuple(re.split(r"[|,]", listed)) if listed else (),
        help=_ENV.sub("", body).strip(),
        env=env[1] if env else None,
        refused=None,
    )
    return info.model_copy(update={"refused": _refusal(info)})


def _removed(flag: FlagInfo) -> bool:
    return "argument has been removed" in flag.help


def _refusal(flag: FlagInfo) -> str | None:
    if _removed(flag):
        return flag.help
    for name in (n.lstrip("-") for n in flag.names):
        if name in _MANAGED:
            return _MANAGED[name]
        if _DOWNLOAD.search(name) and name not in _DOWNLOAD_EXCEPT:
            return "it downloads, which the model file's `source` does"
        if _PATH_NAME.search(name):
            return "it reads or writes files on this machine"
    if flag.value and _PATH_VALUE.search(flag.value):
        return "it reads or writes files on this machine"
    return None


def _value_problem(shown: str, flag: FlagInfo, value: FlagValue) -> str | None:
    if flag.value is None:
        return None if isinstance(value, bool) else f"{shown} is a switch: expected true or false, got {value!r}"
    if isinstance(value, bool):
        if set(flag.choices) >= {"on", "off"}:
            return None
        return f"{shown} takes a value ({flag.value}), got {str(value).lower()}"
    text = str(value)
    if flag.choices and text not in flag.choices:
        return f"{shown} takes one of {', '.join(flag.choices)}; got {text!r}"
    if flag.value in _NUMBERS and not re.fullmatch(r"-?\d+(\.\d+)?", text) and text not in ("auto", "all"):
        return f"{shown} takes a number; got {text!r}"
    if not text or "\0" in text or text.startswith("--"):
        return f"{shown} takes a value ({flag.value}); got {text!r}"
    return None
