"""sha256 of files, at the speed of the disk."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

_CHUNK_BYTES = 4 << 20


def hash_file(path: Path, read: Callable[[int], None] | None = None) -> str:
    """sha256 of a file, in constant memory, without the interpreter's lock; `read` hears of every chunk's bytes.

    OSError when the file cannot be read.
    """
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_CHUNK_BYTES))
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        offset = 0
        while size := os.readv(fd, [buffer]):
            offset += size
            # The kernel reads ahead while this chunk is hashed.
            os.posix_fadvise(fd, offset, 2 * _CHUNK_BYTES, os.POSIX_FADV_WILLNEED)
            digest.update(buffer[:size])
            if read is not None:
                read(size)
    finally:
        os.close(fd)
    return digest.hexdigest()
