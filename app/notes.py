"""What people call a neuron or a latent: a label and a note, made fit to be kept."""

from app import formats
from engine.contract import RequestError

LABEL, NOTE = 80, 4000
"""Characters of a label and of a note at most."""


def cleaned(label: str, text: str) -> tuple[str, str]:
    """(label in one line, note) without what cannot be shown. Raises RequestError for longer ones."""
    label = formats.name_of(label)
    text = "".join(letter for letter in text.replace("\r\n", "\n") if letter == "\n" or ord(letter) >= 32).strip()
    for what, written, limit in (("label", label, LABEL), ("note", text, NOTE)):
        if len(written) > limit:
            raise RequestError(f"The {what} has {len(written)} characters; at most {limit} are kept. Shorten it.")
    return label, text
