"""`sfumato sae experiment` on the fake engine: from the little world and from files."""

import json
from pathlib import Path

import pytest

from app.cli import main
from engine.contract import Question, evaluation
from engine.fake import FakeEngine
from tests.app.owning import png


def experiment(*arguments: str) -> int:
    return main(["sae", "experiment", "--model", "fake", "--ablated", "0", *arguments])


def test_the_world_by_seed(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for seed in ("0", "0", "1"):
        assert experiment("--limit", "5", "--swapped", "2", "--seed", seed, "--json") == 0
        told.append(json.loads(capsys.readouterr().out))
    assert told[0] == told[1]
    assert told[0]["masked"] != told[2]["masked"]
    assert (told[0]["asked"], told[0]["pairs"]) == (5, 2)
    assert told[0]["conclusions"]
    assert experiment("--items", "3", "--quantity", "probability", "--drop-error") == 0
    out = capsys.readouterr().out
    assert "3 of 3 items right" in out
    assert "error dropped" in out


def test_a_file_of_squads_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine()
    asked = []
    for word in ("first", "second", "third"):
        (answer,) = engine.latent_answers(Question(None, f"Once.\n{word}?", 24), "fake-residual-2", [[]])
        asked.append({"question": f"{word}?", "answers": [{"text": answer.text}]})
    asked.insert(1, {"question": "none?", "answers": []})
    file = tmp_path / "squad.json"
    file.write_text(json.dumps({"version": "2", "data": [{"paragraphs": [{"context": "Once.", "qas": asked}]}]}))
    assert experiment("--file", str(file), "--json") == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert (told["asked"], told["right"]) == (3, 3)
    assert "record 2 is left out: It has no answer" in captured.err
    assert experiment("--file", str(file), "--limit", "2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["asked"] == 2


def test_questions_about_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p").mkdir()
    rows = ["picture,question,answer"]
    for number in range(3):
        data = png(number)
        (tmp_path / "p" / f"{number}.png").write_bytes(data)
        question = Question(evaluation.decoded(data), "What is it?", 24)
        (answer,) = FakeEngine().latent_answers(question, "fake-residual-2", [[]])
        rows.append(f"{number}.png,What is it?,{answer.text}")
    file = tmp_path / "seen.csv"
    file.write_text("\n".join([*rows, "4.png,What?,x"]) + "\n")
    assert experiment("--file", str(file), "--pictures", str(tmp_path / "p"), "--json") == 0
    captured = capsys.readouterr()
    assert "record 5 is left out: There is no picture '4.png' in the folder." in captured.err
    told = json.loads(captured.out)
    assert (told["asked"], told["right"]) == (3, 3)
    assert told["overlaps"]["influence, first 10, about two pictures"]["n"] == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--limit", "0"], "--limit is 0; it must be at least 1"),
        (["--swapped", "-1"], "--swapped is -1"),
        (["--file", "/nowhere.json"], "cannot be read"),
        (["--pictures", "/tmp"], "takes no --annotations and no --pictures"),
        (["--sae", "/nowhere/at/all"], "holds no SAE"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert experiment(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert captured.err.strip().count("\n") == 0
