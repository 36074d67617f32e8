"""Every test in this folder needs a CUDA device; without one it is collected and skipped with that reason."""

import pytest


@pytest.fixture(autouse=True)
def _cuda() -> None:
    import torch  # here, so that collecting the suite costs no torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
