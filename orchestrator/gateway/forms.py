"""The one field of a form that matters here: which model it is for. The form itself passes untouched."""

import re

from orchestrator.errors import Code, SlipstreamError

_BOUNDARY = re.compile(r'multipart/form-data\s*;.*?\bboundary=(?:"([^"\r\n]{1,70})"|([^\s;,"]{1,70}))', re.I | re.S)
_NAME = re.compile(rb'^content-disposition:\s*form-data\s*;(?:.*?;)?\s*name=(?:"([^"\r\n]*)"|([^\s;]+))', re.I | re.M)
_LONGEST_HEAD_BYTES = 4096
_LONGEST_NAME_BYTES = 200


def model_of(raw: bytes, content_type: str) -> str | None:
    """The field `model` of a multipart form (RFC 7578), None if it has none; SlipstreamError invalid_request."""
    found = _BOUNDARY.match(content_type.strip())
    if found is None:
        raise SlipstreamError(
            Code.INVALID_REQUEST,
            f"expected multipart/form-data with a boundary, got content-type {content_type!r:.100}",
        )
    delimiter = b"\r\n--" + (found[1] or found[2]).encode()
    models = {value for name, value in _fields(b"\r\n" + raw, delimiter) if name == b"model"}
    if len(models) > 1:
        raise SlipstreamError(
            Code.INVALID_REQUEST, f"the form has {len(models)} different fields `model`, expected one"
        )
    return models.pop()[:_LONGEST_NAME_BYTES].decode(errors="replace") if models else None


def _fields(form: bytes, delimiter: bytes) -> list[tuple[bytes, bytes]]:
    """Name and value of every part that is no file."""
    fields = []
    start = form.find(delimiter)
    while start >= 0:
        start += len(delimiter)
        end = form.find(delimiter, start)
        # A part begins after the line end behind its delimiter; `--` in that place ends the form.
        head_end = form.find(b"\r\n\r\n", start, start + _LONGEST_HEAD_BYTES)
        if end < 0 or form.startswith(b"--", start):
            break
        if 0 <= head_end < end:
            head = form[start:head_end]
            name = _NAME.search(head)
            if name is not None and b"filename" not in head.lower():
                fields.append((name[1] or name[2] or b"", form[head_end + 4 : end]))
        start = end
    return fields
