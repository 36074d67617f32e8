"""`sfumato concepts …` against the database that the pages read."""

import base64
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from app.cli import main
from app.conceptcli import NOBODY_READS
from app.database import Database
from app.tables import JobRow, OwnConcept, ProbeRow
from app.uploads import to_png
from engine.contract import concepts
from engine.fake import FakeEngine
from tests.app.conftest import serving

Call = Callable[..., int]
LINES = ["question,answer,says", *(f"What is this {k}?,a penguin,penguin" for k in range(5)), "What?,a pizza,penguin"]


@pytest.fixture
def call(tmp_path: Path) -> Call:
    def run(*arguments: str, folder: str = "data") -> int:
        return main(["concepts", *arguments, "--model", "fake", "--data-dir", str(tmp_path / folder)])

    return run


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "ice.csv"
    path.write_text("\n".join(LINES), "utf-8")
    return path


def pictured(tmp_path: Path) -> Path:
    """A JSONL with two pictures in a folder beside it."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for k in range(2):
        pixels = np.random.default_rng(k).integers(0, 256, (20, 30, 3), np.uint8)
        (folder / f"{k}.png").write_bytes(to_png(pixels))
    path = tmp_path / "seen.jsonl"
    lines = [
        {"picture": f"{k}.png", "question": "What is this?", "answer": "a lemon", "says": "lemon", "box": [1, 2, 9, 9]}
        for k in range(2)
    ]
    path.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    return path


def out(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_list(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("list", "--json") == 0
    told = out(capsys)
    assert len(told) == 12
    assert {"name", "kind", "probes", "cardinality", "passes", "figures"} <= set(told[0])
    assert {row["passes"] for row in told} == {None}
    assert call("list", "--kind", "colour") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["blue", "green", "red"]
    assert all("not validated" in line for line in lines)


def test_show(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("show", "penguin", "--json") == 0
    told = out(capsys)
    assert told["name"] == "penguin"
    assert len(told["alpha_cut"]) == 12
    assert call("show", "penguin") == 0
    assert "12 neurons of membership ≥ 0.5" in capsys.readouterr().out
    assert call("show", "pengiun") == 2
    captured = capsys.readouterr()
    assert "Did you mean penguin" in captured.err
    assert captured.err.count("\n") == 1


def test_build_is_what_the_page_would_have_made(
    call: Call, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("build", str(table), "--name", "ice", "--kind", "cold", "--form", "penguin", "--json") == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert (told["name"], told["kind"], told["probes"]) == ("ice", "cold", 5)
    assert [(line["source"], "pizza" in line["reason"]) for line in told["refused"]] == [("ice.csv, line 7", True)]
    assert "ice: 5 of 5" in captured.err
    probes = [concepts.probes.Probe(None, f"What is this {k}?", "a penguin", "penguin") for k in range(5)]
    shares = [result.shares for result in FakeEngine().probe_evidence(probes).results]
    evidence = concepts.evidence.Evidence((4, 64)).add(shares)
    assert told["cardinality"] == pytest.approx(float(evidence.memberships("linear", 0.98).sum()))
    with serving(tmp_path / "data") as browser:
        assert browser.http.get("/concepts/ice").status_code == 200
        with browser.services.database.read() as session:
            assert {row.state for row in session.query(JobRow)} == {"done"}, "nothing is left for a worker"


def test_building_again_adds_what_is_new(call: Call, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("build", str(table), "--json") == 0
    before = out(capsys)
    table.write_text("\n".join([*LINES, "What else?,one penguin,penguin"]), "utf-8")
    assert call("build", str(table), "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["probes"] == before["probes"] + 1
    assert "ice: 1 of 1" in captured.err


def test_building_again_keeps_or_changes_the_settings(call: Call, table: Path, tmp_path: Path) -> None:
    assert call("build", str(table), "--map", "logistic", "--quantile", "0.9", "--form", "penguin") == 0
    assert call("build", str(table), "--quantile", "0.8", "--form", "bird") == 0
    database = Database(f"sqlite:///{tmp_path / 'data' / 'sfumato.db'}")
    with database.read() as session:
        row = session.scalars(select(OwnConcept)).one()
        assert (row.map, row.quantile, row.forms) == ("logistic", 0.8, ["penguin", "bird"])
    database.close()


def test_a_reader_who_leaves_is_no_error(
    call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Closed())
    assert call("list") == NOBODY_READS
    assert capsys.readouterr().err == ""


def test_a_server_that_runs_learns_of_what_is_built_beside_it(call: Call, table: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "data") as browser:
        assert call("build", str(table)) == 0
        url = browser.ask("What is this?")
        assert "ice" in [scored["name"] for scored in browser.data(url)["concepts"]]


def test_what_cannot_be_built(call: Call, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("picture\nx", "utf-8")
    for arguments, words in (
        ((str(bad),), "should name the columns question and answer"),
        ((str(tmp_path / "none.csv"),), "No such file"),
        ((str(table), "--name", "penguin"), "The library has a concept “penguin” already"),
        ((str(table), "--name", "new1", "--map", "cubic"), "There is no membership map 'cubic'"),
        ((str(table), "--name", "new2", "--pictures", str(tmp_path / "none")), "is no folder and no zip"),
    ):
        assert call("build", *arguments) == 2, words
        captured = capsys.readouterr()
        assert words in captured.err
        assert captured.out == ""
    assert call("list", "--kind", "own", "--json") == 0
    assert out(capsys) == [], "nothing is left of what was refused"
    assert call("export", str(tmp_path / "none.zip")) == 2
    assert "You have no concepts of your own" in capsys.readouterr().err


def test_validate_tells_and_its_exit_status_is_the_verdict(
    call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("validate", "penguin", "--json") == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert told[0]["passes"] is True
    assert "of 120" in captured.err
    assert call("validate", "penguin") == 0
    captured = capsys.readouterr()
    assert captured.out == "penguin: passes. Every condition holds on held-out probes.\n"
    assert captured.err == "", "it is known already"
    assert call("list", "--json") == 0
    known = {row["name"]: row for row in out(capsys)}
    assert known["penguin"]["passes"] is True
    assert known["penguin"]["figures"]["own"] == pytest.approx(told[0]["own"]["value"], abs=1e-4)

    def failing(*arguments: Any, **named: Any) -> Any:
        criterion = concepts.results.Criterion("leaves others' answers", False, True, "no")
        return dataclasses_replace(original(*arguments, **named), criterion)

    def dataclasses_replace(found: Any, criterion: Any) -> Any:
        import dataclasses

        return dataclasses.replace(found, criteria=(criterion,))

    original = FakeEngine.validate_concept
    monkeypatch.setattr(FakeEngine, "validate_concept", failing)
    assert call("validate", "pizza", "penguin") == 1
    assert "pizza: weak. Weak: leaves others' answers (no)." in capsys.readouterr().out
    assert call("validate", "nobody") == 2
    assert "There is no concept “nobody”" in capsys.readouterr().err


def test_concepts_travel(call: Call, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen, file = pictured(tmp_path), tmp_path / "mine.zip"
    assert call("build", str(table)) == 0
    assert (
        call("build", str(seen), "--pictures", str(tmp_path / "pictures"), "--contrast", "ice", "--mode", "specific")
        == 0
    )
    assert call("export", str(file)) == 0
    assert "2 concepts written" in capsys.readouterr().out
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
    assert names[0] == "concepts.json"
    assert len([name for name in names if name.endswith(".png")]) == 2
    assert call("import", str(file), "--json", folder="other") == 0
    assert out(capsys) == {"concepts": ["ice", "seen"]}
    listed = []
    for folder in ("data", "other"):
        assert call("list", "--json", folder=folder) == 0
        listed.append({row["name"]: row for row in out(capsys)})
    assert listed[0] == listed[1]
    both = []
    for folder in ("data", "other"):
        database = Database(f"sqlite:///{tmp_path / folder / 'sfumato.db'}")
        with database.read() as session:
            rows = session.query(ProbeRow).join(OwnConcept, OwnConcept.id == ProbeRow.concept_id)
            kept = rows.where(ProbeRow.question != "").order_by(ProbeRow.id)  # lines of files that are no probes stay
            told = [(row.question, row.picture_hash, row.box, row.shares, row.refused) for row in kept]
        database.close()
        both.append(told)
    assert both[0] == both[1]
    assert call("import", str(file), folder="other") == 2
    assert "You have a concept “ice” already" in capsys.readouterr().err
    assert call("export", str(file), "penguin") == 2
    assert "You have no concept “penguin”" in capsys.readouterr().err


def broken(file: Path, target: Path, change: Callable[[dict[str, Any]], None], drop: str = "") -> Path:
    """A copy of the file with another listing."""
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(target, "w") as new:
        listing = json.loads(old.read("concepts.json"))
        change(listing)
        new.writestr("concepts.json", json.dumps(listing))
        for name in old.namelist()[1:]:
            if not drop or drop not in name:
                new.writestr(name, old.read(name))
    return target


def test_what_is_no_file_of_this_models_concepts(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen, file = pictured(tmp_path), tmp_path / "mine.zip"
    assert call("build", str(seen), "--pictures", str(tmp_path / "pictures")) == 0
    assert call("export", str(file)) == 0
    capsys.readouterr()

    def probe(**fields: Any) -> Callable[[dict[str, Any]], None]:
        return lambda listing: listing["concepts"][0]["probes"][0].update(fields)

    def concept(**fields: Any) -> Callable[[dict[str, Any]], None]:
        return lambda listing: listing["concepts"][0].update(fields)

    other = np.array([4, 64, 1], "<u4").tobytes() + np.array([999], "<u2").tobytes() + np.array([1.0], "<f4").tobytes()
    changes: list[tuple[Callable[[dict[str, Any]], None], str]] = [
        (
            lambda listing: listing["model"].update(revision="other-1"),
            "were made with the model fake (revision other-1)",
        ),
        (lambda listing: listing.update(version=9), "is no file of concepts of version 1"),
        (concept(name="a/b"), "cannot be a concept's name"),
        (concept(name="penguin"), "The library has a concept “penguin” already"),
        (concept(map="cubic"), "There is no membership map 'cubic'"),
        (concept(expression="penguin AND"), ""),
        (concept(probes={}), "“probes” should be a list"),
        (probe(question=7), "“question” should be a text"),
        (probe(picture="../../x"), "names a picture that cannot be"),
        (probe(picture="a" * 64), "is missing"),
        (probe(shares="!"), "is not base64"),
        (probe(shares=base64.b64encode(other).decode()), "is none of this model's neurons"),
        (probe(box=[1, 2]), "has a box of other than 4 numbers"),
    ]
    for k, (change, words) in enumerate(changes):
        path = broken(file, tmp_path / f"{k}.zip", change)
        assert call("import", str(path), folder="other") == 2, words
        captured = capsys.readouterr()
        assert words in captured.err
        assert captured.err.count("\n") == 1
    for path in (seen, tmp_path / "none.zip"):
        assert call("import", str(path), folder="other") == 2
        assert capsys.readouterr().err.count("\n") == 1
    database = Database(f"sqlite:///{tmp_path / 'other' / 'sfumato.db'}")
    with database.read() as session:
        assert session.query(OwnConcept).count() == 0, "all or nothing"
    database.close()
    assert call("import", str(file), folder="other") == 0
