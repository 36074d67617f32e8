"""`sfumato evaluate` against the database that the pages read."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cli import main
from app.views import evaluated
from engine.contract import RequestError, evaluation
from engine.fake import FakeEngine
from tests.app.conftest import serving
from tests.app.owning import png
from tests.app.test_evaluations import ARMS, without_id
from tests.app.turning import HALF, Turning, bring, lines, over, start, told

Call = Callable[..., int]
SMALL = ("--kinds", "object", "--limit", "20", "--dev", "16")


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setattr("app.main.load_engine", lambda _: Turning())

    def run(*arguments: str) -> int:
        return main(["evaluate", *arguments, "--model", "fake", "--data-dir", str(tmp_path / "data")])

    return run


@pytest.fixture
def things(tmp_path: Path) -> str:
    path = tmp_path / "things.jsonl"
    path.write_bytes(lines(extra=["{broken"]))
    return str(path)


def test_the_json_has_every_arm_per_kind_and_in_total_and_the_page_shows_it(
    call: Call, things: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--set", things, *SMALL, "--json") == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    for row in (found, *found["kinds"], *found["totals"]):
        for arm in ARMS:
            assert set(row[arm]) == {"accuracy", "interval", "n"}
    assert found["modulated"]["accuracy"] == 0.8
    assert "line 121 is left out: This is no JSON" in err
    assert "20 test and 13 dev questions, at most" in err
    assert call("--set", things, *SMALL, "--json") == 0
    again, err = capsys.readouterr()
    assert json.loads(again) == found
    assert "it is done already" in err
    with serving(tmp_path / "data", Turning) as browser:
        url = f"/evaluations/{found['id']}"
        assert found["headline"] in browser.http.get(url).text
        assert f'href="{url}"' in browser.http.get("/evaluations").text
        assert found["command"] in browser.http.get(url).text
    assert main([*shlex.split(found["command"])[1:], "--data-dir", str(tmp_path / "data"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found, "the command that the report names gives the report"


def test_as_text_it_is_a_table_with_a_sentence(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--kinds", "count,exist", "--conditions", "easy", "--limit", "2", "--seed", "4") == 0
    out = capsys.readouterr().out
    assert "No gain: " in out or "Turning concepts" in out
    assert "random control" in out
    assert "sfumato evaluate --set builtin --kinds count,exist --conditions easy --limit 2 --seed 4 --model fake" in out


def test_a_folder_and_a_zip_of_the_same_pictures_are_one_set(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "seen"
    folder.mkdir()
    for k in range(40):
        (folder / f"p{k}.png").write_bytes(png(k))
    (folder / "notes.txt").write_text("no picture")
    table = tmp_path / "seen.csv"
    rows = "".join(f"p{k}.png,Is thing {k} a lemon?,lemon,object\n" for k in range(40))
    table.write_text(f"picture,question,answer,kind\n{rows}", "utf-8")
    given = ("--set", str(table), "--pictures", str(folder), "--limit", "4", "--dev", "4", "--json")
    assert call(*given) == 0
    first = json.loads(capsys.readouterr().out)
    packed = next((tmp_path / "data" / "sets").glob("*/pictures.zip"))
    (folder / "p0.png").touch()
    assert call("--set", str(table), "--pictures", str(packed), *given[4:]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == first["id"]


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(
    call: Call, things: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    original = Turning.answers

    def interrupted(self: Turning, *arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Turning, "answers", interrupted)
    assert call("--set", things, *SMALL) == 130
    err = capsys.readouterr().err
    assert "stopped; what was finished is kept. The same command goes on" in err
    job = err.rsplit("/evaluations/", 1)[1].strip()
    with serving(tmp_path / "data", FakeEngine) as browser:
        assert told(browser, f"/evaluations/{job}")["state"] == "cancelled"
        assert "finished parts are kept" in browser.http.get(f"/evaluations/{job}").text
    before = calls
    assert call("--set", things, *SMALL, "--json") == 0
    resumed, needed = json.loads(capsys.readouterr().out), calls - before
    assert resumed["id"] == job
    calls = 100
    with serving(tmp_path / "other", Turning) as browser:
        undisturbed = over(browser, start(browser, set=bring(browser, lines(extra=["{broken"])), **HALF))
    for found in (resumed, undisturbed):
        found.pop("command", None)
        for key in ("state", "error"):
            found.pop(key, None)
    assert without_id(resumed) == without_id(undisturbed)
    assert needed < calls - 100, "what was done was not asked again"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--kinds", "smell"), "has no kind of question “smell”"),
        (("--conditions", "fog"), "has no condition “fog”"),
        (("--limit", "0"), "takes 1 to"),
        (("--limit", "x"), "must be a whole number"),
        (("--set", "nothing.csv"), "there is no such file"),
        (("--pictures", "."), "The built-in set takes no --annotations and no --pictures"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    call: Call, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments) == 2
    out, err = capsys.readouterr()
    assert not out
    assert words in err
    assert len(err.splitlines()) == 1


def test_a_set_without_dev_or_test_questions_is_refused_before_it_starts(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "few.csv"
    table.write_text("question,answer\nIs thing 1 a lemon?,lemon\n", "utf-8")
    assert call("--set", str(table)) == 2
    assert "an evaluation needs both" in capsys.readouterr().err
    with serving(tmp_path / "data", FakeEngine) as browser:
        assert 'class="state failed"' not in browser.http.get("/evaluations").text


def test_kinds_with_commas_are_repeated_by_the_command(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "commas.jsonl"
    table.write_bytes(lines().replace(b'"object"', b'"big, red"'))
    assert call("--set", str(table), "--kinds", "big, red", "--kinds", "colour", "--limit", "4", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["kinds"] == ["big, red", "colour"]
    assert main([*shlex.split(found["command"])[1:], "--data-dir", str(tmp_path / "data"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == found["id"]


def test_a_failure_is_kept_in_its_row(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RequestError("The model has had enough.")

    monkeypatch.setattr("app.evaluating.evaluate", fail)
    assert call("--kinds", "count", "--conditions", "easy", "--limit", "2") == 2
    assert "had enough" in capsys.readouterr().err
    with serving(tmp_path / "data", FakeEngine) as browser:
        page = browser.http.get("/evaluations").text
        assert 'class="state failed"' in page


def test_every_kind_of_the_built_in_set_has_words() -> None:
    assert set(evaluated.KINDS) == set(evaluation.BUILTIN_KINDS)
