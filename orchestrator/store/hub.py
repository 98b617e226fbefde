"""A Hugging Face hub, through its own client library: commits, files, sizes, digests, and what stands in the way.

The bytes are another matter: `fetch` brings those.
"""

import json
import os
import ssl
from collections.abc import Iterable
from urllib.parse import quote, urlsplit

# The library would ask the hub which tool it runs in; we make no call that nobody asked for.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

from huggingface_hub import HfApi, ModelInfo, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from orchestrator import __version__
from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.model import shard_names
from orchestrator.schemas import HfSource, RepositoryView
from orchestrator.store.candidates import candidates, nearest, select
from orchestrator.store.http.addresses import origin
from orchestrator.store.http.answers import gated
from orchestrator.store.http.connect import Broken, check_environment, reason, untrusted
from orchestrator.store.http.limits import DEFAULT, LOOK_UP, Limits
from orchestrator.store.http.retry import BUSY_STATUSES, Patience, asked_wait_seconds
from orchestrator.store.http.session import Session
from orchestrator.store.http.tokens import endpoint, hub_token
from orchestrator.store.remote import RemoteFile

__all__ = ["list_repository", "remote_files", "resolve", "select"]

DEFAULT_REVISION = "main"
_REFS_BYTES = 1 << 20
_NAME = "slipstream"


def resolve(repository: str, revision: str | None = None, limits: Limits = DEFAULT) -> str:
    """The commit that a branch, tag or commit stands for now."""
    return _commit(_look_up(repository, revision, limits, with_files=False))


def list_repository(repository: str, revision: str | None = None, limits: Limits = LOOK_UP) -> RepositoryView:
    """What a repository offers at a revision, and the commit that it stands for: one call, so that both agree."""
    info = _look_up(repository, revision, limits)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    return RepositoryView(repository=repository, commit=_commit(info), candidates=candidates(sizes))


def remote_files(source: HfSource, commit: str, limits: Limits = DEFAULT) -> list[RemoteFile]:
    """The file of a source at a commit, or all shards of a split one, in order, with sizes and digests.

    One listing tells of all of them; a shard that is missing is refused before any byte is fetched.
    """
    info = _look_up(source.hf, commit, limits)
    listed = {file.rfilename: file for file in info.siblings or ()}
    paths = shard_names(source.file)
    if absent := [path for path in paths if path not in listed]:
        raise _no_file(source, commit, absent, listed)
    hub = endpoint()
    return [
        RemoteFile(
            url=hf_hub_url(source.hf, path, revision=commit, endpoint=hub),
            name=path.rpartition("/")[2],
            size_bytes=listed[path].size,
            sha256=lfs.sha256 if (lfs := listed[path].lfs) else None,
            token_host=origin(hub),
            path=path,
        )
        for path in paths
    ]


def xet_address(remote: RemoteFile, limits: Limits = DEFAULT) -> tuple[str, str] | None:
    """Hash and token address of a file that the hub offers by xet; None where it does not, or does not say."""
    try:
        data = get_hf_file_metadata(
            remote.url,
            token=hub_token() or False,
            timeout=limits.stall_seconds,
            library_name=_NAME,
            library_version=__version__,
            endpoint=endpoint(),
        ).xet_file_data
    except Exception:
        # HTTP meets the same trouble, and says what it is.
        return None
    return (data.file_hash, data.refresh_route) if data else None


def _look_up(repository: str, revision: str | None, limits: Limits, *, with_files: bool = True) -> ModelInfo:
    """What the hub says of a repository, tried again while it is busy or out of reach."""
    hub = endpoint()
    host = urlsplit(hub).hostname or ""
    check_environment(hub)
    patience = Patience(f"{repository} on {host}", limits)
    api = HfApi(hub, token=hub_token() or False, library_name=_NAME, library_version=__version__)
    while True:
        try:
            return api.model_info(
                repository, revision=revision, timeout=limits.stall_seconds, files_metadata=with_files
            )
        except HfHubHTTPError as e:
            status = e.response.status_code
            if status not in BUSY_STATUSES:
                raise _refusal(e, repository, revision, limits) from e
            patience.fail(f"the hub answered {status}", asked_wait_seconds(e.response.headers))
        except OfflineModeIsEnabled as e:
            raise SlipstreamError(
                Code.SOURCE_FAILED, f"{repository} cannot be looked up: HF_HUB_OFFLINE is set", hint="unset it"
            ) from e
        except HFValidationError as e:
            raise SlipstreamError(Code.INVALID_REQUEST, f"{repository!r} is no name of a repository: {e}") from e
        except (ValueError, TypeError, KeyError) as e:
            raise SlipstreamError(
                Code.SOURCE_FAILED, f"{host} did not answer as a Hugging Face hub does", hint="see HF_ENDPOINT"
            ) from e
        except Exception as e:
            # The library does not say which HTTP client it uses, so neither which errors a dead line brings.
            cause = _cause(e)
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise untrusted(host, cause) from e
            patience.fail(f"the hub cannot be reached ({reason(cause) if cause else type(e).__name__})")


def _cause(error: BaseException) -> OSError | None:
    """What the system said, under whatever a client library made of it."""
    link: BaseException | None = error
    while link is not None and not isinstance(link, OSError):
        link = link.__cause__ or link.__context__
    return link


def _commit(info: ModelInfo) -> str:
    if not info.sha:
        raise SlipstreamError(Code.SOURCE_FAILED, f"the hub names no commit for {info.id}")
    return info.sha


def _refusal(error: HfHubHTTPError, repository: str, revision: str | None, limits: Limits) -> SlipstreamError:
    """401 and 403 say what to do about them; 404 says what is not there."""
    page, status = f"{endpoint()}/{repository}", error.response.status_code
    if isinstance(error, GatedRepoError):
        return gated(page, status, {"X-Error-Code": "GatedRepo"})
    if isinstance(error, RevisionNotFoundError):
        return _no_revision(repository, revision, limits)
    if status in (401, 403):
        return gated(page, status, error.response.headers)
    if isinstance(error, RepositoryNotFoundError):
        return SlipstreamError(
            Code.SOURCE_NOT_FOUND,
            f"{urlsplit(page).hostname} has no repository {repository!r}",
            hint="names are `owner/name`; one that is private needs a token in HF_TOKEN that may read it",
        )
    return SlipstreamError(Code.SOURCE_FAILED, f"{repository}: the hub answered {status}")


def _no_revision(repository: str, revision: str | None, limits: Limits) -> SlipstreamError:
    wanted = revision or DEFAULT_REVISION
    known = _revisions(repository, limits)
    close = nearest(wanted, known) or known[:3]
    return SlipstreamError(
        Code.SOURCE_NOT_FOUND,
        f"{repository} has no branch, tag or commit {wanted!r}",
        hint=f"it has {', '.join(close)}" if close else None,
        details={"revisions": known},
    )


def _revisions(repository: str, limits: Limits) -> list[str]:
    """Branches and tags, for a hint: empty if they cannot be had. The library's own call knows no time-out."""
    hub, session = endpoint(), Session(limits)
    try:
        answer = session.get(f"{hub}/api/models/{quote(repository)}/refs", {}, token_host=origin(hub))
        found = json.loads(answer.read(_REFS_BYTES)) if answer.status == 200 else {}
        return [str(ref["name"]) for kind in ("branches", "tags") for ref in found.get(kind, ())]
    except (Broken, SlipstreamError, ValueError, TypeError, KeyError, AttributeError):
        return []
    finally:
        session.close()


def _no_file(source: HfSource, commit: str, absent: list[str], listed: Iterable[str]) -> SlipstreamError:
    names = list(listed)
    where = f"{source.hf} at commit {commit[:12]}"
    if source.file in names:
        return SlipstreamError(
            Code.SOURCE_NOT_FOUND,
            f"{where} lacks {len(absent)} of the shards that {source.file} belongs to: {', '.join(absent[:8])}",
            details={"missing": absent},
        )
    close = nearest(source.file, names)
    return SlipstreamError(
        Code.SOURCE_NOT_FOUND,
        f"{where} has no file {source.file!r}",
        hint=f"did you mean {' or '.join(close)}?" if close else None,
        details={"nearest": close},
    )
