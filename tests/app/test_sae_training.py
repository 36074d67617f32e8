"""Training a sparse autoencoder from the page: estimated, followed, stopped, gone on with, and attached at its end."""

import dataclasses
import html
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plotly import graph_objects

from app import figures_training, saejobs, saeplans
from app.tables import AttachedSae, EvaluationPart, JobRow
from engine.contract import ModelInfo, saes
from engine.fake import FakeEngine
from tests.app.conftest import Browser, serving, until
from tests.app.measuring import ended, row_of
from tests.app.test_saes import asked, names, page

RECIPE = {"layer": "1", "steps": "30", "n_latents": "96", "k": "8", "name": "mine"}


class Builtin(FakeEngine):
    """A model that knows the little world."""

    def info(self) -> ModelInfo:
        return dataclasses.replace(super().info(), builtin=True)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Browser]:
    with serving(tmp_path, Builtin) as browser:
        yield browser


@pytest.fixture(autouse=True)
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker notes every step."""
    monkeypatch.setattr("app.worker.PACE", 0.0)


def start(browser: Browser, **fields: str) -> str:
    """The job's id."""
    response = browser.http.post("/saes/train", data=RECIPE | fields, follow_redirects=False)
    assert response.status_code == 303, response.text
    return str(response.headers["location"].rsplit("/", 1)[1])


def told(browser: Browser, job_id: str) -> dict[str, Any]:
    return dict(browser.http.get(f"/saes/train/{job_id}.json").json())


def plan(browser: Browser, **fields: str) -> tuple[int, str]:
    response = browser.http.get("/saes/plan", params=RECIPE | fields)
    return response.status_code, " ".join(html.unescape(response.text).split())


def test_a_training_is_estimated_first(world: Browser) -> None:
    status, text = plan(world)
    assert status == 200
    assert re.search(r"positions learnt from</dt><dd class=\"figure\">30,720", text)
    assert "measured on the first steps" in text
    assert '<input type="hidden" name="steps" value="30">' in text
    assert re.search(r"its file</dt><dd class=\"figure\">[1-9]\d* kB<", text), "not 0.0 MB"
    labels = re.findall(r"<label><span>([^<]+)</span>", text)
    assert {"Layer", "Number of latents", "k", "Name"} <= set(labels)
    assert all(label[0].isupper() for label in labels if label != "k")
    ended(world, start(world))
    again = plan(world, n_latents="192")[1]
    assert "at the pace of the newest training here" in again


def test_an_estimate_by_the_card_of_an_sae_that_was_trained_elsewhere(tmp_path: Path) -> None:
    class Carded(Builtin):
        def saes(self) -> tuple[saes.SaeInfo, ...]:
            (first, *_) = super().saes()
            card = {"cpu_minutes": 10.0, "trained_positions": 1024 * 300, "command": "x --steps 300 --out DIR"}
            return (dataclasses.replace(first, card=card),)

    with serving(tmp_path, Carded) as browser:  # a tenth of its steps, with as many latents
        assert "About 60 s, if this machine is as fast as the one that made fake-residual-2" in plan(browser)[1]
        assert "About 60 s" in plan(browser, n_latents="48")[1], "reading pictures takes as long"
        assert "About 2 min" in plan(browser, n_latents="192")[1]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"layer": "9"}, "layers go from 0 to 3"),
        ({"layer": "x"}, "The layer is “x”"),
        ({"k": "97"}, "k is 97, and there are 96 latents"),
        ({"steps": "0"}, "whole number from 1 to 1,000,000"),
        ({"architecture": "standard"}, "Choose one of topk, jumprelu"),
        ({"site": "nose"}, "There is no site “nose”"),
        ({"name": "../x"}, "cannot be the name of a folder"),
        ({"source": "folder", "folder": "/etc"}, "is no folder that pages may open"),
        ({"source": "folder", "folder": "empty"}, "holds none of questions.csv"),
    ],
)
def test_what_cannot_be_trained_is_told_before(
    world: Browser, tmp_path: Path, fields: dict[str, str], words: str
) -> None:
    (tmp_path / "saes" / "empty").mkdir(parents=True)
    status, text = plan(world, **fields)
    assert status == 422
    assert words in text
    (name, value), *_ = fields.items()
    assert f'value="{value}"' in text or name in ("site", "architecture", "source")
    assert "Start</button>" not in text
    response = world.http.post("/saes/train", data=RECIPE | fields)
    assert response.status_code == 422
    assert words in html.unescape(response.text)


def test_the_little_world_is_the_built_in_models(browser: Browser, tmp_path: Path) -> None:
    assert "little world’s pictures are for the built-in model" in plan(browser)[1]
    assert 'value="world"' not in page(browser)
    asked(tmp_path / "saes" / "pictures")
    job = start(browser, source="folder", folder="pictures")
    assert ended(browser, job).params["folder"] == str(tmp_path / "saes" / "pictures")
    assert "--folder" in page(browser, f"/saes/train/{job}")


def test_a_training_is_followed_and_its_sae_stands_with_its_card(world: Browser, tmp_path: Path) -> None:
    job = start(world)
    done = ended(world, job)
    assert done.result
    points = done.result["points"]
    assert [point[0] for point in points] == list(range(1, 31))
    assert points[-1][1:] == pytest.approx([0.2, 0.8, 8.0, 0.1])
    assert done.result["sae"]["name"] == "mine"
    assert done.result["fit"]["explained_variance"] == 0.4
    assert names(world) == ["fake-residual-2", "mine"]
    (folder,) = (tmp_path / "saes").iterdir()
    assert not (folder / saes.CHECKPOINT).exists()
    text = page(world, f"/saes/train/{job}")
    assert "mine is trained: it explains 80 % of the variance on held-out pictures" in text
    assert "It explains 40 % of the variance here" in text
    assert re.search(r"<th scope=\"row\">30</th><td class=\"figure\">0.2000</td><td class=\"figure\">80.0 %</td>", text)
    assert "sfumato sae train --layer 1 --site residual --architecture topk --n-latents 96 --k 8 --steps 30" in text
    assert "explains 80 %" in page(world), "the list of trainings"
    assert start(world) == job, "the same training is done once"
    data = told(world, job)
    assert (data["state"], len(data["points"])) == ("done", 30)
    events = world.http.get(f"/saes/train/{job}/events").text
    assert "event: training" in events
    assert "event: end" in events
    assert start(world, seed="1") != job
    with world.services.database.read() as session:
        assert {row.path for row in session.query(AttachedSae)} == {str(folder)}


def test_long_trainings_keep_a_bounded_curve_of_means(world: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.worker.PACE", 0.5)
    done = ended(world, start(world, steps="1000"))
    assert done.result
    points = done.result["points"]
    assert len(points) == saejobs.POINTS
    assert [points[0][0], points[-1][0]] == [5.0, 1000.0]
    assert points[0][1] == pytest.approx(1 - 0.8 * 3 / 1000)


def test_a_stopped_training_goes_on_and_its_curve_has_no_gap(tmp_path: Path) -> None:
    with serving(tmp_path, lambda: Builtin(0.01)) as browser:
        job = start(browser, steps="60")
        until(lambda: told(browser, job), lambda data: len(data["points"]) >= 5)
        live = page(browser, f"/saes/train/{job}")
        assert 'action="/saes/train/' + job + '/cancel"' in live
        assert "training-curve" in live
        url = browser.ask("Does it pass?")
        assert browser.data(url)["answer"], "what a person waits for is done in between"
        assert row_of(browser, job).state == "running"
        browser.http.post(f"/saes/train/{job}/cancel")
        ended(browser, job, "cancelled")
        text = page(browser, f"/saes/train/{job}")
        assert "It was stopped" in text
        assert "it can go on from there" in text
        assert "Go on</button>" in text
        kept = told(browser, job)["points"]
        assert kept
    with serving(tmp_path, Builtin) as browser:
        browser.http.post(f"/saes/train/{job}/again")
        done = ended(browser, job)
        assert done.result
        assert [point[0] for point in done.result["points"]] == list(range(1, 61))
        assert done.result["points"][: len(kept)] == kept
        ended(browser, start(browser, seed="5"))
        with browser.services.database.read() as session:
            left = {part.evaluation for part in session.query(EvaluationPart)}
        assert row_of(browser, job).identity not in left, "parts of finished trainings are dropped"


def test_the_end_of_the_process_is_gone_on_from(tmp_path: Path) -> None:
    with serving(tmp_path, lambda: Builtin(0.01)) as browser:
        job = start(browser, steps="80")
        until(lambda: told(browser, job), lambda data: len(data["points"]) >= 5)
    with serving(tmp_path, Builtin) as browser:
        done = ended(browser, job)
        assert done.result
        assert [point[0] for point in done.result["points"]] == list(range(1, 81))


def test_points_after_the_checkpoint_are_learnt_again(tmp_path: Path) -> None:
    """A crash: the points are ahead of the checkpoint."""
    with serving(tmp_path, lambda: Builtin(0.01)) as browser:
        job = start(browser, steps="60")
        until(lambda: told(browser, job), lambda data: len(data["points"]) >= 5)
        browser.http.post(f"/saes/train/{job}/cancel")
        params = ended(browser, job, "cancelled").params
        checkpoint = saejobs.folder_of(browser.services.store, params) / saes.CHECKPOINT
        checkpoint.write_text(json.dumps({"step": 2}))
        browser.http.post(f"/saes/train/{job}/again")
        found = until(lambda: told(browser, job), lambda data: data["points"] and data["points"][-1][0] >= 4)
        steps = [point[0] for point in found["points"]]
        assert steps == sorted(set(steps))
        browser.http.post(f"/saes/train/{job}/cancel")
        ended(browser, job, "cancelled")
        browser.http.post(f"/saes/train/{job}/anew")
        found = until(lambda: told(browser, job), lambda data: data["points"])
        assert found["points"][0][0] == 1
        browser.http.post(f"/saes/train/{job}/cancel")


def test_what_was_written_before_a_crash_is_attached(world: Browser) -> None:
    job = start(world)
    first = ended(world, job)
    with world.services.database.write() as session:
        session.get_one(JobRow, job).state = "queued"
    world.services.worker.wake()
    again = until(lambda: row_of(world, job), lambda row: row.state == "done" and row.finished != first.finished)
    assert again.result["sae"]["id"] == first.result["sae"]["id"]  # type: ignore[index]
    assert names(world) == ["fake-residual-2", "mine"]


def test_a_training_that_fails_says_why(world: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> saes.SaeInfo:
        raise RuntimeError("out of <b>memory")

    monkeypatch.setattr(FakeEngine, "train_sae", fail)
    job = start(world)
    assert "out of" in ended(world, job, "failed").error
    text = world.http.get(f"/saes/train/{job}").text
    assert "out of &lt;b&gt;memory" in text
    assert "Start again" in text
    monkeypatch.undo()
    world.http.post(f"/saes/train/{job}/again")
    ended(world, job)


def test_unknown_trainings_and_early_ones(browser: Browser) -> None:
    for url in ("/saes/train/none", "/saes/train/none.json", "/saes/train/none/events"):
        assert browser.http.get(url).status_code == 404
    assert browser.http.post("/saes/train/none/cancel").status_code == 404


def test_plotly_reads_the_curve() -> None:
    points = [[5.0, 3.0, -2.0, 40.0, 0.0], [10.0, 0.4, 0.6, 32.5, 0.11]]
    made = figures_training.curve(points, 100)
    json.dumps(made, allow_nan=False)
    figure = graph_objects.Figure(made)
    explained, loss, dead, l0 = figure.data
    assert explained.y == (figures_training.LOWEST, 0.6)
    assert tuple(explained.customdata) == (-2.0, 0.6)
    assert loss.y == (figures_training.HIGHEST, 0.4)
    assert dead.y == (0.0, 0.11)
    assert l0.yaxis == "y2"
    assert figure.layout.xaxis.range == (0, 100)
    assert figures_training.curve([], 10)["data"][0]["x"] == []


def test_means_of_what_is_not_finite_are_storable() -> None:
    point = saes.TrainingPoint(3, 10, math.inf, math.nan, 4.0, 0.5)
    assert saejobs._mean([point]) == [3.0, 0.0, 0.0, 4.0, 0.5]


def test_more_memory_than_there_is_is_refused_before_anything_begins(
    world: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plan(world)[0] == 200
    monkeypatch.setattr(saeplans, "free_memory", lambda: 2**20)
    status, text = plan(world)
    assert status == 422
    assert "1 MB are free on this machine. Choose fewer latents or a smaller batch." in text
    refused = world.http.post("/saes/train", data=RECIPE, follow_redirects=False)
    assert refused.status_code == 422
    assert 'value="96"' in refused.text, "what was typed stays"


def test_free_memory_is_that_of_this_machine() -> None:
    free = saeplans.free_memory()
    assert free is None or 2**20 < free < 2**50
