"""The scripts that are run by hand: their arithmetic, and the device script on its tiny shape."""

import json
from pathlib import Path

import numpy as np
import pytest

from scripts import versions
from tests.gpu import measure


def test_the_device_script_runs_on_its_tiny_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    assert measure.main(["--tiny", "--device", "cpu", "--rounds", "1", "--json", str(file)]) == 0
    figures = json.loads(file.read_text())
    assert set(figures) >= {
        "plain forward, ms",
        "gradient / plain forward",
        "second target / decoder forward + backward",
    }
    assert all(value > 0 for value in figures.values())
    out = capsys.readouterr().out
    assert "65 positions" in out
    assert "not measured on the CPU" in out


def test_the_device_script_will_not_make_a_7b_model_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert measure.main(["--device", "cpu"]) == 2
    assert "--tiny" in capsys.readouterr().err
    shape = measure.config(tiny=False)
    assert (shape.text_config.num_hidden_layers, shape.text_config.intermediate_size) == (32, 11008)


def asked(scores: list[float], ids: tuple[int, ...] = (5,), band: float = 0.0) -> dict[str, object]:
    return {"question": "q", "answer": "a", "ids": list(ids), "band": band, "scores": [scores]}


def test_versions_are_compared_within_the_noise_band() -> None:
    first = asked([1.0, 0.5, 0.50001, 0.1])
    assert versions.compare(first, first) == ([], 0.0, [])
    wrong, difference, moved = versions.compare(first, asked([1.0, 0.50001, 0.5, 0.1]))
    assert (wrong, moved) == ([], ["text.0.1", "text.0.2"])
    assert difference == pytest.approx(1e-5, rel=0.01)
    wrong, _, moved = versions.compare(first, asked([0.4, 0.5, 0.50001, 0.1]))
    assert len(wrong) == 2
    assert "text.0.0" in moved
    assert versions.compare(first, asked([0.99, 0.5, 0.50001, 0.1], band=0.02))[0] == []
    wrong, difference, _ = versions.compare(first, asked([1.0, 0.5, 0.50001, 0.1], (6,)))
    assert "answers differ" in wrong[0]
    assert np.isnan(difference)


def test_the_other_version_is_the_newest_permitted_one() -> None:
    known = ["6.0.0", "5.26.0rc1", "5.25.1", "5.25.0", "5.24.1", "5.24.0", "5.23.2", "4.9.0"]
    assert versions.choose("5.24.0", known, ">=5.23,<6") == "5.25.1"
    assert versions.choose("5.25.1", known, ">=5.24,<6") == "5.24.1"
    assert versions.choose("5.24.0", known[4:], ">=5.24,<6") == "5.23.2"
    with pytest.raises(SystemExit, match="no other minor version"):
        versions.choose("5.24.0", ["5.24.1"], ">=5.24,<6")
    assert versions.requirement().startswith(">=")
