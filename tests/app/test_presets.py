"""Presets: a steering is named on one run, applied to another, renamed, deleted, exported and imported whole or not."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select, update

from app import presets, steerings
from app.tables import Preset
from tests.app.conftest import HTMX, Browser, serving

STEERING = {"concept:penguin": "-1.25", "neuron:text.1.5": "1", "operation:text.1.5": "set", "value:text.1.5": "2.5"}
KEPT = {"concepts": [["penguin", -1.25]], "neurons": [[1, 5, "set", 2.5]], "positions": "all", "layers": [1, 2]}


def save(browser: Browser, url: str, name: str = "mine", **fields: str) -> httpx.Response:
    data = {**STEERING, "layers": "1-2", "preset": name, "panel": "p", **fields}
    run = url.rsplit("/", 1)[1]
    return browser.http.post(f"/presets?run={run}", data=data, headers=HTMX, follow_redirects=False)


def rows(browser: Browser) -> list[Preset]:
    with browser.services.database.read() as session:
        return list(session.scalars(select(Preset).order_by(Preset.name)))


def take(browser: Browser, value: Any, **fields: str) -> httpx.Response:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return browser.http.post("/presets/import", files={"file": ("presets.json", data)}, data=fields)


def test_a_steering_is_named_and_applied_to_another_run(browser: Browser) -> None:
    url, other = browser.ask("What is on the right?"), browser.ask("What is on the left?")
    response = save(browser, url)
    assert response.status_code == 200
    assert response.text.lstrip().startswith('<section id="steer"')
    assert "penguin λ −1.25 · text.1.5 = 2.5 · layers 1–2" in response.text
    (row,) = rows(browser)
    assert row.steering == KEPT
    data = {"run": other.rsplit("/", 1)[1], "sort": "image", "panel": "p"}
    response = browser.http.post(f"/presets/{row.id}/apply", data=data, follow_redirects=False)
    assert response.status_code == 303
    where = response.headers["location"]
    assert re.fullmatch(rf"{other}\?sort=image&steer=\w+", where)
    child = f"/runs/{where.rsplit('=', 1)[1]}"
    assert browser.settled(child)["provenance"]["state"] == "done"
    assert browser.data(child)["provenance"]["steering"] == KEPT
    page = browser.http.get(where).text
    assert 'step="any" value="-1.25"' in page, "a slider in tenths would round it"
    assert re.search(r'name="value:text.1.5"[^>]* value="2.5"', page)
    assert page.count('<option value="1" selected>') == page.count('<option value="2" selected>') == 1
    again = browser.http.post(f"/presets/{row.id}/apply", data=data, headers=HTMX, follow_redirects=False)
    assert again.headers["location"] == f"{where}&panel=p", "the same run, for the same panel"


def test_without_javascript_saving_steers_as_well(browser: Browser) -> None:
    url = browser.ask()
    data = {**STEERING, "layers": ["", "3"], "preset": "mine", "heat": "off"}
    response = browser.http.post(f"/presets?run={url.rsplit('/', 1)[1]}", data=data, follow_redirects=False)
    assert re.fullmatch(rf"{url}\?heat=off&steer=\w+", response.headers["location"])
    assert "layers" not in rows(browser)[0].steering


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("  ", {}, "The name is empty"),
        ("x" * 81, {}, "has 81 characters; at most 80"),
        ("MINE", {}, "There is a preset “MINE” already"),
        ("other", {"concept:penguin": "0", "value:text.1.5": ""}, "Nothing is turned"),
        ("other", {"concept:zebra": "1"}, "There is no concept “zebra”"),
        ("other", {"layers": "2-9"}, "layers from 0 to 3"),
    ],
)
def test_what_cannot_be_saved_is_said(browser: Browser, name: str, fields: dict[str, str], words: str) -> None:
    url = browser.ask()
    assert save(browser, url).status_code == 200
    response = save(browser, url, name, **fields)
    assert response.status_code == 422
    assert words in response.text
    assert response.headers["HX-Retarget"] == "#errors"
    assert len(rows(browser)) == 1


def test_renamed_listed_and_deleted(browser: Browser) -> None:
    url = browser.ask("What is <b>here</b>?")
    save(browser, url)
    save(browser, url, "<i>second</i>", **{"concept:penguin": "2"})
    first = next(row for row in rows(browser) if row.name == "mine")
    page = browser.http.get(f"/presets?run={url.rsplit('/', 1)[1]}").text
    assert "&lt;i&gt;second&lt;/i&gt;" in page
    assert "<i>second" not in page
    assert f'formaction="/presets/{first.id}/apply"' in page
    assert "/apply" not in browser.http.get("/presets").text
    assert "already" in browser.http.post(f"/presets/{first.id}/rename", data={"name": "<I>second</i>"}).text
    response = browser.http.post(f"/presets/{first.id}/rename", data={"name": " a  new name "}, follow_redirects=False)
    assert response.headers["location"] == "/presets"
    assert "a new name" in browser.http.get("/presets").text
    browser.http.post(f"/presets/{first.id}/delete")
    assert [row.name for row in rows(browser)] == ["<i>second</i>"]
    for path in (f"/presets/{first.id}/delete", f"/presets/{first.id}/rename", f"/presets/{first.id}/apply"):
        assert browser.http.post(path, data={"name": "x"}).status_code == 404
    assert browser.http.get(f"/presets/{first.id}.json").status_code == 404


def test_exported_and_imported_on_another_server(browser: Browser, tmp_path: Path) -> None:
    url = browser.ask()
    save(browser, url)
    save(browser, url, "ëtwo / 2", positions="answer")
    one = browser.http.get(f"/presets/{rows(browser)[0].id}.json")
    assert one.headers["content-disposition"] == 'attachment; filename="mine.json"'
    assert one.json()["presets"][0]["steering"] == KEPT
    every = browser.http.get("/presets.json").content
    with serving(tmp_path / "other") as other:
        response = take(other, every)
        assert "2 imported." in response.text
        assert "0 imported; 2 were there already." in take(other, every).text
        assert [(row.name, row.steering) for row in rows(other)] == [(row.name, row.steering) for row in rows(browser)]
        bare = {"name": "third", "steering": {"concepts": [["blue", 4]]}}
        assert "1 imported." in take(other, bare).text


GOOD = {"name": "good", "steering": {"concepts": [["blue", 1]], "neurons": []}}


def entry(**steering: Any) -> Mapping[str, Any]:
    return {"name": "bad", "steering": steering}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"\xff{", ["is not JSON"]),
        (b"[" * 100_000, ["is not JSON"]),
        (b'[{"name": "\\ud800", "steering": {"concepts": [["blue", 1]]}}]', ["is not JSON"]),
        (b" " * (presets.MAX_FILE + 1), ["larger than 1 MB"]),
        ({"presets": []}, ["holds no presets"]),
        ("text", ["holds no presets"]),
        ([GOOD] * 201, ["holds 201 presets; at most 200"]),
        ([GOOD, 7], ["Preset 2 has no name"]),
        ([GOOD, {"name": ""}], ["Preset 2: The name is empty"]),
        ([GOOD, {"name": "bad"}], ["bad: its steering cannot be read"]),
        ([GOOD, entry()], ["bad: it turns nothing"]),
        ([GOOD, entry(concepts=[["blue"]])], ["bad: its steering cannot be read"]),
        ([GOOD, entry(concepts=[["blue", None]])], ["λ of blue is “None”; it must be a number from -2 to 4"]),
        (b'[{"name": "bad", "steering": {"concepts": [["blue", NaN]]}}]', ["λ of blue is “nan”"]),
        ([GOOD, entry(concepts=[["blue", 9]])], ["λ of blue is “9”; it must be a number from -2 to 4"]),
        ([GOOD, entry(neurons=[[0, 1, "cut", 1]])], ["scale, add, set, not by “cut”"]),
        ([GOOD, entry(neurons=[[0, 1, "set", 1e9]])], ["The value of text.0.1", "10000"]),
        ([GOOD, entry(concepts=[["blue", 1]], positions="nowhere")], ["no choice of positions “nowhere”"]),
        ([GOOD, entry(concepts=[["blue", 1]], layers=[3, 1])], ["FIRST-LAST"]),
        ([GOOD, {**GOOD, "steering": entry(concepts=[["blue", 2]])["steering"]}], ["another preset of this name"]),
        (
            [GOOD, entry(concepts=[["blue", 1], ["zebra", 1]], neurons=[[9, 1, "scale", 0], [0, 999, "add", 1]])],
            ["There is no concept “zebra”", "no neuron text.9.1", "no neuron text.0.999", "from 0 to 3"],
        ),
        ([GOOD, entry(concepts=[["blue", 1]], layers=[2, 9])], ["layers from 0 to 3"]),
    ],
)  # fmt: skip
def test_a_file_that_does_not_fit_is_refused_whole(shared: Browser, value: Any, words: list[str]) -> None:
    response = take(shared, value)
    assert response.status_code == 422
    for word in words:
        assert word in response.text.replace("&#39;", "'")
    assert rows(shared) == []


def test_no_file(shared: Browser) -> None:
    assert "Choose a file of presets first" in shared.http.post("/presets/import").text


def test_a_preset_of_another_model_says_what_this_one_lacks(browser: Browser) -> None:
    """Saved for a larger model in the same database; nothing of it is applied."""
    url = browser.ask()
    save(browser, url)
    alien = {"concepts": [["blue", 1.0], ["zebra", 1.0]], "neurons": [[30, 5, "scale", 0.0]], "positions": "all"}
    with browser.services.database.write() as session:
        session.execute(update(Preset).values(model_revision="larger", steering=alien))
    page = browser.http.get("/presets").text
    assert "Of another model" in page
    assert "larger" in page
    assert "/apply" not in browser.http.get(f"{url}?fragment=steer").text
    response = browser.http.post(f"/presets/{rows(browser)[0].id}/apply", data={"run": url.rsplit("/", 1)[1]})
    assert response.status_code == 422
    for words in ("cannot be applied", "There is no concept “zebra”", "no neuron text.30.5"):
        assert words in response.text
    assert browser.http.get("/runs").text.count('class="run-line"') == 1


def test_so_many_are_kept(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "MAX_PRESETS", 2)
    url = browser.ask()
    for name in ("one", "two"):
        assert save(browser, url, name).status_code == 200
    assert "There are 2 presets; at most 2 are kept" in save(browser, url, "three").text
    assert "at most 2 are kept" in take(browser, GOOD).text


def test_the_menu_lists_the_first_and_leads_to_the_rest(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.views.steering.LISTED", 1)
    url = browser.ask()
    save(browser, url, "a")
    panel = save(browser, url, "b").text
    assert len(re.findall(r'formaction="/presets/\w+/apply"', panel)) == 1
    assert "1 more;" in panel


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ([("layers", "")], None),
        ([("layers", ""), ("layers", "3")], None),
        ([("layers", "1"), ("layers", "3")], [1, 3]),
        ([("layers", " 2 – 3 ")], [2, 3]),
        ([("layers", "2")], [2, 2]),
        ([("layers", "0"), ("layers", "3")], None),
    ],
)
def test_layers_come_as_one_field_or_two(fields: list[tuple[str, str]], layers: list[int] | None) -> None:
    value = steerings.in_model(steerings.from_form([("concept:blue", "1"), *fields]), {"n_layers": 4})
    assert value.get("layers") == layers


@pytest.mark.parametrize(
    ("operation", "slider", "value", "kept"),
    [
        ("scale", "0.5", "7", [[0, 1, "scale", 0.5]]),
        ("scale", "1", "7", []),
        ("add", "0.5", "-7", [[0, 1, "add", -7.0]]),
        ("add", "0.5", "0", []),
        ("add", "0.5", "", []),
        ("set", "0.5", "0", [[0, 1, "set", 0.0]]),
        ("set", "0.5", " ", []),
        ("set", "0.5", None, [[0, 1, "set", 0.5]]),
    ],
)
def test_a_neuron_is_turned_by_its_slider_or_its_number(
    operation: str, slider: str, value: str | None, kept: list[Any]
) -> None:
    fields = [("neuron:text.0.1", slider), ("operation:text.0.1", operation)]
    fields += [] if value is None else [("value:text.0.1", value)]
    assert steerings.from_form(fields)["neurons"] == kept
