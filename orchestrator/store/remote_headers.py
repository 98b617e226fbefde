"""Headers of files elsewhere, read before they are fetched."""

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.header import Header
from orchestrator.gguf.reader import read_header
from orchestrator.schemas import HfSource, Source, UrlSource
from orchestrator.store.http.limits import LOOK_UP
from orchestrator.store.hub import remote_files, resolve
from orchestrator.store.layout import Layout, name_of, shard_urls
from orchestrator.store.remote import RemoteFile
from orchestrator.store.remote_bytes import RemoteBytes


def remote_headers(layout: Layout, source: Source) -> list[Header]:
    """Headers of all shards of a source that can be read over the network. Blocks; nothing is kept."""
    headers = []
    for remote in _remotes(layout, source):
        with RemoteBytes(remote, LOOK_UP) as content:
            headers.append(read_header(content))
    return headers


def _remotes(layout: Layout, source: Source) -> list[RemoteFile]:
    match source:
        case HfSource():
            commit = layout.refs.commit(source.hf, source.revision) or resolve(source.hf, source.revision, LOOK_UP)
            return remote_files(source, commit, LOOK_UP)
        case UrlSource():
            return [RemoteFile(url, name_of(url)) for url in shard_urls(source.url)]
        case _:
            missing = ", ".join(layout.missing(source))
            raise SlipstreamError(Code.SOURCE_NOT_FOUND, f"{missing} is not on disk, and only there could it be read")
