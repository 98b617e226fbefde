"""Settings from the environment (`SLIPSTREAM_*`). docs/settings.md lists them; a test holds it to this file."""

import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

# As browsers write it: lower case, no path, and no port that the scheme implies.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@*\sA-Z]+")


def _xdg(variable: str, fallback: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / fallback) / "slipstream"


def _read_keys(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    keys = tuple(line.strip() for line in path.read_text().splitlines() if line.strip())
    if not keys:
        raise ValueError(f"{path} holds no key; write one key a line, or unset the variable that names it")
    return keys


class Settings(BaseSettings):
    """Everything that can be set. Keys come from files, so that no environment listing shows them."""

    model_config = SettingsConfigDict(
        env_prefix="SLIPSTREAM_", env_ignore_empty=True, extra="ignore", validate_default=True
    )

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 lets the kernel choose.")
    models_dir: Path = Field(Path("models"), description="Folder of the model files, `*.yaml`.")
    state_dir: Path = Field(
        default_factory=lambda: _xdg("XDG_STATE_HOME", ".local/state"),
        description="Folder of the database. One orchestrator owns it at a time.",
    )
    cache: Path = Field(
        default_factory=lambda: _xdg("XDG_CACHE_HOME", ".cache"),
        description="Folder for downloaded models and built servers.",
    )
    llama_server: Path | None = Field(
        None, description="The llama-server binary. Unset: the patched one that `make server` built or asked for last."
    )
    admin_keys_file: Path | None = Field(
        None, description="File with the keys for `/api`, one a line. An admin key also opens `/v1`."
    )
    api_keys_file: Path | None = Field(None, description="File with the keys for `/v1`, one a line.")
    hf_token_file: Path | None = Field(
        None, description="File with a Hugging Face token; `HF_TOKEN` goes before it. Read when files are brought."
    )
    allow_no_keys: bool = Field(False, description="Serve without keys although the address is not a loopback address.")
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        ("127.0.0.1", "localhost", "[::1]"),
        description="Host headers that are answered, separated by commas; `*` for any. Guards against DNS rebinding.",
    )
    start_timeout_seconds: PositiveFloat = Field(
        600.0, description="A server that has not become ready without any sign of progress for this long has failed."
    )
    stop_timeout_seconds: PositiveFloat = Field(
        10.0, description="Time between the request to end a server (TERM) and KILL."
    )
    shutdown_timeout_seconds: PositiveFloat = Field(
        5.0, description="Time that answers get to end after the orchestrator was asked to stop."
    )
    upstream_timeout_seconds: PositiveFloat = Field(
        1800.0, description="Longest silence of a llama-server during an answer."
    )
    scrape_timeout_seconds: PositiveFloat = Field(
        1.0, description="Longest wait for the metrics of one llama-server during a scrape of ours."
    )
    hosts_file: Path | None = Field(
        None, description="File that names the hosts servers run on (docs/hosts.md). Unset: processes on this machine."
    )
    memory: str | None = Field(
        None,
        description="Memory that servers on this machine may hold, by device: `host=24GiB,CUDA0=30GiB`. "
        "A device that is not named: 90 % of RAM, what is free at start of an accelerator.",
    )
    accelerator: Literal["cpu", "cuda", "rocm"] | None = Field(
        None,
        description="What servers on this machine are to compute on: `cpu`, `cuda`, `rocm`. Where it is not there, "
        "`/readyz` answers 503 with the reason. Unset: whatever there is.",
    )
    idle_seconds: PositiveFloat | None = Field(
        None, description="A server that a request started ends after this long without one. Unset: it stays."
    )
    max_waiting_requests: PositiveInt = Field(1000, description="Requests that may wait for one model.")
    wait_timeout_seconds: PositiveFloat = Field(600.0, description="Longest wait of a request for its server.")
    drain_timeout_seconds: PositiveFloat = Field(
        60.0, description="Time that answers get to end before their server is ended for another one or by a command."
    )
    keep_alive_seconds: PositiveFloat = Field(
        5.0, description="A stream that waits for its server gets a comment this often."
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Web origins whose pages may use `/v1`, separated by commas. Empty: none."
    )
    max_request_bytes: PositiveInt = Field(64 << 20, description="Largest request body of `/v1`.")
    jobs: PositiveInt = Field(2, description="Jobs that run at a time: pulls, grafts, verifications.")
    log_format: Literal["auto", "json", "text"] = Field(
        "auto", description="Lines of the log: `json`, `text`, or `auto`: text at a terminal, else JSON."
    )
    log_lines: PositiveInt = Field(2000, description="Log lines kept in memory for each server.")

    @field_validator(
        *("models_dir", "state_dir", "cache", "llama_server", "admin_keys_file", "api_keys_file", "hf_token_file"),
        "hosts_file",
    )
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        # Children run in folders of their own: a relative path means the folder we were started in.
        return None if value is None else value.expanduser().absolute()

    @field_validator("allowed_hosts", "cors_origins", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(v.strip() for v in value.split(",") if v.strip()) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_origins(self) -> Self:
        for origin in self.cors_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"SLIPSTREAM_CORS_ORIGINS={origin} is no origin; expected one as browsers send it, such as "
                    "https://chat.example or http://localhost:3000"
                )
        if "*" in self.cors_origins and self.admin_keys_file is None and self.api_keys_file is None:
            raise ValueError(
                "SLIPSTREAM_CORS_ORIGINS=* lets every web page ask, and there is no key: set SLIPSTREAM_API_KEYS_FILE, "
                "or name the origins"
            )
        return self

    @model_validator(mode="after")
    def _check_exposure(self) -> Self:
        if not self.is_loopback and self.admin_keys_file is None and not self.allow_no_keys:
            raise ValueError(
                f"SLIPSTREAM_HOST={self.host} can be reached from other machines, but there is no key: set "
                "SLIPSTREAM_ADMIN_KEYS_FILE, or SLIPSTREAM_ALLOW_NO_KEYS=true if something else guards the port"
            )
        return self

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def admin_keys(self) -> tuple[str, ...]:
        """Keys for `/api`; raises OSError or ValueError when the file cannot serve."""
        return _read_keys(self.admin_keys_file)

    def api_keys(self) -> tuple[str, ...]:
        """Keys for `/v1`; raises OSError or ValueError when the file cannot serve."""
        return _read_keys(self.api_keys_file)
