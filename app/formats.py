"""Numbers and times as text: the one place that decides digits, signs and spaces."""

import datetime as dt
import math
import unicodedata

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
QUOTED = 60
"""Characters of a text that a sentence quotes."""
UNSEEN = ("Cc", "Cf", "Cs", "Cn")
STEPS = (("day", 86_400), ("hour", 3600), ("minute", 60))


def signed(value: float) -> str:
    """Three decimals, or two significant digits and a power of ten where those would be zeros; a true minus sign."""
    if not math.isfinite(value):
        return "not finite"
    value += 0.0  # no minus sign before a zero
    if abs(value) >= 0.01 or value == 0:
        return f"{value:+.3f}".replace("-", "−")
    if abs(value) >= 0.001:
        return f"{value:+.2g}".replace("-", "−")
    mantissa, _, exponent = f"{value:+.1e}".partition("e")
    return f"{mantissa}·10{str(int(exponent)).translate(RAISED)}".replace("-", "−")


def unit(largest: float) -> tuple[int, str]:
    """(power, its name) of the thousandfold unit in which a table's largest magnitude reads as 1 … 999: (0, "") down to
    0.1, then (-3, "10⁻³"), (-6, "10⁻⁶"), …"""
    if not math.isfinite(largest) or largest >= 0.1 or largest == 0:
        return 0, ""
    power = 3 * math.floor(math.log10(largest) / 3)
    return power, f"10{str(power).translate(RAISED)}"


def in_unit(value: float, power: int) -> str:
    """A value of a table in the unit of `unit`."""
    if not math.isfinite(value):
        return "not finite"
    scaled = value / 10.0**power
    digits = ".3f" if power == 0 else ".3g" if abs(scaled) >= 1 else ".2f"
    return f"{scaled:+{digits}}".replace("-", "−")


def plain(value: float) -> str:
    return signed(value).removeprefix("+")


def three(value: float) -> str:
    """As `plain`, but three significant digits from 1 on."""
    return f"{value:#.3g}".rstrip(".").replace("-", "−") if 1 <= abs(value) < 1000 else plain(value)


def percent(probability: float) -> str:
    """Whole percent, with a decimal near both ends."""
    value = 100 * probability
    if value == 0:
        return "0 %"
    if value >= 99.95 or 1 <= value < 99:
        return f"{value:.0f} %"
    return f"{value:.1f} %" if value >= 0.05 else "<0.1 %"


def membership(value: float) -> str:
    return f"{value:.2f}"


def thousands(value: int) -> str:
    return f"{value:,}"


def milliseconds(value: float) -> str:
    return f"{value:.0f} ms" if value < 10_000 else f"{value / 1000:.1f} s"


def about(seconds: float) -> str:
    """A time to wait, roughly."""
    if seconds < 1:
        return "about a second"
    return f"about {seconds:.0f} s" if seconds < 100 else f"about {seconds / 60:.0f} min"


def one_line(text: str) -> str:
    """What a person typed, on one line and without control characters (Postgres refuses NUL)."""
    return " ".join("".join(" " if ord(letter) < 32 or ord(letter) == 127 else letter for letter in text).split())


def name_of(text: str) -> str:
    """What a person typed as a name: on one line, without characters that have no shape or turn the text's direction;
    those that join letters (U+200C, U+200D) stay. '' where nothing can be seen."""
    line = one_line(text)
    kept = "".join(one for one in line if one in "\u200c\u200d" or unicodedata.category(one) not in UNSEEN)
    return " ".join(kept.split()) if any(map(str.isprintable, kept.replace(" ", ""))) else ""


def quoted(text: str) -> str:
    """A text that anybody wrote, as a sentence can quote it: not too long, and set apart (by isolates, U+2068 and
    U+2069) where its letters run from right to left, so that the sentence's own words and numbers keep their order."""
    short = text if len(text) <= QUOTED else text[: QUOTED - 1] + "…"
    backwards = any(unicodedata.bidirectional(letter) in ("R", "AL", "RLE", "RLO", "RLI") for letter in short)
    return f"\u2068{short}\u2069" if backwards else short


def ago(then: dt.datetime, now: dt.datetime) -> str:
    seconds = (now - then).total_seconds()
    for unit, length in STEPS:
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now"


def polarity(value: float) -> str:
    return "against" if value < 0 else "for"
