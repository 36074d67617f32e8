"""Texts that sentences quote: short, and apart from what stands around them."""

import pytest

from app import formats


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("polar bear", "polar bear"),
        ("企鹅 🐧", "企鹅 🐧"),
        ("بطريق", "\u2068بطريق\u2069"),
        ("a שלום", "\u2068a שלום\u2069"),
        ("a" * 60, "a" * 60),
        ("a" * 61, "a" * 59 + "…"),
        ("ש" * 200, "\u2068" + "ש" * 59 + "…\u2069"),
    ],
)
def test_quoted(text: str, quoted: str) -> None:
    assert formats.quoted(text) == quoted


@pytest.mark.parametrize(
    ("value", "text"),
    [(194.168, "194"), (23.812, "23.8"), (4.0, "4.00"), (-2.5, "−2.50"), (0.269, "0.269"), (0, "0.000")],
)
def test_three_digits(value: float, text: str) -> None:
    assert formats.three(value) == text
