"""Files of SAEs that hold something else than their format says: refused in a sentence, whatever it is."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.contract import RequestError
from engine.sae.loading import read
from tests.engine.test_sae_loading import THRESHOLD, W, saelens, scope, tensors


def _text(file: Path, text: str) -> Path:
    file.write_text(text)
    return file.parent


ODD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "k no number": (lambda p: saelens(p, tensors(), architecture="topk", k=True), "no whole k"),
    "a list of arguments": (
        lambda p: saelens(p, tensors(), architecture="topk", activation_fn_kwargs=[1]),
        "something else than their",
    ),
    "a factor of one number": (
        lambda p: saelens(p, tensors(scaling_factor=torch.tensor(2.0)), finetuning_scaling_factor=True),
        "something else than their format",
    ),
    "an endless list": (lambda p: _text(saelens(p, tensors()) / "cfg.json", "[" * 100_000), "something else than"),
    "complex": (
        lambda p: saelens(p, {key: value.to(torch.complex64) for key, value in W.items()}, apply_b_dec_to_input=False),
        "complex64",
    ),
    "whole numbers": (
        lambda p: scope(p / "gemma-scope-2b-pt-res" / "layer_1", tensors(threshold=THRESHOLD), np.int32),
        "int32",
    ),
}


@pytest.mark.parametrize("name", list(ODD))
def test_what_is_not_what_it_says_is_refused(name: str, tmp_path: Path) -> None:
    files, words = ODD[name]
    with pytest.raises(RequestError, match=words):
        read(str(files(tmp_path)))
