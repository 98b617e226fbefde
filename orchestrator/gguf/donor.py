"""The file that gives an MTP head: a head alone, a drafter, or a whole model."""

import hashlib
from dataclasses import dataclass

from orchestrator.gguf.head import EH_PROJ, Head, block_name, find_head
from orchestrator.gguf.header import Array, Header
from orchestrator.gguf.model import GgufModel
from orchestrator.gguf.trunk import refused, tensors_of

# What a head-only donor keeps of its tokenizer: digest and number of the tokens.
DONOR_TOKENS_SHA256, DONOR_TOKENS = "slipstream.donor.tokens_sha256", "slipstream.donor.tokens"


@dataclass(frozen=True, eq=False)
class Donor:
    """A file with an MTP head."""

    model: GgufModel
    head: Head

    @property
    def header(self) -> Header:
        """Header of the first file."""
        return self.model.header

    @property
    def name(self) -> str:
        """Name of the first file, for messages."""
        return self.model.header.source_name

    @property
    def has_experts(self) -> bool:
        """Whether the head's blocks route experts."""
        return self.head.has("ffn_gate_inp.weight")


def donor_of(model: GgufModel) -> Donor:
    """A model looked at as a donor; SlipstreamError graft_refused where it has no head, or one with a gap."""
    name = model.header.source_name
    if not model.architecture:
        raise refused(f"{name} does not say its general.architecture", key="general.architecture")
    head = find_head(tensors_of(model))
    if head is None:
        raise refused(f"{name} has no MTP head: no tensor is named blk.N.nextn.*", tensor=EH_PROJ)
    first, last = head.blocks[0], head.blocks[-1]
    if last - first + 1 != len(head.blocks):
        gap = next(block for block in range(first, last) if block not in head.blocks)
        raise refused(
            f"{name} has head blocks blk.{first} to blk.{last}, and none at blk.{gap}", tensor=block_name(gap, EH_PROJ)
        )
    return Donor(model, head)


def tokens_sha256(tokens: Array) -> str:
    """Digest over the tokens as the file has them."""
    return hashlib.sha256(tokens.raw).hexdigest()
