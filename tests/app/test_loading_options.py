"""How a model is loaded, chosen by option or by environment: one sentence where a value is not possible."""

import dataclasses
import json

import pytest

from app.cli import main
from app.main import check_model
from app.settings import Settings


@pytest.mark.parametrize("command", [["ask", "--question", "x"], ["serve"], ["check", "fake"]])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--device", "tpu"], "choose cpu, cuda, cuda:N (N from 0) or auto"),
        (["--device", "cuda:x"], "choose cpu, cuda, cuda:N (N from 0) or auto"),
        (["--dtype", "float64"], "choose float32, bfloat16, float16 or auto"),
        (["--quantize", "5"], "choose 8 or 4"),
        (["--quantize", "four"], "choose 8 or 4"),
    ],
)
def test_a_value_that_is_not_possible(
    command: list[str], given: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, *given]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.startswith(f"sfumato: {given[0]}: “{given[1]}”")
    assert said.count("\n") == 1


def test_the_environment_says_the_same(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SFUMATO_DEVICE", "cuda:1")
    monkeypatch.setenv("SFUMATO_DTYPE", "bfloat16")
    monkeypatch.setenv("SFUMATO_QUANTIZE", "8")
    chosen = Settings()
    assert (chosen.device, chosen.dtype, chosen.quantize) == ("cuda:1", "bfloat16", 8)
    monkeypatch.setenv("SFUMATO_QUANTIZE", "7")
    assert main(["ask", "--question", "x"]) == 2
    assert "SFUMATO_QUANTIZE: “7” is not possible; choose 8 or 4" in capsys.readouterr().err
    monkeypatch.setenv("SFUMATO_QUANTIZE", "")
    assert Settings().quantize == 0


def test_the_choices_reach_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[object, ...]] = []
    fake = check_model(Settings(model="fake"))
    monkeypatch.setattr("engine.local.check_model", lambda *arguments: (given.append(arguments), fake)[1])
    assert main(["check", "builtin", "--device", "cpu", "--dtype", "float16", "--quantize", "4"]) == 0
    assert main(["check", "builtin"]) == 0
    assert given == [("builtin", "cpu", "float16", 4), ("builtin", None, None, None)]


def test_check_tells_why_there_are_no_gradients(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    info = dataclasses.replace(check_model(Settings(model="fake")), no_gradient="It rounds.")
    monkeypatch.setattr("app.main.check_model", lambda _settings: info)
    assert main(["check", "fake"]) == 0
    assert "no gradient methods: It rounds." in capsys.readouterr().out
    assert main(["check", "fake", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["no_gradient"] == "It rounds."


def test_ask_takes_direct_where_there_are_no_gradients(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from engine.fake import FakeEngine

    methods: list[str] = []
    info, ask = FakeEngine().info(), FakeEngine.ask

    def watched(self: FakeEngine, question: object, method: str, **rest: object) -> object:
        methods.append(method)
        return ask(self, question, method, **rest)

    monkeypatch.setattr(FakeEngine, "ask", watched)
    for reason in ("", "It rounds."):
        monkeypatch.setattr(
            FakeEngine, "info", lambda _self, reason=reason: dataclasses.replace(info, no_gradient=reason)
        )
        assert main(["ask", "--model", "fake", "--question", "What lives on ice?"]) == 0
    assert main(["ask", "--model", "fake", "--question", "What?", "--method", "pan"]) == 0
    assert methods == ["gradient", "direct", "pan"]
