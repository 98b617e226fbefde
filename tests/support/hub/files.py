"""Files with ranges, whole or spoiled as it was ordered, and the store that xet reads from."""

import os
import re
import socket
import time
from contextlib import suppress
from pathlib import Path

from tests.support.hub import xet
from tests.support.hub.answering import Answering
from tests.support.hub.faults import Fault, Kind
from tests.support.hub.repositories import HubFile

PAGE = b"<!DOCTYPE html><html><body>Please sign in</body></html>"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_SENDFILE_BYTES = 4 << 20
_PIECE_BYTES = 64 << 10


class Files(Answering):
    """Answers with the bytes of a file."""

    def _file(self, path: str, file: HubFile, about: dict[str, str]) -> None:
        with self.server.hub.sending() as allowed:
            if allowed:
                self._send_file(path, file, about)
            else:
                self._answer(self.server.hub.at_once_status, {})

    def _send_file(self, path: str, file: HubFile, about: dict[str, str]) -> None:
        """A file or a range of it, spoiled if that was ordered. HEAD is never spoiled."""
        hub, size = self.server.hub, file.size_bytes
        asked = _RANGE.fullmatch(self.headers.get("Range") or "") if hub.ranges else None
        etag = f'{"W/" if hub.weak_etags else ""}"{file.oid}"'
        if asked and (wanted := self.headers.get("If-Range")) and (hub.weak_etags or wanted != etag):
            asked = None
        fault = None
        if self.command == "GET":
            fault = hub.take_fault(path, is_ranged=bool(self.headers.get("Range")), on_api=False)
        kind = fault.kind if fault else None
        if fault and kind is Kind.STATUS:
            extra = {"Content-Range": f"bytes */{size}"} if fault.status == 416 else {}
            return self._answer(fault.status, fault.headers(**extra))
        if kind is Kind.PAGE:
            return self._answer(200, {"Content-Type": "text/html; charset=utf-8"}, PAGE)
        about = about | {"ETag": etag, "Content-Type": "application/octet-stream"}
        about |= {"Accept-Ranges": "bytes"} if hub.ranges else {}
        start, stop, status = 0, size, 200
        if asked and kind is not Kind.WHOLE:
            start, stop, status = int(asked[1]), min(int(asked[2] or size - 1) + 1, size), 206
            if start >= size:
                return self._answer(416, {"Content-Range": f"bytes */{size}"})
            if fault and kind is Kind.OTHER_START:
                start, stop = start - fault.after_bytes, stop - fault.after_bytes
            about["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
            about["ETag"] = '"another"' if kind is Kind.OTHER_ETAG else etag
        if fault and kind is Kind.SHORT:
            stop -= fault.after_bytes
        length = {"Transfer-Encoding": "chunked"} if kind is Kind.NO_LENGTH else {"Content-Length": str(stop - start)}
        self._head(status, about | length)
        if self.command == "GET":
            self._body(file.content, start, stop, fault)

    def _body(self, content: Path, start: int, stop: int, fault: Fault | None) -> None:
        hub = self.server.hub
        with content.open("rb") as file:
            if fault and fault.kind in (Kind.CUT, Kind.STALL):
                self._pieces(file.fileno(), start, min(stop, start + fault.after_bytes))
                if fault.kind is Kind.STALL:
                    hub.closing.wait(60)
                self._cut()
            elif fault and fault.kind is Kind.WRONG_BYTES:
                data = bytearray(os.pread(file.fileno(), stop - start, start))
                data[len(data) // 2] ^= 1
                self.wfile.write(data)
            elif fault and fault.kind is Kind.NO_LENGTH:
                self._chunks(file.fileno(), start, stop, fault.after_bytes)
            else:
                self._pieces(file.fileno(), start, stop)

    def _chunks(self, fd: int, start: int, stop: int, cut_after_bytes: int) -> None:
        end = start + cut_after_bytes if cut_after_bytes else stop
        for at in range(start, end, _PIECE_BYTES):
            piece = os.pread(fd, min(_PIECE_BYTES, end - at), at)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        if cut_after_bytes:
            self._cut()
        else:
            self.wfile.write(b"0\r\n\r\n")

    def _cut(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _pieces(self, fd: int, start: int, stop: int) -> None:
        while start < stop:
            rate = self.server.hub.bytes_per_second
            limit = _SENDFILE_BYTES if rate is None else _PIECE_BYTES
            count = os.sendfile(self.connection.fileno(), fd, start, min(limit, stop - start))
            self.server.hub.count_sent(count)
            start += count
            if rate is not None:
                time.sleep(_PIECE_BYTES / rate)

    def _xet(self, path: str) -> None:
        """The content host as the store that xet reads from."""
        hub = self.server.hub
        file = hub.xet_file(path.rpartition("/")[2])
        asked = _RANGE.fullmatch(self.headers.get("Range") or "")
        if file is None or not asked or path.startswith("/v2/"):
            return self._answer(404, {})
        start, last = int(asked[1]), int(asked[2])
        if path.startswith("/xorbs/"):
            fault = hub.take_fault(path, is_ranged=True, on_api=False)
            if fault is not None and fault.kind is Kind.STATUS:
                return self._answer(fault.status, fault.headers())
            body = xet.xorb_bytes(file, start, last + 1)
            where = {"Content-Range": f"bytes {start}-{last}/{xet.xorb_size_bytes(file)}"}
            self._head(206, where | {"Content-Length": str(len(body))})
            self.wfile.write(body[: fault.after_bytes] if fault else body)
            if fault:
                hub.closing.wait(60)
            return None
        if start >= file.size_bytes:
            return self._answer(416, {})
        if self.headers.get("Authorization") != f"Bearer {xet.TOKEN}":
            return self._answer(401, {})
        self._json(xet.reconstruction(file, start, min(last + 1, file.size_bytes), hub.content_url))
