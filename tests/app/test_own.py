"""Own concepts: made from files and runs, set, deleted; they join the library, and answers are steered by them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import own
from app.tables import OwnConcept
from engine.contract import Engine, concepts
from tests.app.conftest import Browser, serving, until
from tests.app.owning import (
    TABLE,
    World,
    built,
    data,
    make,
    memberships,
    outcomes,
    png,
    press,
    settled,
    table,
    text_only,
    zipped,
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Browser]:
    with serving(tmp_path, World) as browser:
        yield browser


# Import


def test_good_lines_are_kept_and_bad_ones_reported(browser: Browser) -> None:
    lines = TABLE + (
        "What is this?,a red ball,red,a.png,2 2 10 10\n"
        "What is this?,a blue ball,red,a.png,\n"
        "What is this?,a red ball,red,lost.png,\n"
        "What is this?,a red ball,red,text.png,\n"
        "What is this?,a red ball,red,a.png,1 1 31 9\n"
        "Is it red?,red,,,\n"
    )
    url = make(browser, files=table(lines, zipped(a=png(200), text=b"no picture")), forms="red")
    found = data(browser, url)
    assert [(p["source"], p["answer"], p["says"]) for p in found["probes"]] == [
        ("probes.csv, line 2", "a red ball", "red"), ("probes.csv, line 7", "red", "red"),
    ]  # fmt: skip
    assert found["probes"][0]["box"] == [2, 2, 10, 10]
    assert [line["source"] for line in found["lines"]] == [f"probes.csv, line {n}" for n in (3, 4, 5, 6)]
    reasons = [line["reason"] for line in found["lines"]]
    for part, reason in zip(
        ("does not contain 'red'", "no picture 'lost.png'", "text.png", "31, 9"), reasons, strict=True
    ):
        assert part in reason
    page = browser.http.get(url).text
    assert "4 lines of files were not taken" in page
    assert "<mark" in page
    assert f'src="/pictures/{found["probes"][0]["picture"]}.png"' in page
    assert browser.http.get(f"/pictures/{found['probes'][0]['picture']}.png").status_code == 200


def test_the_same_file_again_adds_only_what_is_missing(browser: Browser) -> None:
    url = make(browser, files=text_only(3))
    assert len(data(browser, url)["probes"]) == 3
    response = browser.http.post(f"{url}/probes", files=text_only(5), follow_redirects=False)
    assert response.status_code == 303
    assert len(data(browser, url)["probes"]) == 5
    lines = TABLE + "Which colour has thing 0?,a red thing,red,,\n,,,,\n"
    for _ in range(2):
        browser.http.post(f"{url}/probes", files=table(lines))
    found = data(browser, url)
    assert len(found["probes"]) == 5
    assert len(found["lines"]) == 1


def test_a_box_follows_a_picture_that_is_scaled_down(tmp_path: Path) -> None:
    with serving(tmp_path, max_side=100) as browser:
        lines = TABLE + "What?,red,red,a.png,20 20 200 100\n"
        url = make(browser, files=table(lines, zipped(a=png(10, (200, 100)))))
        assert data(browser, url)["probes"][0]["box"] == [10, 10, 100, 50]


def test_vqa_captions_and_jsonl(browser: Browser) -> None:
    name = "COCO_train2014_000000000007"
    asked = json.dumps({"questions": [{"question_id": 1, "image_id": 7, "question": "What colour?"}]}).encode()
    said = json.dumps({"annotations": [{"question_id": 1, "multiple_choice_answer": "red"}]}).encode()
    pictures = zipped(**{name: png(3)})
    pictures = pictures.replace(b".png", b".jpg")
    files = {
        "table": ("q.json", asked),
        "annotations": ("a.json", said),
        "pictures": ("p.zip", pictures),
    }
    found = data(browser, make(browser, "vqa", files, forms="red"))
    assert [(p["question"], p["answer"]) for p in found["probes"]] == [("What colour?", "red")], found["lines"]
    assert found["probes"][0]["picture"]
    captions = json.dumps(
        {
            "images": [{"id": 7, "file_name": f"{name}.jpg"}],
            "annotations": [{"image_id": 7, "caption": "A red bus."}, {"image_id": 7, "caption": "A cow."}],
        }
    )
    found = data(browser, make(browser, "captions", table(captions, pictures, "captions.json"), forms="red"))
    assert [p["says"] for p in found["probes"]] == ["red"], found["lines"]
    lines = json.dumps({"question": "What?", "answer": "red"}) + "\nnonsense\n"
    found = data(browser, make(browser, "lines", table(lines, name="x.jsonl"), forms="red"))
    assert (len(found["probes"]), len(found["lines"])) == (1, 1)
    response = browser.http.post(
        "/concepts/new", data={"name": "half", "source": "file"}, files={"table": ("q.json", asked)}
    )
    assert response.status_code == 422
    assert "annotations too" in response.text


def test_what_cannot_be_made_keeps_what_was_typed(browser: Browser) -> None:
    make(browser, "my red", source="none")

    def refused(fields: dict[str, str], files: Any = None) -> str:
        response = browser.http.post("/concepts/new", data=fields, files=files)
        assert response.status_code == 422, response.text
        return response.text

    page = refused({"name": "my red", "kind": "tint", "forms": "crimson", "source": "none"})
    assert "You have a concept “my red” already" in page
    assert 'value="tint"' in page
    assert "crimson</textarea>" in page
    assert "such as “my red”" in refused({"name": "red", "source": "none"})
    assert "1 to 80 characters" in refused({"name": " ", "source": "none"})
    assert "Choose another name" in refused({"name": "new", "source": "none"})
    assert "Choose a file of probes" in refused({"name": "x", "source": "file"})
    assert "should name the columns" in refused({"name": "x", "source": "file"}, table("a,b\n1,2\n"))
    assert "no folder and no zip" in refused({"name": "x", "source": "file"}, table(TABLE, b"no zip"))
    assert "has no concept “dog”" in refused({"name": "x", "source": "world", "world": "dog", "n": "3"})
    with browser.services.database.read() as session:
        assert [row.name for row in own.rows(session, browser.services.worker.info.revision)] == ["my red"]


def test_a_concept_has_at_most_so_many_probes(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.own.MAX_PROBES", 4)
    url = make(browser, files=text_only(6))
    found = data(browser, url)
    assert (len(found["probes"]), len(found["lines"])) == (4, 2)
    browser.http.post(f"{url}/probes", files=text_only(2, 10))
    found = data(browser, url)
    assert len(found["probes"]) == 4
    assert "at most 4 probes" in found["lines"][0]["reason"]


def test_unknown_concepts_are_missing(browser: Browser) -> None:
    assert browser.http.get("/concepts/own/nothing").status_code == 404
    assert browser.http.get("/concepts/own/nothing.json").json()["error"].startswith("There is no own concept")
    assert browser.http.get("/concepts/own/nothing/events").status_code == 404
    for what in ("build", "cancel", "delete", "map"):
        fields = {"map": "linear", "quantile": "0.9", "mode": "raw"}
        assert browser.http.post(f"/concepts/own/nothing/{what}", data=fields).status_code == 404


# Settings, deleting


def test_another_map_makes_other_memberships_at_once(browser: Browser) -> None:
    url = make(browser, files=text_only(6))
    built(browser, url)
    before = memberships(browser, "my red")
    assert press(browser, url, "map", map="s_function", quantile="0.8", mode="raw").status_code == 303
    assert settled(browser, url)["map"] == "s_function"
    curved = memberships(browser, "my red")
    assert len(curved) > len(before)
    press(browser, url, "map", map="linear", quantile="0.98", mode="raw")
    settled(browser, url)
    assert memberships(browser, "my red") == before, "and back again"
    for fields, words in (
        ({"map": "linear", "quantile": "2", "mode": "raw"}, "between 0 and 1"),
        ({"map": "linear", "quantile": "much", "mode": "raw"}, "must be a number"),
        ({"map": "bent", "quantile": "0.9", "mode": "raw"}, "no membership map"),
        ({"map": "linear", "quantile": "0.9", "mode": "raw", "contrast": "dog"}, "no own concept “dog”"),
    ):
        response = press(browser, url, "map", **fields)
        assert response.status_code == 422
        assert words in response.text


def test_a_contrast_takes_away_what_is_shared(browser: Browser) -> None:
    first, second = make(browser, "first", text_only(6)), make(browser, "second", text_only(6, 20))
    built(browser, first)
    built(browser, second)
    raw = memberships(browser, "first")
    press(browser, first, "map", map="linear", quantile="0.9", mode="specific", contrast=["second"])
    found = settled(browser, first)
    assert (found["mode"], found["contrast"]) == ("specific", ["second"])
    assert memberships(browser, "first") != raw
    with browser.services.database.read() as session:
        row = session.get_one(OwnConcept, first.rsplit("/", 1)[1])
        shape = (browser.services.worker.info.n_layers, browser.services.worker.info.d_mlp)
        evidence = own.evidence(session, row.id, shape).mean()
        other = own.evidence(session, second.rsplit("/", 1)[1], shape).mean()
    expected = concepts.fuzzy.MAPS["linear"](np.maximum(evidence - other, 0), 0.9)
    assert memberships(browser, "first") == {
        (layer, index): pytest.approx(float(expected[layer, index]))
        for layer, index in zip(*map(np.ndarray.tolist, np.nonzero(expected >= 0.02)), strict=True)
    }


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("..", "has no address"),
        ("a.JSON", "has no address"),
        ("report.csv", "has no address"),
        ("\u200b", "no visible letter"),
        ("\u202egnp.exe", "turns the text"),
        ("MY RED", "You have a concept “my red” already"),
        ("Penguin", "The library has a concept “penguin” already"),
    ],
)
def test_a_name_must_lead_to_a_page_of_its_own(browser: Browser, name: str, said: str) -> None:
    make(browser, source="none")
    response = browser.http.post("/concepts/new", data={"name": name, "source": "none"})
    assert response.status_code == 422
    assert said in response.text


def test_what_cannot_be_stored_or_counted_is_said(world: Browser) -> None:
    lines = '{"question": "\\ud83d", "answer": "red"}\n{"question": "a\\u0000", "answer": "red"}\n'
    found = data(world, make(world, files=table(lines, name="x.jsonl"), forms="red"))
    assert ["cannot be stored" in line["reason"] for line in found["lines"]] == [True, True]
    for n in ("²", "9" * 5000):
        response = world.http.post("/concepts/new", data={"name": "n", "source": "world", "world": "red", "n": n})
        assert response.status_code == 422
        assert "must be between 1 and" in response.text
    response = world.http.post(
        "/concepts/new", data={"name": "n", "source": "world", "world": "red", "forms": "r" * 201}
    )
    assert "201 characters; at most 200" in response.text
    assert press(world, "/concepts/own/x", f"probes/{2**40}/remove").status_code == 422
    assert world.http.get("/concepts/own/add/nothing", params={"span": "²-3"}).status_code == 404


def test_surface_forms_are_changed(browser: Browser) -> None:
    url = make(browser, files=table("question,answer\nWhat?,crimson\n"), forms="red")
    assert len(data(browser, url)["lines"]) == 1
    assert press(browser, url, "forms", forms="red\ncrimson\nred").status_code == 303
    browser.http.post(f"{url}/probes", files=table("question,answer\nWhat?,crimson\n"))
    found = data(browser, url)
    assert found["surface_forms"] == ["red", "crimson"]
    assert ([probe["says"] for probe in found["probes"]], found["lines"]) == (["crimson"], [])


def derive(browser: Browser, name: str, expression: str) -> None:
    response = browser.http.post("/algebra", data={"name": name, "expression": expression}, follow_redirects=False)
    assert response.status_code == 303, response.text


def test_what_is_derived_from_a_deleted_concept_is_found_and_comes_back(browser: Browser) -> None:
    url = make(browser, files=text_only(4))
    built(browser, url)
    derive(browser, "warm", '"my red" OR lemon')
    derive(browser, "hot", "warm AND NOT blue")
    before = memberships(browser, "hot")
    page = browser.http.get(f"{url}/delete").text
    assert "not to be made without it: “warm”, “hot”." in page
    press(browser, url, "delete")
    until(lambda: browser.http.get("/concepts/hot").status_code, lambda status: status == 404)
    listed = browser.http.get("/concepts/new").text
    assert listed.count("cannot be made") == 2
    lost = re.findall(r'href="(/concepts/own/\w+)">warm<', listed)
    assert "There is no concept “my red” any more" in browser.http.get(lost[0]).text
    built(browser, make(browser, files=text_only(4)))
    assert memberships(browser, "hot") == before, "though what it is derived from is newer now"


def test_deleting_says_who_names_it_and_takes_it_out_of_the_library(browser: Browser) -> None:
    url = make(browser, files=text_only(4))
    built(browser, url)
    with browser.services.database.write() as session:
        mine = session.get_one(OwnConcept, url.rsplit("/", 1)[1])
        fields = {"kind": "derived", "forms": [], "contrast": [], "map": "linear", "quantile": 0.98, "mode": "raw"}
        session.add(
            OwnConcept(
                id="d", model_revision=mine.model_revision, name="warm", expression='"my red" OR lemon', **fields
            )
        )
    page = browser.http.get(f"{url}/delete").text
    assert "Its 4 probes" in page
    assert "not to be made without it: “warm”." in page
    assert press(browser, url, "delete").headers["location"] == "/concepts"
    assert browser.http.get(url).status_code == 404
    until(lambda: browser.http.get("/concepts/my%20red").status_code, lambda status: status == 404)
    with browser.services.database.read() as session:
        assert not own.probes(session, url.rsplit("/", 1)[1])


# Runs


def test_a_run_becomes_a_probe(browser: Browser, pictures: Path) -> None:
    run = browser.ask("What is this?", (pictures / "ok.png").read_bytes())
    answer = browser.data(run)["answer"]
    link = re.search(r'href="(/concepts/own/add/[^"]+)"', browser.http.get(run).text)
    assert link
    form = browser.http.get(link[1]).text
    assert f'name="says" value="{answer}"' in form
    run_id = run.rsplit("/", 1)[1]
    fields = {"says": answer, "name": "what I saw"}
    response = browser.http.post(f"/concepts/own/add/{run_id}", data=fields, follow_redirects=False)
    url = response.headers["location"]
    found = settled(browser, url)
    assert found["build"]["state"] == "done"
    (probe,) = found["probes"]
    assert (probe["answer"], probe["says"], probe["source"]) == (answer, answer, f"run {run_id}")
    assert probe["picture"] == browser.data(run)["provenance"]["picture"]
    second = browser.ask("And what is that?")
    said = browser.data(second)["answer"]
    again = {"says": said, "concept": url.rsplit("/", 1)[1]}
    for _ in range(2):
        browser.http.post(f"/concepts/own/add/{second.rsplit('/', 1)[1]}", data=again)
    assert len(settled(browser, url)["probes"]) == 2
    assert memberships(browser, "what I saw")


def test_a_run_that_cannot_be_a_probe_is_refused(browser: Browser) -> None:
    run = browser.ask("What is this?")
    action = f"/concepts/own/add/{run.rsplit('/', 1)[1]}"
    response = browser.http.post(action, data={"says": "zeppelin", "name": "kept"})
    assert response.status_code == 422
    assert "does not contain “zeppelin”" in response.text
    assert 'value="kept"' in response.text
    assert browser.http.post(action, data={"says": browser.data(run)["answer"], "name": "red"}).status_code == 422
    child = browser.turn(run, "red", -1)
    browser.settled(child)
    steered = browser.http.post(f"/concepts/own/add/{child.rsplit('/', 1)[1]}", data={"says": "x", "name": "y"})
    assert "was steered" in steered.text
    assert "/concepts/own/add/" not in browser.http.get(child).text
    assert browser.http.get("/concepts/own/add/nothing").status_code == 404


def test_runs_are_compared_with_it_and_can_be_steered_by_it(world: Browser) -> None:
    run = world.ask("What is this?")
    answer = world.data(run)["answer"]
    url = make(world, "mine", source="world", world=answer, n="12")
    settled(world, url)
    found = until(
        lambda: world.http.get(run) and world.data(run),
        lambda data: any(entry["name"] == "mine" for entry in data["concepts"]),
    )
    similar = {entry["name"]: entry["similarity"] for entry in found["concepts"]}
    assert similar["mine"] > np.median(list(similar.values()))
    assert 'name="concept:mine"' in world.http.get(run).text
    child = world.turn(run, "mine", -1)
    assert world.settled(child)["answer"] != answer


@pytest.mark.slow
def test_my_traffic_light_from_the_little_world_steers_the_built_in_model(tmp_path: Path) -> None:
    def engine() -> Engine:
        import torch

        from engine.local import load_engine

        torch.set_num_threads(1)
        return load_engine("builtin")

    with serving(tmp_path, engine, ready=False, max_new_tokens=8) as browser:
        until(lambda: browser.services.worker.state, lambda state: state == "ready", 120)
        url = make(browser, "my traffic light", source="world", world="traffic light", n="12")
        found = until(lambda: browser.http.get(f"{url}.json"), lambda response: response.status_code == 200, 240).json()
        assert found["build"]["state"] == "done", found["build"]
        assert outcomes(found).count("right") >= 10
        seen = [probe for probe in found["probes"] if probe["answer"] == "traffic light"]
        held = {"question": seen[0]["question"], "picture_hash": seen[0]["picture"]}
        run = browser.http.post("/runs", data=held, follow_redirects=False).headers["location"]
        assert browser.settled(run, 120)["answer"] == "traffic light"
        assert "my traffic light" in [entry["name"] for entry in browser.data(run)["concepts"]]
        child = browser.turn(run, "my traffic light", -1)
        assert browser.settled(child, 120)["answer"] != "traffic light"
