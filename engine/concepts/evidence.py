"""Evidence that grows: evidence shares kept probe by probe, and what follows. Torch-free (METHODS.md §2.1–2.3).

1. A probe's shares are kept sparsely and without rounding: the neurons with a positive share (at most KEPT of them, the
   largest) and their float32 values; how much of the whole was kept is exact. 50 probes of 4,608 neurons take < 1 MB.
2. Evidence is a sequence of such rows. Adding probes appends; everything else is computed from the rows alone, summed
   in their order in float64, so that a concept grown in steps is bit for bit the one built at once.
3. Bootstrap: probes are drawn with replacement; of each draw the evidence, what is specific, and the memberships are
   computed anew (the map's quantile too); an interval is the central part of them. The contrast is held fixed.
"""

import dataclasses
import io
import itertools
import zipfile
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from engine.concepts.fuzzy import CURVES, MAPS, Memberships, linear_rows
from engine.errors import RequestError, UnknownName

KEPT = 16384
"""A probe's shares are kept for at most this many neurons; of models with fewer, for all."""
DRAWS, LEVEL = 500, 0.95
_CHUNK = 2**22

Mode = Literal["raw", "specific"]
MODES: dict[str, str] = {
    "raw": "the mean evidence share over the concept's probes",
    "specific": "the same less the mean evidence of the contrast concepts, floored at 0",
}
"""What a membership is made of, by name."""


@dataclasses.dataclass(frozen=True, eq=False)
class Shares:
    """One probe's evidence shares: neuron `index` (flat, ascending) has `value`; all others 0. `kept` = Σ value: 1
    unless there were more than KEPT positive ones (or none: then 0)."""

    shape: tuple[int, int]
    index: npt.NDArray[np.uint32]
    value: npt.NDArray[np.float32]

    @property
    def kept(self) -> float:
        return float(self.value.sum(dtype=np.float64))

    def dense(self) -> Memberships:
        """(n_layers, d_mlp)."""
        flat = np.zeros(self.shape[0] * self.shape[1], np.float32)
        flat[self.index] = self.value
        return flat.reshape(self.shape)

    def to_bytes(self) -> bytes:
        """For a row of a database: shape, count, indices (16 bits where they fit), values; little-endian."""
        small = self.shape[0] * self.shape[1] <= 1 << 16
        head = np.array([*self.shape, len(self.index)], "<u4").tobytes()
        return head + self.index.astype("<u2" if small else "<u4").tobytes() + self.value.astype("<f4").tobytes()

    @staticmethod
    def from_bytes(data: bytes) -> "Shares":
        """Raises RequestError for bytes that are no shares."""
        layers, width, count = (int(n) for n in np.frombuffer(data[:12], "<u4")) if len(data) >= 12 else (0, 0, 1)
        kind = np.dtype("<u2" if layers * width <= 1 << 16 else "<u4")
        middle = 12 + count * kind.itemsize
        if len(data) != middle + 4 * count:
            raise RequestError("A probe's stored evidence is damaged. Build the concept again.")
        index = np.frombuffer(data[12:middle], kind).astype(np.uint32)
        return Shares((layers, width), index, np.frombuffer(data[middle:], "<f4").astype(np.float32))


def pack(share: Memberships) -> Shares:
    """Keep a probe's evidence shares (n_layers, d_mlp): the KEPT largest positive ones, ties by (layer, index)."""
    flat = np.asarray(share, np.float32).ravel()
    index = np.flatnonzero(flat > 0)
    if len(index) > KEPT:
        index = np.sort(index[np.argsort(-flat[index], kind="stable")[:KEPT]])
    layers, width = share.shape
    return Shares((layers, width), index.astype(np.uint32), flat[index])


@dataclasses.dataclass(frozen=True, eq=False)
class Intervals:
    """Bootstrap intervals of memberships: `low` and `high`, each of the shape of `neurons` (flat indices)."""

    neurons: npt.NDArray[np.int64]
    low: Memberships
    high: Memberships


@dataclasses.dataclass(frozen=True, eq=False)
class Evidence:
    """The evidence shares of a concept's probes, in their order, over neurons of `shape` (n_layers, d_mlp)."""

    shape: tuple[int, int]
    rows: tuple[Shares, ...] = ()

    @property
    def n_probes(self) -> int:
        return len(self.rows)

    @property
    def n_bytes(self) -> int:
        """What it takes when stored."""
        return sum(len(row.to_bytes()) for row in self.rows)

    def add(self, shares: Iterable[Shares]) -> "Evidence":
        """With more probes. Raises RequestError for shares of another model's shape."""
        more = tuple(shares)
        for row in more:
            if row.shape != self.shape:
                raise RequestError(
                    f"This evidence is over {self.shape[0]} × {self.shape[1]} neurons, the new probe's over "
                    f"{row.shape[0]} × {row.shape[1]}: it belongs to another model. Build the concept for one model."
                )
        return Evidence(self.shape, (*self.rows, *more))

    def mean(self) -> Memberships:
        """E_c (n_layers, d_mlp): the mean evidence share; zeros without probes."""
        total = np.zeros(self.shape[0] * self.shape[1], np.float64)
        for row in self.rows:
            total[row.index] += row.value
        return np.asarray(total / max(self.n_probes, 1), np.float32).reshape(self.shape)

    def memberships(
        self, phi: str, quantile: float, mode: Mode = "raw", contrast: Memberships | None = None
    ) -> Memberships:
        """μ_c = φ(E_c) (n_layers, d_mlp); in mode `specific` φ(max(E_c − contrast, 0)), contrast = E_¬c of one shape
        with it (see `contrast_of`), None = nothing to contrast with. Raises UnknownName, RequestError."""
        check_map(phi, quantile, mode)
        own = self.mean()
        if mode == "specific" and contrast is not None:
            own = np.maximum(own - contrast, np.float32(0))
        return MAPS[phi](own, quantile)

    def intervals(
        self,
        phi: str,
        quantile: float,
        mode: Mode = "raw",
        contrast: Memberships | None = None,
        neurons: Sequence[int] | npt.NDArray[np.integer] | None = None,
        draws: int = DRAWS,
        level: float = LEVEL,
        seed: int = 0,
    ) -> Intervals:
        """Percentile bootstrap intervals over probes for the memberships of `neurons` (flat; None = all). The same
        arguments give the same intervals. Of one probe they have no width: nothing is known of the others."""
        check_map(phi, quantile, mode)
        chosen = np.arange(self.shape[0] * self.shape[1]) if neurons is None else np.asarray(neurons, np.int64)
        matrix = np.stack([row.dense().ravel() for row in self.rows]) if self.rows else self.mean().reshape(1, -1)
        weights = _weights(len(matrix), draws, seed)
        against = contrast.ravel() if mode == "specific" and contrast is not None else np.float32(0)
        found = np.empty((draws, len(chosen)), np.float32)
        step = max(1, _CHUNK // matrix.shape[1])
        for start in range(0, draws, step):
            drawn = np.maximum(weights[start : start + step] @ matrix - against, np.float32(0))
            found[start : start + step] = CURVES[phi](linear_rows(drawn, quantile)[:, chosen])
        edge = (1 - level) / 2
        low, high = np.quantile(found, (edge, 1 - edge), axis=0)
        return Intervals(chosen, np.asarray(low, np.float32), np.asarray(high, np.float32))


def _weights(probes: int, draws: int, seed: int) -> npt.NDArray[np.float32]:
    """(draws, probes): how often each probe is drawn, over their number; rows sum to 1."""
    counts = np.random.default_rng(seed).multinomial(probes, np.full(probes, 1 / probes), size=draws)
    return np.asarray(counts / probes, np.float32)


def check_map(phi: str, quantile: float, mode: str) -> None:
    """Raise UnknownName or RequestError for a map, quantile or mode that cannot be used."""
    if phi not in MAPS:
        raise UnknownName(f"There is no membership map {phi!r}; choose {', '.join(MAPS)}.")
    if mode not in MODES:
        raise UnknownName(f"There is no membership mode {mode!r}; choose {', '.join(MODES)}.")
    if not 0 < quantile < 1:
        raise RequestError(f"The quantile of a membership map must lie between 0 and 1; {quantile:g} does not.")


def contrast_of(others: Sequence[Memberships]) -> Memberships | None:
    """The contrast evidence E_¬c: the mean of the contrast concepts' evidence, each concept counting alike; None where
    there are none."""
    return np.mean(others, axis=0, dtype=np.float32) if others else None


def to_bytes(evidence: Evidence) -> bytes:
    """All of it, for a file: a compressed `.npz` without pickle."""
    counts = [len(row.index) for row in evidence.rows]
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        shape=np.array(evidence.shape),
        counts=np.array(counts, np.int64),
        index=np.concatenate([row.index for row in evidence.rows] or [np.zeros(0, np.uint32)]),
        value=np.concatenate([row.value for row in evidence.rows] or [np.zeros(0, np.float32)]),
    )
    return buffer.getvalue()


def from_bytes(data: bytes) -> Evidence:
    """Raises RequestError for a file that is no evidence."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            layers, width = (int(n) for n in stored["shape"])
            counts = [int(n) for n in stored["counts"]]
            ends = np.cumsum([0, *counts])
            index, value = stored["index"], stored["value"]
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise RequestError(f"This is no stored evidence: {error}. Build the concept again.") from error
    places = [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]
    return Evidence((layers, width), tuple(Shares((layers, width), index[at], value[at]) for at in places))
