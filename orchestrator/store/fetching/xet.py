"""The bytes of a file by xet, where the hub offers it: hf_xet's own stream, from where an earlier fetch ended.

What it brings is written, recorded and digested like any other bytes. When it fails, HTTP goes on from there.
"""

import os
import threading
import time
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from orchestrator import __version__
from orchestrator.store.fetching.board import Board, Stopped
from orchestrator.store.http.addresses import origin
from orchestrator.store.http.limits import Limits
from orchestrator.store.http.tokens import hub_token
from orchestrator.store.remote import RemoteFile

# A piece is handed over whole, up to 64 MiB of it: on a slow line nothing may come for long.
_PIECE_STALLS = 10
_YES = ("1", "ON", "YES", "TRUE")


class XetFailed(Exception):
    """Xet did not bring the file; what it brought is there. `str()` says why."""


@dataclass(frozen=True)
class XetOffer:
    """How the hub has a file in xet."""

    hash: str
    refresh_url: str = field(repr=False)
    size_bytes: int


def xet_offer(remote: RemoteFile, limits: Limits) -> XetOffer | None:
    """What the hub offers for a file of its own; None for a file elsewhere, and where xet is switched off.

    Without a digest to compare there is no xet: nothing would tie its bytes to those that HTTP goes on with.
    """
    is_off = os.environ.get("HF_HUB_DISABLE_XET", "").upper() in _YES or find_spec("hf_xet") is None
    if is_off or not remote.path or remote.sha256 is None or remote.size_bytes is None:
        return None
    # The hub's library is slow to import, and only this needs it here.
    from orchestrator.store.hub import xet_address

    address = xet_address(remote, limits)
    if address is None or origin(address[1]) != remote.token_host:
        return None
    return XetOffer(*address, size_bytes=remote.size_bytes)


class XetWorker(threading.Thread):
    """The only worker of a transfer by xet."""

    was_refused = False

    def __init__(self, board: Board, offer: XetOffer, limits: Limits) -> None:
        super().__init__(name="xet", daemon=True)
        self._board = board
        self._offer = offer
        self._limits = limits
        self._session: Any = None
        self._last_byte_seconds = time.monotonic()

    def run(self) -> None:
        try:
            self._work()
        except Stopped:
            pass
        except Exception as e:
            # hf_xet has no error of its own kind, and its messages hold addresses.
            self._board.fail(e if isinstance(e, XetFailed) else XetFailed(f"hf_xet failed ({type(e).__name__})"))

    def watch(self) -> None:
        """Give up a stream that has stood still too long."""
        if time.monotonic() - self._last_byte_seconds > _PIECE_STALLS * self._limits.stall_seconds:
            self._board.fail(XetFailed("no byte came in time"))

    def abort(self) -> None:
        """End its wait for bytes."""
        # Neither a stream nor its group wakes a thread that waits for its next piece (hf_xet 1.8).
        if (session := self._session) is not None:
            session.sigint_abort()

    def _work(self) -> None:
        xet: Any = import_module("hf_xet")
        agent = {"User-Agent": f"slipstream/{__version__}"}
        token = hub_token()
        shown = agent | ({"Authorization": f"Bearer {token}"} if token else {})
        self._session = xet.XetSession()
        group = self._session.new_download_stream_group(
            token_refresh_url=self._offer.refresh_url, token_refresh_headers=shown, custom_headers=agent
        )
        info = xet.XetFileInfo(self._offer.hash, self._offer.size_bytes)
        while (claim := self._board.claim()) is not None:
            try:
                for piece in group.download_stream(info, start=claim.position, end=claim.stop):
                    self._last_byte_seconds = time.monotonic()
                    self._board.write(claim, memoryview(piece)[: claim.left_bytes])
                if claim.left_bytes > 0:
                    raise XetFailed("the stream ended early")
            finally:
                self._board.release(claim)
