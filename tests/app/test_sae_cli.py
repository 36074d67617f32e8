"""`sfumato sae` on the fake engine."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from engine.fake import FakeEngine


def sae(*arguments: str) -> int:
    return main(["sae", arguments[0], "--model", "fake", *arguments[1:]])


def test_list_and_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert sae("list", "--json") == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["name"], told["layer"], told["site"], told["k"]) == ("fake-residual-2", 2, "residual", 8)
    assert sae("list") == 0
    assert "fake-residual-2" in capsys.readouterr().out
    assert sae("info", "--latent", "3", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["latent"]["id"] == "sae.fake-residual-2.3"
    assert len(told["latent"]["promoted"]) == 12
    assert sae("info", told["id"], "--latent", "3") == 0
    out = capsys.readouterr().out
    assert "explained_variance: 0.8" in out
    assert "written by  text." in out


def test_influence(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--image", str(pictures / "ok.png"), "--question", "What is on the right?", "--top", "4"]
    assert sae("influence", *asked, "--json", "--ablate") == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told)[:4] == ["model", "sae", "answer", "value"]
    assert {"explained_variance", "l0", "latents", "warnings"} < set(told)
    assert 4 <= len(told["latents"]) <= 8
    assert set(told["latents"][0]) == {"id", "influence", "mean_activation", "image_share", "ablation"}
    values = [latent["influence"] for latent in told["latents"]]
    assert values == sorted(values, reverse=True)
    assert told["settings"] == {
        "of": "answer", "quantity": "logprob", "keep_error": True, "bos": False, "positive": "entry"
    }  # fmt: skip
    assert sae("influence", *asked, "--quantity", "probability", "--drop-error", "--of", "next", "--json") == 0
    other = json.loads(capsys.readouterr().out)
    assert (other["settings"]["quantity"], other["settings"]["keep_error"]) == ("probability", False)
    assert "ablation" not in other["latents"][0]
    assert sae("influence", *asked) == 0
    out = capsys.readouterr().out
    assert told["answer"] in out
    assert told["latents"][0]["id"] in out


def test_train_and_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "own"
    assert sae("train", "--layer", "1", "--steps", "3", "--name", "mine", "--out", str(out), "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["name"] == "mine"
    assert "step 3 of 3" in captured.err
    assert sae("list", "--attach", str(out), "--json") == 0
    assert [info["name"] for info in json.loads(capsys.readouterr().out)] == ["fake-residual-2", "mine"]
    assert sae("influence", "--question", "x", "--attach", str(out), "--json") == 0
    assert json.loads(capsys.readouterr().out)["sae"] == "mine"
    assert sae("influence", "--question", "x", "--sae", str(out), "--json") == 0
    assert json.loads(capsys.readouterr().out)["sae"] == "mine"


def test_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert sae("experiment", "--items", "4", "--ablated", "1", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["asked"], told["right"], told["agreement"]["influence"]["n"]) == (4, 4, 1)
    assert {masked["method"] for masked in told["masked"]} == {"influence", "activation", "bottom", "random"}
    assert sae("experiment", "--items", "4", "--drop-error") == 0
    assert "error dropped" in capsys.readouterr().out


def test_ctrl_c_ends_a_training_between_two_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = FakeEngine._pause

    def press(self: FakeEngine, cancelled: Any) -> None:
        pause(self, cancelled)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(FakeEngine, "_pause", press)
    before = signal.getsignal(signal.SIGINT)
    assert sae("train", "--layer", "1", "--out", str(tmp_path)) == 130
    assert "step 1 of 2000" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["info", "/nowhere/at/all"], "holds no SAE"),
        (["info", "--latent", "96"], "go from 0 to 95"),
        (["influence", "--question", " "], "The question is empty"),
        (["influence", "--question", "x", "--top", "0"], "--top is 0"),
        (["influence", "--question", "x", "--image", "/nowhere.png"], "cannot be read"),
        (["experiment", "--items", "0"], "--limit is 0"),
        (["train", "--layer", "9", "--out", "/tmp/never"], "layers go from 0 to 3"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sae(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert captured.err.strip().count("\n") == 0
