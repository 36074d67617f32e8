"""Token ids as text, one piece a token, for strips of chips: as many pieces as ids, whatever the script.

Tokenizers cut emoji and many scripts into bytes, so a token may hold a part of a character, or the end of one and the
beginning of the next.
"""

from collections.abc import Sequence
from typing import Any

INCOMPLETE = "\ufffd"
"""What decoders write for bytes that are no character yet."""

_SHOWN = [*range(33, 127), *range(161, 173), *range(174, 256)]
_HIDDEN = [byte for byte in range(256) if byte not in _SHOWN]
BYTES = {chr(byte): byte for byte in _SHOWN} | {chr(256 + k): byte for k, byte in enumerate(_HIDDEN)}
"""The alphabet in which byte-level vocabularies (GPT-2's and after) write bytes."""


def pieces_of(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text that each token adds to those before it, special ones too: joined, the decoded whole. A character that
    spans several tokens stands with the one that completes it; the others are empty.

    What a token adds shows only behind its neighbours (leading spaces, bytes), so a short window is decoded: the last
    token or tokens that made whole characters, and what came since."""

    def text(start: int, end: int) -> str:
        return str(tokenizer.decode(ids[start:end], clean_up_tokenization_spaces=False))

    pieces: list[str] = []
    start = since = 0
    shown = ""
    for end in range(1, len(ids) + 1):
        whole = text(start, end)
        visible = whole.rstrip(INCOMPLETE)
        goes_on = visible.startswith(shown)
        pieces.append(visible[len(shown) :] if goes_on else "")
        if goes_on and visible == whole:
            start, since = since, end
            shown = text(start, end)
        elif goes_on:
            shown = visible
    return pieces


def alone(tokenizer: Any, token: int) -> str:
    """A token out of context, with its leading space where the vocabulary writes one; bytes that are no character by
    themselves as <0xE7>, SentencePiece's way."""
    text = str(tokenizer.decode([token]))
    if INCOMPLETE not in text:
        return text
    written = str(tokenizer.convert_ids_to_tokens(token))
    if not all(character in BYTES for character in written) or written.startswith("<0x"):
        return written
    return "".join(f"<0x{BYTES[character]:02X}>" for character in written)
