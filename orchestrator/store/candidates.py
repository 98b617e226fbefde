"""What the files of a repository are for, told from their paths, and which of them is meant. Pure.

A name can be read in more than one way, so nothing is guessed between two files that fit.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from orchestrator.errors import Code, SlipstreamError
from orchestrator.gguf.model import shard_names
from orchestrator.schemas import Candidate, RepositoryView, Role

_QUANT = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:"
    r"Q\d_K(?:_(?:XXS|XS|S|M|L|XL|XXL))?|Q\d_[01](?:_\d_\d)?|Q\d"
    r"|IQ\d_(?:XXS|XS|S|M|L|XL|NL|K|KS|KSS|KL|KT)(?:_R\d)?"
    r"|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32|FP8"
    r"))(?=$|[-._])",
    re.IGNORECASE,
)
_DYNAMIC = "UD-"
_DRAFTER_STARTS = ("mtp-", "eagle3-", "dflash-", "dspark-")
_DRAFTER_WORDS = frozenset({"draft", "drafter", "eagle", "eagle3", "dflash", "dspark", "assistant", "speculator"})
_DONOR = re.compile(r"(?:mtp|nextn)[-_.]?(?:head|donor|layer)s?(?=$|[-_.])|(?:^|[-_.])donor(?=$|[-_.])")
_OTHER = re.compile(r"(?:^|[-_.])(?:lora|adapter|vocab|vae)(?=$|[-_.])")
_ORDER = {role: place for place, role in enumerate(Role)}
_LISTED = 20


def role_of(path: str) -> Role:
    """What a file is for: mmproj, imatrix, drafter and donor are told by words of their path, the rest are models."""
    *folders, name = path.lower().split("/")
    stem = name.removesuffix(".gguf")
    # A model made with an importance matrix may say so in its name, which then has a quant too.
    if "imatrix" in name and quant_of(path) is None:
        return Role.IMATRIX
    if not name.endswith(".gguf"):
        return Role.OTHER
    if "mmproj" in name:
        return Role.MMPROJ
    if _DONOR.search(stem):
        return Role.DONOR
    words = set(re.split(r"[-_.]", stem))
    if "mtp" in folders or stem == "mtp" or stem.startswith(_DRAFTER_STARTS) or words & _DRAFTER_WORDS:
        return Role.DRAFTER
    return Role.OTHER if _OTHER.search(stem) else Role.MODEL


def quant_of(path: str) -> str | None:
    """The quantisation that a name ends with, else one that a folder is named for; in upper case."""
    *folders, name = path.split("/")
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", re.sub(r"\.gguf$", "", name, flags=re.IGNORECASE))
    for part in (stem, *reversed(folders)):
        if found := _QUANT.findall(part):
            return str(found[-1]).upper()
    return None


def candidates(sizes: Mapping[str, int]) -> tuple[Candidate, ...]:
    """What a repository offers: `sizes` are bytes by path. All shards of a split file are one candidate."""
    found: dict[str, Candidate] = {}
    for path in sorted(sizes):
        files = shard_names(path)
        role = role_of(path)
        is_offered = path.lower().endswith(".gguf") or role is Role.IMATRIX
        if is_offered and files[0] not in found:
            found[files[0]] = Candidate(
                file=files[0],
                role=role,
                quant=quant_of(path),
                files=files,
                size_bytes=sum(sizes.get(file, 0) for file in files),
            )
    return tuple(sorted(found.values(), key=lambda c: (_ORDER[c.role], c.file)))


def select(view: RepositoryView, wanted: str | None = None, role: Role = Role.MODEL) -> Candidate:
    """The candidate that is meant: an exact path, else the one of a quant (`Q4_K_M`), else the only one of its role.

    SlipstreamError source_ambiguous lists those that fit; source_not_found what there is.
    """
    if wanted is not None:
        for candidate in view.candidates:
            if wanted in candidate.files:
                return candidate
    of_role = [c for c in view.candidates if c.role is role]
    fitting = [c for c in of_role if wanted is None or _is_quant(c, wanted)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise _ambiguous(view, wanted, role, fitting)
    raise _absent(view, wanted, role, of_role)


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """The names most like one that is not there: those of the same file in another folder first."""
    known = list(names)
    last = name.rpartition("/")[2].lower()
    same = [other for other in known if other.rpartition("/")[2].lower() == last]
    return list(dict.fromkeys([*same, *difflib.get_close_matches(name, known, n=3, cutoff=0.5)]))[:3]


def _is_quant(candidate: Candidate, wanted: str) -> bool:
    """Whether a name has the quant. One without `UD-` fits a dynamic one too, since people leave it out."""
    if candidate.quant is None:
        return False
    has, asked = _plain(candidate.quant), _plain(wanted)
    return has == asked or has == _DYNAMIC + asked


def _plain(quant: str) -> str:
    return re.sub(r"\bFP(?=16|32)", "F", quant.upper())


def _ambiguous(view: RepositoryView, wanted: str | None, role: Role, fitting: Sequence[Candidate]) -> SlipstreamError:
    what = f"{len(fitting)} files" if wanted is None else f"{len(fitting)} files for {wanted!r}"
    return SlipstreamError(
        Code.SOURCE_AMBIGUOUS,
        f"{view.repository} has {what} of the role {role}: {_listed(fitting)}",
        hint="name the file, or a quant that only one of them has",
        details={"candidates": [c.model_dump(mode="json") for c in fitting]},
    )


def _absent(view: RepositoryView, wanted: str | None, role: Role, of_role: Sequence[Candidate]) -> SlipstreamError:
    what = f"no file of the role {role}" if wanted is None else f"neither a file nor a quant {wanted!r}"
    there = of_role or view.candidates
    close = nearest(wanted, [file for c in view.candidates for file in c.files]) if wanted else []
    return SlipstreamError(
        Code.SOURCE_NOT_FOUND,
        f"{view.repository} has {what}; it has {_listed(there) if there else 'no GGUF file'}",
        hint=f"did you mean {' or '.join(close)}?" if close else None,
        details={"candidates": [c.model_dump(mode="json") for c in there]},
    )


def _listed(found: Sequence[Candidate]) -> str:
    """Candidates with roles and sizes, for a message."""
    told = []
    for c in found[:_LISTED]:
        shards = f", {len(c.files)} shards" if len(c.files) > 1 else ""
        told.append(f"{c.file} ({c.role}, {c.size_bytes / 1e9:.2f} GB{shards})")
    more = len(found) - _LISTED
    return ", ".join(told) + (f" and {more} more" if more > 0 else "")
