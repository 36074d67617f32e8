"""What pages say of one fuzzy set of neurons, whether a concept has it or an expression gives it."""

import numpy as np
import numpy.typing as npt

from app import formats
from app.contexts import LayerBar
from app.state import address
from engine.contract import Floats, RequestError, concepts

fuzzy, algebra = concepts.fuzzy, concepts.algebra
ALPHA = 0.5
MEMBERS = 100
"""Members that a page lists at most."""
BANDS = ((0.0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.0))
"""Membership bands, the lower end excluded."""


def alpha_of(text: str) -> float:
    """α of an address, rounded to hundredths as the slider has them. Raises RequestError."""
    try:
        value = float(text.replace(",", ".")) if text else ALPHA
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise RequestError(f"α is “{text[:40]}”; it must be a number from 0 to 1, for example 0.5.")
    return round(value, 2)


def spelled(name: str) -> str:
    """A name as an expression has it."""
    return str(algebra.Name(name))


def in_algebra(*names: str) -> str:
    """The address of concepts in algebra, joined by AND."""
    return address("/algebra", [("expression", " AND ".join(map(spelled, names)))])


def neuron_href(model_revision: str, layer: int, index: int) -> str:
    """The address of a neuron's page."""
    return f"/neurons/{model_revision}/text.{layer}.{index}"


def facts(memberships: Floats) -> tuple[tuple[str, str, str], ...]:
    """(term, value, what it is)."""
    count = int(np.count_nonzero(fuzzy.support(memberships)))
    return (
        ("cardinality Σμ", amount(fuzzy.cardinality(memberships)), "The sum of all memberships"),
        ("support", formats.thousands(count), f"Neurons with μ above 0, of {formats.thousands(memberships.size)}"),
        ("core", formats.thousands(int(np.count_nonzero(fuzzy.core(memberships)))), "Neurons with μ = 1"),
        ("height", formats.membership(fuzzy.height(memberships)), "The largest membership"),
        ("fuzziness", f"{fuzzy.fuzziness(memberships):.3f}", "De Luca–Termini entropy: 0 for a crisp set, at most 1"),
    )


def amount(value: float) -> str:
    """A cardinality."""
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def cut_words(memberships: Floats, alpha: float) -> str:
    """How large an α-cut is."""
    cut = fuzzy.alpha_cut(memberships, alpha)
    count = int(np.count_nonzero(cut))
    if not count and not memberships.any():
        return "No neuron belongs to it at all."
    if not count:
        return "No neuron belongs to it by so much: lower α."
    held = float(memberships[cut].sum(dtype=np.float64)) / (fuzzy.cardinality(memberships) or 1.0)
    neurons = "1 neuron" if count == 1 else f"{formats.thousands(count)} neurons"
    return f"{neurons}, with {formats.percent(held)} of the cardinality"


def layer_bars(memberships: Floats, alpha: float) -> tuple[LayerBar, ...]:
    """Members of the α-cut by layer."""
    counts = fuzzy.alpha_cut(memberships, alpha).sum(axis=1)
    largest = int(counts.max(initial=0)) or 1
    return tuple(
        LayerBar(str(layer), int(count) / largest, formats.thousands(int(count))) for layer, count in enumerate(counts)
    )


def cut_members(memberships: Floats, alpha: float, limit: int = MEMBERS) -> list[tuple[int, int, float]]:
    """(layer, index, μ) of the α-cut, strongest first, ties by (layer, index)."""
    flat = memberships.ravel()
    inside = np.flatnonzero(fuzzy.alpha_cut(flat, alpha))
    first = inside[np.argsort(-flat[inside], kind="stable")[:limit]]
    return [(*divmod(int(n), memberships.shape[1]), float(flat[n])) for n in first]


def by_band(memberships: Floats) -> npt.NDArray[np.int64]:
    """(bands, n_layers): how many members each layer has in each of BANDS."""
    return np.array([((memberships > low) & (memberships <= high)).sum(axis=1) for low, high in BANDS], np.int64)


def band_labels() -> tuple[str, ...]:
    return tuple(f"{low:g}–{high:g}" for low, high in BANDS)
