"""A file as hf_xet reads it: a reconstruction (which chunks of which xorb), and the bytes of that xorb.

The whole file is one xorb of equal chunks, not compressed (xet-core: cas_types, xorb_chunk_format.rs). The client
looks at the lengths; it does not compare the hash of the file.
"""

import os
from typing import Any

from tests.support.hub.repositories import HubFile

TOKEN, EXPIRY = "xet-token", 4_000_000_000
_CHUNK_BYTES = 64 << 10
_HEADER_BYTES = 8


def reconstruction(file: HubFile, start: int, stop: int, host: str) -> dict[str, Any]:
    """What `/v1/reconstructions/HASH` answers for a range of the file."""
    first, end = start // _CHUNK_BYTES, -(-stop // _CHUNK_BYTES)
    unpacked_bytes = min(end * _CHUNK_BYTES, file.size_bytes) - first * _CHUNK_BYTES
    chunks = {"start": first, "end": end}
    last = min(end * (_CHUNK_BYTES + _HEADER_BYTES), xorb_size_bytes(file)) - 1
    place = {"start": first * (_CHUNK_BYTES + _HEADER_BYTES), "end": last}
    return {
        "offset_into_first_range": start - first * _CHUNK_BYTES,
        "terms": [{"hash": file.xet_hash, "unpacked_length": unpacked_bytes, "range": chunks}],
        "fetch_info": {file.xet_hash: [{"range": chunks, "url": f"{host}/xorbs/{file.xet_hash}", "url_range": place}]},
    }


def xorb_size_bytes(file: HubFile) -> int:
    """Bytes of the xorb."""
    return file.size_bytes + _HEADER_BYTES * -(-file.size_bytes // _CHUNK_BYTES)


def xorb_bytes(file: HubFile, start: int, stop: int) -> bytes:
    """A range of the xorb: chunks, each after its header (version, packed length, scheme, length)."""
    step = _CHUNK_BYTES + _HEADER_BYTES
    out = bytearray()
    with file.content.open("rb") as content:
        for index in range(start // step, -(-stop // step)):
            chunk = os.pread(content.fileno(), _CHUNK_BYTES, index * _CHUNK_BYTES)
            length = len(chunk).to_bytes(3, "little")
            out += bytes(1) + length + bytes(1) + length + chunk
    skipped = start % step
    return bytes(out[skipped : skipped + stop - start])
