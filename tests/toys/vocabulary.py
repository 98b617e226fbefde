"""The tokenizer every toy shares: byte-level BPE in which a byte's token id is the byte itself."""

from collections.abc import Iterable
from typing import Final

from gguf import GGUFWriter, TokenType

TH: Final = 256
HE: Final = 257
END_OF_TEXT: Final = 258
IM_START: Final = 259
IM_END: Final = 260
TOOL: Final = 261

MERGED: Final = {TH: "th", HE: "he"}
CONTROL: Final = {
    END_OF_TEXT: "<|endoftext|>",
    IM_START: "<|im_start|>",
    IM_END: "<|im_end|>",
    TOOL: "<|tool|>",
}
END_OF_GENERATION: Final = frozenset({END_OF_TEXT, IM_END})
SIZE: Final = 256 + len(MERGED) + len(CONTROL)

CHAT_TEMPLATE: Final = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _byte_symbols() -> list[str]:
    """GPT-2's printable stand-in for each byte (openai/gpt-2, encoder.py, bytes_to_unicode)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(256, 512))
    return [chr(byte if byte in printable else next(stand_ins)) for byte in range(256)]


def add_tokenizer(writer: GGUFWriter) -> None:
    """Write the tokenizer's keys into a GGUF under construction."""
    tokens = _byte_symbols() + list(MERGED.values()) + list(CONTROL.values())
    types = [TokenType.NORMAL] * (SIZE - len(CONTROL)) + [TokenType.CONTROL] * len(CONTROL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(["t h", "h e"])
    writer.add_eos_token_id(END_OF_TEXT)
    writer.add_eot_token_id(IM_END)
    writer.add_pad_token_id(END_OF_TEXT)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def detokenize(ids: Iterable[int]) -> bytes:
    """The bytes that ids stand for; control tokens give nothing, as in llama-server's answers."""
    return b"".join(bytes([i]) if i < 256 else MERGED.get(i, "").encode() for i in ids)
