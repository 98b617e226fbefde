"""The one error type of the project, and its two shapes on the wire.

Under `/api` an error is `application/problem+json` (RFC 9457), under `/v1` it has the shape of OpenAI's API.
"""

import errno
import os
from enum import StrEnum
from pathlib import Path
from typing import Any


class Code(StrEnum):
    """Stable codes: clients may switch on them, so a code is never renamed."""

    INVALID_REQUEST = "invalid_request"
    INVALID_MODEL_FILE = "invalid_model_file"
    INVALID_FLAG = "invalid_flag"
    INVALID_GGUF = "invalid_gguf"
    GRAFT_REFUSED = "graft_refused"
    PREFLIGHT_FAILED = "preflight_failed"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    MODEL_NOT_FOUND = "model_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    CONFLICT = "conflict"
    REQUEST_TOO_LARGE = "request_too_large"
    SOURCE_UNSUPPORTED = "source_unsupported"
    SOURCE_FAILED = "source_failed"
    SOURCE_GATED = "source_gated"
    SOURCE_NOT_FOUND = "source_not_found"
    SOURCE_AMBIGUOUS = "source_ambiguous"
    DISK_FULL = "disk_full"
    MODEL_INCOMPLETE = "model_incomplete"
    WRONG_BYTES = "wrong_bytes"
    SERVER_START_FAILED = "server_start_failed"
    SERVER_STOPPED = "server_stopped"
    UPSTREAM_FAILED = "upstream_failed"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    QUEUE_FULL = "queue_full"
    WAIT_TIMEOUT = "wait_timeout"
    NO_ROOM = "no_room"
    DOES_NOT_FIT = "does_not_fit"
    QUARANTINED = "quarantined"
    DRAINED = "drained"
    HAZARD = "hazard"
    HOST_FAILED = "host_failed"
    NO_ACCELERATOR = "no_accelerator"
    SHUTTING_DOWN = "shutting_down"
    MISCONFIGURED = "misconfigured"
    INTERNAL = "internal"


STATUS: dict[Code, int] = {
    Code.INVALID_REQUEST: 400,
    Code.INVALID_MODEL_FILE: 422,
    Code.INVALID_FLAG: 422,
    Code.INVALID_GGUF: 422,
    Code.GRAFT_REFUSED: 422,
    Code.PREFLIGHT_FAILED: 422,
    Code.UNAUTHORIZED: 401,
    Code.FORBIDDEN: 403,
    Code.NOT_FOUND: 404,
    Code.MODEL_NOT_FOUND: 404,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.CONFLICT: 409,
    Code.REQUEST_TOO_LARGE: 413,
    Code.SOURCE_UNSUPPORTED: 422,
    Code.SOURCE_FAILED: 502,
    Code.SOURCE_GATED: 403,
    Code.SOURCE_NOT_FOUND: 404,
    Code.SOURCE_AMBIGUOUS: 409,
    Code.DISK_FULL: 507,
    Code.MODEL_INCOMPLETE: 409,
    Code.WRONG_BYTES: 502,
    Code.SERVER_START_FAILED: 503,
    Code.SERVER_STOPPED: 503,
    Code.UPSTREAM_FAILED: 502,
    Code.UPSTREAM_TIMEOUT: 504,
    Code.QUEUE_FULL: 429,
    Code.WAIT_TIMEOUT: 503,
    Code.NO_ROOM: 503,
    Code.DOES_NOT_FIT: 422,
    Code.QUARANTINED: 503,
    Code.DRAINED: 503,
    Code.HAZARD: 422,
    Code.HOST_FAILED: 502,
    Code.NO_ACCELERATOR: 503,
    Code.SHUTTING_DOWN: 503,
    Code.MISCONFIGURED: 500,
    Code.INTERNAL: 500,
}

_OPENAI_TYPE = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error"}


PROBLEM_TYPE = "application/problem+json"


class SlipstreamError(Exception):
    """What was wrong, with what value, and what would be right.

    `hint` says what to do about it; `details` are extra members for the client; `retry_after_seconds` becomes
    a Retry-After header. None of them may hold a secret or a path outside the project's own folders.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        hint: str | None = None,
        retry_after_seconds: int | None = None,
        details: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.retry_after_seconds = retry_after_seconds
        self.details = details or {}
        self._headers = headers or {}

    @property
    def status(self) -> int:
        """HTTP status of this code."""
        return STATUS[self.code]

    @property
    def headers(self) -> dict[str, str]:
        """Response headers that belong to this error."""
        headers = dict(self._headers)
        if self.retry_after_seconds is not None:
            headers["retry-after"] = str(self.retry_after_seconds)
        if self.code is Code.UNAUTHORIZED:
            headers["www-authenticate"] = "Bearer"
        return headers

    def problem(self) -> dict[str, Any]:
        """Body for `/api` (RFC 9457)."""
        body: dict[str, Any] = {
            "type": f"urn:slipstream:error:{self.code}",
            "title": self.code.replace("_", " "),
            "status": self.status,
            "code": str(self.code),
            "detail": self.message,
        }
        if self.hint:
            body["hint"] = self.hint
        return self.details | body

    def openai(self) -> dict[str, Any]:
        """Body for `/v1`, as OpenAI's clients parse it."""
        kind = _OPENAI_TYPE.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        message = f"{self.message} ({self.hint})" if self.hint else self.message
        return {"error": {"message": message, "type": kind, "param": None, "code": str(self.code)}}


def folder_refused(what: str, folder: Path, error: OSError) -> SlipstreamError:
    """What a folder of ours that cannot be written becomes at start; the hint says whose it has to be."""
    user = f"{os.getuid()}:{os.getgid()}"
    hint = f"give it to this user: chown -R {user} {folder}"
    if os.path.ismount(folder):
        hint = (
            f"what is mounted there has to belong to {user}; on the host, as root: chown -R {user} FOLDER. "
            "Of a volume, FOLDER is the Mountpoint that `docker volume inspect` names"
        )
    return SlipstreamError(
        Code.MISCONFIGURED, f"the {what} folder {folder} cannot be written: {error.strerror or error}", hint=hint
    )


def is_disk_full(error: OSError) -> bool:
    """Whether a file system or a quota has no room left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def internal_error() -> SlipstreamError:
    """What a client hears of a fault of ours; the log has the rest."""
    return SlipstreamError(Code.INTERNAL, "an error in Slipstream itself; its log has the details")
