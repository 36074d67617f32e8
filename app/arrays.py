"""Arrays beside a row: named float32 arrays as one compressed blob (npz). Never pickled."""

import io
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def pack(arrays: Mapping[str, Floats | None]) -> bytes:
    """Compress the arrays that are not None."""
    buffer = io.BytesIO()
    kept: dict[str, Floats] = {name: array for name, array in arrays.items() if array is not None}
    np.savez_compressed(buffer, allow_pickle=False, **kept)
    return buffer.getvalue()


def unpack(blob: bytes) -> Mapping[str, Floats]:
    """The arrays by name, each read when it is first asked for; KeyError for a name that was not packed."""
    loaded: Mapping[str, Floats] = np.load(io.BytesIO(blob), allow_pickle=False)
    return loaded
