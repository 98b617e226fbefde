"""What an Ollama model asks for, in llama-server's words, and what it asks for in vain."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from orchestrator.gguf.header import Header
from orchestrator.schemas import FlagValue

# Request fields of llama-server (tools/server/server-schema.cpp) by Ollama's name (api/types.go, Options).
_REQUEST_FIELDS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repeat_last_n": "repeat_last_n",
    "repeat_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
    "seed": "seed",
    "num_keep": "n_keep",
}
# Flags that Ollama passes on only above a value of its own; below it the runner chooses.
_FLAGS = {
    "num_ctx": ("ctx_size", 1),
    "num_batch": ("batch_size", 1),
    "num_gpu": ("gpu_layers", 0),
    "num_thread": ("threads", 1),
}
_DRAFT_TOKENS = 4
# Tensors that Ollama's own conversions keep in the model's file (llama/compat/README.md). llama.cpp has none of
# these names in a model and refuses a file with tensors left over.
_FOREIGN_PREFIXES = ("v.", "mm.", "a.", "mtp.")
_IGNORED_LAYERS = {
    "adapter": "it has a LoRA adapter, which is not applied",
    "system": "it has a system message, which is not sent: clients send their own",
    "messages": "it has example messages, which are not sent",
}


@dataclass(frozen=True)
class OllamaSettings:
    """Parameters of a Modelfile as members of a model file: `defaults`, `server`, `speculation`."""

    defaults: dict[str, Any]
    server: dict[str, FlagValue]
    speculation: dict[str, int]
    notes: tuple[str, ...]


def settings_of(parameters: dict[str, Any], *, has_drafter: bool) -> OllamaSettings:
    """What of a Modelfile's parameters llama-server has under any name; notes name the others.

    Ollama drafts 4 tokens where a drafter stands beside the model (docs/modelfile.mdx, draft_num_predict).
    """
    defaults: dict[str, Any] = {}
    server: dict[str, FlagValue] = {}
    speculation = {"n_max": _DRAFT_TOKENS} if has_drafter else {}
    ignored: list[str] = []
    for name, value in parameters.items():
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
        if name in _REQUEST_FIELDS and number is not None:
            defaults[_REQUEST_FIELDS[name]] = number
        elif name == "stop" and (stop := _strings(value)):
            defaults["stop"] = stop
        elif name == "num_predict" and isinstance(number, int) and number >= -1:
            # -1 is both servers' default: no limit.
            defaults |= {"max_tokens": number} if number >= 0 else {}
        elif name in _FLAGS and isinstance(number, int):
            flag, least = _FLAGS[name]
            server |= {flag: number} if number >= least else {}
        elif name == "draft_num_predict" and isinstance(number, int) and number >= 0:
            speculation["n_max"] = number
        else:
            ignored.append(name)
    notes = (f"parameters without a counterpart: {', '.join(sorted(ignored))}",) if ignored else ()
    return OllamaSettings(defaults, server, speculation, notes)


def notes_on(header: Header, template: str | None, layers: Collection[str], projectors: int) -> tuple[str, ...]:
    """What an operator should know of a model before llama-server serves its blobs.

    `layers` are the last parts of its media types. A Go template is not compared with the GGUF's Jinja one: no
    comparison of two languages could tell that they agree.
    """
    notes = [text for kind, text in _IGNORED_LAYERS.items() if kind in layers]
    if template is not None and header.text("tokenizer.chat_template"):
        notes.append("its template is Ollama's (Go); llama-server uses the one in the GGUF, which may differ")
    elif template is not None:
        notes.append(
            "its template is Ollama's (Go) and the GGUF has none, so that llama-server guesses: set `chat_template` "
            "under `server`"
        )
    if projectors > 1:
        notes.append(f"it has {projectors} projectors; the first is used, as Ollama does")
    foreign = sorted({name.partition(".")[0] for name in header.tensors if name.startswith(_FOREIGN_PREFIXES)})
    if foreign:
        notes.append(
            f"its file holds tensors {', '.join(f'{prefix}.*' for prefix in foreign)} in Ollama's own layout (vision, "
            "audio or MTP), which its llama-server translates; another refuses the file"
        )
    return tuple(notes)


def _strings(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return values if values and all(isinstance(v, str) for v in values) else []
