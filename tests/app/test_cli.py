"""The command line on the fake engine."""

import dataclasses
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli import main
from app.main import check_model
from app.settings import Settings
from engine.contract import Check
from tests.support import ROOT


def ask(*arguments: str) -> int:
    return main(["ask", "--model", "fake", *arguments])


def test_json_is_one_object(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--image", str(pictures / "ok.png"), "--question", "What is on the right?", "--top", "7", "--json"]
    assert ask(*arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told) == ["model", "answer", "tokens", "neurons", "concepts", "heatmap", "heatmap_net", "timing_ms"]
    assert told["model"] == "fake"
    assert "".join(token["text"] for token in told["tokens"]).strip() == told["answer"]
    assert set(told["tokens"][0]) == {"text", "id", "logprob"}
    assert len(told["neurons"]) == 7
    assert set(told["neurons"][0]) == {"id", "score", "image_share"}
    assert set(told["concepts"][0]) == {"name", "score", "similarity"}
    assert len(told["heatmap"]["rows"]) == 9
    assert told["heatmap"]["box"] == [0, 0, 320, 240]
    assert told["heatmap"]["of"] == "evidence"
    assert len(told["heatmap_net"]) == 9
    assert told["heatmap_net"] != told["heatmap"]["rows"]
    assert set(told["timing_ms"]) == {"picture", "generate", "attribute", "total"}
    assert ask(*arguments, "--steer", f"{told['answer']}=-1") == 0
    steered = json.loads(capsys.readouterr().out)
    assert {name: steered[name] for name in ("answer", "tokens", "neurons")} == {
        name: told[name] for name in ("answer", "tokens", "neurons")
    }
    assert steered["steered"]["answer"] != told["answer"]
    assert steered["steered"]["tokens"]


def test_words_for_people(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("--image", str(pictures / "ramp16.png"), "--question", "What is it?", "--steer", "text.1.2=0") == 0
    captured = capsys.readouterr()
    assert "text." in captured.out
    assert "█" in captured.out
    assert "steered (text.1.2 × 0 · 1 neuron)" in captured.out
    assert "window 0 … 65535" in captured.err


def test_a_turn_of_zero_is_still_answered(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--question", "x", "--steer", "penguin=0", "--steer", "text.1.2=1"]
    assert ask(*arguments, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["steered"]["answer"] == told["answer"]
    assert told["steered"]["tokens"] == told["tokens"]
    assert told["steered"]["original_under_steered"] == [token["logprob"] for token in told["tokens"]]
    assert ask(*arguments) == 0
    assert f"steered (0 neurons): {told['answer']}" in capsys.readouterr().out


def test_without_a_picture(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("--question", "What lives on ice?", "--method", "direct", "--json") == 0
    assert json.loads(capsys.readouterr().out)["heatmap"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--question", "x", "--steer", "pengiun=-1"], "Did you mean penguin"),
        (["--question", "x", "--steer", "pengiun=0"], "Did you mean penguin"),
        (["--question", "x", "--steer", "text.99.1=1"], "layers go from 0 to 3"),
        (["--question", "x", "--steer", "penguin"], "CONCEPT=LAMBDA"),
        (["--question", "x", "--steer", "penguin=9"], "from -2 to 4"),
        (["--question", "x", "--image", "nowhere.png"], "cannot be read"),
        (["--question", "  "], "The question is empty"),
        (["--question", "x", "--top", "0"], "at least 1"),
    ],
)
def test_errors_are_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(*arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_check_tells_each_check_and_its_exit_status_is_the_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["check", "fake", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["model"], told["holds"], told["family"]) == ("fake", True, "fake")
    assert set(told["checks"][0]) == {"name", "holds", "detail"}
    assert main(["check", "fake"]) == 0
    assert "every check holds" in capsys.readouterr().out
    info = check_model(Settings(model="fake"))
    wrong = (Check("one", False, "off by two"), Check("two", False, ""))
    broken = dataclasses.replace(info, checks=(*info.checks, *wrong))
    monkeypatch.setattr("app.main.check_model", lambda _settings: broken)
    assert main(["check", "fake"]) == 1
    out = capsys.readouterr().out
    assert "✗ one: off by two" in out
    assert out.endswith("fake: refused: one\n")


def test_check_of_what_is_no_model_is_a_refusal_with_its_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for arguments in (["--json"], []):
        assert main(["check", str(tmp_path), *arguments]) == 1
        out = capsys.readouterr().out
        assert "could not be loaded" in out
    assert main(["check", "/no/such/folder", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["refused"].startswith("There is no folder")


def test_a_bad_picture_is_one_sentence(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("empty.png", "truncated.jpg", "script.svg", "size_1x1.png"):
        assert ask("--question", "x", "--image", str(pictures / name)) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_taken_port_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "--model", "fake", "--port", str(port), "--data-dir", str(tmp_path)]) == 2
    assert f"Port {port} of 127.0.0.1 is taken" in capsys.readouterr().err


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////proc/nowhere/x.db", "nonsense", "postgresql://u@127.0.0.1:9/x", "sqlite://", "sqlite:///:memory:",
        "sqlite:///file:x?mode=memory&uri=true", "postgresql+psycopg://u@host:port/x", "://",
        "mysql://u@127.0.0.1/x", "postgresql+nothing://u@127.0.0.1/x",
    ],
)  # fmt: skip
def test_a_database_that_cannot_be_used_is_said(url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["serve", "--model", "fake", "--database-url", url, "--data-dir", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert "cannot be used" in captured.err
    assert captured.err.count("\n") == 1


def test_a_bad_setting_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SFUMATO_MAX_NEW_TOKENS", "many")
    assert ask("--question", "x") == 2
    assert "SFUMATO_MAX_NEW_TOKENS" in capsys.readouterr().err


def test_the_app_with_the_fake_engine_leaves_torch_out() -> None:
    code = (
        "import sys, app.cli, app.main; from app.settings import Settings;"
        "app.main.create_app(Settings(model='fake', data_dir='/nonexistent/never'), None) if 0 else None;"
        "app.cli.main(['ask', '--model', 'fake', '--question', 'x', '--json']);"
        "bad = {'torch', 'transformers', 'accelerate'} & set(sys.modules); sys.exit(1 if bad else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False).returncode == 0
