"""Steering by latent: values, the panel, presets, sweeps, Python, and SAEs that are not there any more."""

import dataclasses
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app import exports, jobs, steerings, swept
from app.cli import main
from app.tables import Run
from app.views import load
from engine.contract import ConceptTurn, LatentTurn, NeuronTurn, Question, RequestError, Steering
from engine.fake import FakeEngine
from tests.app.conftest import HTMX, Browser, serving
from tests.app.measuring import ended
from tests.app.test_latents import SAE, Without, rank
from tests.app.test_latents import card as latents_card
from tests.app.test_sweeps import done, job_of

ID = "fake-sae-1"
FIRST = f"sae.{SAE}.3"
IDS = {SAE: ID}


class Renamed(FakeEngine):
    """Another SAE has the name of the one that ships."""

    def __init__(self) -> None:
        super().__init__()
        self._standing = {sae.name: dataclasses.replace(sae, id="other-weights") for sae in self.saes()}


def form(**latents: str) -> dict[str, str]:
    """Fields that scale these latents, by index (`i3`)."""
    return {f"latent:sae.{SAE}.{name[1:]}": value for name, value in latents.items()}


def turned(browser: Browser, url: str, fields: dict[str, str]) -> str:
    """The steered run's URL."""
    response = browser.http.post(f"{url}/steer", data={"panel": "p", **fields}, headers=HTMX)
    assert response.status_code == 200, response.text
    found = re.search(r"steer=(\w+)", response.headers["HX-Replace-Url"])
    assert found
    return f"/runs/{found[1]}"


def panel(text: str) -> str:
    found = re.search(r'<section id="steer".*?</section>', text, re.DOTALL)
    assert found
    return " ".join(html.unescape(found[0]).split())


@pytest.fixture(scope="module")
def picture(pictures: Path) -> bytes:
    return (pictures / "ok.png").read_bytes()


@pytest.fixture(scope="module")
def url(shared: Browser, picture: bytes) -> str:
    return shared.ask("Which latents are turned?", picture)


def test_the_canonical_form_is_that_of_before_where_no_latent_is_turned() -> None:
    neurons = (NeuronTurn(1, 2, "set", 3.0),)
    before = {"concepts": [], "neurons": [[1, 2, "set", 3.0]], "positions": "all"}
    alone = (LatentTurn(ID, 3, "scale", 1), LatentTurn(ID, 4, "add", 0))
    assert steerings.to_json(Steering(neurons=neurons)) == before
    assert steerings.to_json(Steering(neurons=neurons, latents=alone), {ID: SAE}) == before
    model = {"revision": "r", "processor": "p", "dtype": "float32", "device": "cpu"}
    identity = jobs.identity(None, "q", model, 8, "gradient", before)
    latents = {**before, "latents": [[ID, SAE, 3, "scale", 0.0]]}
    assert jobs.identity(None, "q", model, 8, "gradient", latents) != identity


def test_a_form_and_its_json_and_its_steering_are_one() -> None:
    fields = {
        **form(i7="0", i3="0.33333333", i9="1"), f"operation:sae.{SAE}.5": "set", f"latent:sae.{SAE}.5": "1",
        f"value:sae.{SAE}.5": "2,5", f"operation:sae.{SAE}.6": "add", f"latent:sae.{SAE}.6": "1",
        f"value:sae.{SAE}.6": "", "sae:sae.elsewhere.1": "an-id", "latent:sae.elsewhere.1": "2",
    }  # fmt: skip
    value = steerings.from_form(fields.items(), IDS)
    assert value["latents"] == [
        ["an-id", "elsewhere", 1, "scale", 2.0], [ID, SAE, 3, "scale", 0.3333], [ID, SAE, 5, "set", 2.5],
        [ID, SAE, 7, "scale", 0.0],
    ]  # fmt: skip
    assert not steerings.empty(value)
    steering = steerings.from_json(json.loads(json.dumps(value)))
    assert steering.latents[2] == LatentTurn(ID, 5, "set", 2.5)
    assert steerings.to_json(steering, steerings.sae_names(value)) == value
    assert steerings.from_form(swept.fields_of(value)) == value
    assert steerings.in_words(value) == (
        f"sae.elsewhere.1 × 2 · sae.{SAE}.3 × 0.3333 · sae.{SAE}.5 = 2.5 · sae.{SAE}.7 × 0"
    )
    spelled = steerings.from_form({f"latent:sae.{SAE}.007": "0"}.items(), IDS)
    assert spelled["latents"] == [[ID, SAE, 7, "scale", 0.0]], "one latent, one spelling"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"latent:sae.fake-residul-2.3": "0"}, f"not attached to the loaded model. Did you mean {SAE}"),
        ({"latent:sae.nothing.3": "0"}, f"Attached: {SAE}."),
        (form(i96="0"), f"There is no latent sae.{SAE}.96: the indices of this SAE go from 0 to 95"),
        (form(i3="9"), "from -4 to 8"),
        ({"latent:sae.x": "0"}, "Latents are written sae.SAE.INDEX"),
        ({f"latent:sae.{SAE}.²": "0"}, "Latents are written sae.SAE.INDEX"),
        ({**form(i3="2"), f"operation:sae.{SAE}.3": "divide"}, "A neuron or a latent can be turned by scale, add, set"),
    ],
)  # fmt: skip
def test_what_cannot_be_turned_is_said(shared: Browser, url: str, fields: dict[str, str], words: str) -> None:
    response = shared.http.post(f"{url}/steer", data=fields, headers=HTMX)
    assert response.status_code == 422
    assert words in html.unescape(response.text)


def test_everything_that_is_not_there_is_told_at_once() -> None:
    value = {
        "concepts": [["zebra", 1]], "neurons": [[9, 1, "scale", 0]], "positions": "all",
        "latents": [["x", "gone", 1, "scale", 0], ["x", "gone", 2, "scale", 0], [ID, SAE, 96, "set", 1]],
    }  # fmt: skip
    model = {"n_layers": 4, "d_mlp": 24}
    told = steerings.lacking(value, ["red"], model, FakeEngine().saes())
    assert [words in one for words, one in zip(("zebra", "text.9.1", "gone", "0 to 95"), told, strict=True)] == [
        True
    ] * 4
    unfit = [dataclasses.replace(FakeEngine().saes()[0], fits="it is 8 wide; the model 16.")]
    with pytest.raises(RequestError, match="cannot stand on the loaded model: it is 8 wide"):
        steerings.verify_latent(ID, SAE, 1, unfit)
    with pytest.raises(RequestError, match="still loading"):
        steerings.verify_latent(ID, SAE, 1, None)


def test_a_latent_is_turned_and_the_answers_stand_side_by_side(shared: Browser, url: str) -> None:
    child = turned(shared, url, {**form(i3="0"), f"operation:sae.{SAE}.5": "set", f"latent:sae.{SAE}.5": "9"})
    told = shared.settled(child)
    assert told["provenance"]["state"] == "done"
    assert told["provenance"]["steering"]["latents"] == [[ID, SAE, 3, "scale", 0.0], [ID, SAE, 5, "set", 9.0]]
    data = shared.data(url)
    question = Question(
        shared.services.store.load(data["provenance"]["picture"]), data["provenance"]["question"],
        data["provenance"]["generation"]["max_new_tokens"],
    )  # fmt: skip
    steering = Steering(latents=(LatentTurn(ID, 3, "scale", 0), LatentTurn(ID, 5, "set", 9.0)))
    said = FakeEngine().steer(question, [token["id"] for token in data["tokens"]], steering)
    assert told["answer"] == said.answer.text
    beside = shared.http.get(f"{url}.json?steer={child.rsplit('/', 1)[1]}").json()["steered"]
    assert beside["original_under_steered"] == pytest.approx(said.original_under_steered)
    page = shared.http.get(f"{url}?steer={child.rsplit('/', 1)[1]}").text
    assert f"sae.{SAE}.3 × 0 · sae.{SAE}.5 = 9" in page
    text = panel(page)
    assert text.count('<li class="turn-row neuron latent on"') == 2
    assert f'<input type="hidden" name="sae:sae.{SAE}.3" value="{ID}">' in text
    assert f'<a href="/latents/fake-1/sae.{SAE}.3"' in text
    assert re.search(rf'name="value:sae\.{SAE}\.5"[^>]* value="9"', text)
    assert turned(shared, url, {f"latent:sae.{SAE}.03": "0", f"operation:sae.{SAE}.5": "set",
                                f"latent:sae.{SAE}.5": "9"}) == child, "one steering, one run"  # fmt: skip


def test_a_ranked_latent_is_added_from_the_card_with_its_peak_and_leaves_again(shared: Browser, picture: bytes) -> None:
    url = shared.ask("Which is ranked?", picture)
    rank(shared, url)
    page = shared.http.get(url).text
    one = shared.http.get(f"{url}/latents.json").json()["latents"][0]
    found = re.search(rf'<a class="add" href="([^"]+)"[^>]*data-add="{re.escape(one["id"])}"', latents_card(page))
    assert found
    assert f'<option value="{one["id"]}">' in panel(page), "the names of ranked latents are offered"
    state = found[1]
    assert state.endswith(f"add={one['id']}")
    text = panel(shared.http.get(state).text)
    assert f'name="latent:{one["id"]}"' in text
    assert f'data-usual="{one["peak"]:.3g}"' in text
    assert f'name="drop" value="latent:{one["id"]}"' in text
    fields = {f"latent:{one['id']}": "0", f"sae:{one['id']}": ID, "add": one["id"], "drop": f"latent:{one['id']}"}
    response = shared.http.post(f"{url}/steer", data=fields, follow_redirects=False)
    assert response.headers["location"] == url
    for name, words in (("sae.nothing.3", "“nothing” is not attached"), (f"sae.{SAE}.96", "go from 0 to 95")):
        assert words in panel(shared.http.get(url, params={"add": name}).text)


def test_a_factor_of_a_latent_is_swept(shared: Browser, url: str) -> None:
    row = f"latent:{FIRST}"
    data = {"panel": "p", "row": row, row: "0", "concept:red": "1.5", **form(i5="0.5")}
    job = job_of(shared.http.post(f"{url}/sweep", data=data, headers=HTMX))
    told = done(shared, job)
    assert told["values"] == [step / 2 for step in range(9)]
    assert told["provenance"]["steering"]["latents"] == [[ID, SAE, 5, "scale", 0.5]]
    for point in told["points"][:2]:
        fields = {row: str(point["value"]), "concept:red": "1.5", **form(i5="0.5")}
        assert shared.settled(turned(shared, url, fields))["answer"] == point["text"]
    child = turned(shared, url, {row: "0.5", "concept:red": "1.5", **form(i5="0.5")}).rsplit("/", 1)[1]
    page = html.unescape(shared.http.get(url, params={"sweep": job, "steer": child}).text)
    assert f"Sweep of {FIRST}" in page
    assert re.findall(r'<tr aria-current="true" data-at="([^"]+)"', page) == ["0.5", "0.5"]


def test_what_a_latent_is_set_to_is_swept_from_nothing_to_twice_that(shared: Browser, url: str) -> None:
    row = f"latent:{FIRST}"
    data = {"panel": "p", "row": row, row: "1", f"operation:{FIRST}": "set", f"value:{FIRST}": "-6"}
    job = job_of(shared.http.post(f"{url}/sweep", data=data, headers=HTMX))
    told = done(shared, job)
    assert told["values"] == [-12 + 1.5 * step for step in range(9)]
    point = told["points"][2]
    child = turned(shared, url, {**data, f"value:{FIRST}": str(point["value"])})
    assert shared.settled(child)["answer"] == point["text"]
    page = html.unescape(shared.http.get(url, params={"sweep": job, "steer": child.rsplit("/", 1)[1]}).text)
    assert re.findall(r'<tr aria-current="true" data-at="([^"]+)"', page) == ["-9", "-9"]
    form_of = re.search(
        rf'<form method="post" action="{url}/steer">(.*?)</form>', page[page.index("Sweep of") :], re.DOTALL
    )
    assert form_of
    fields = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', form_of[1]))
    response = shared.http.post(f"{url}/steer", data={**fields, row: "-9"}, follow_redirects=False)
    assert child.rsplit("/", 1)[1] in response.headers["location"], "the table turns the panel without scripts"
    assert job_of(shared.http.post(f"{url}/sweep", data={**fields, "row": row}, headers=HTMX)) == job, "and so again"
    for changed, words in (({f"value:{FIRST}": "0"}, "a value that is not 0"), ({f"value:{FIRST}": ""}, "not 0"),
                           ({f"operation:{FIRST}": "add"}, "Choose scale or set for it")):  # fmt: skip
        response = shared.http.post(f"{url}/sweep", data={**data, **changed}, headers=HTMX)
        assert response.status_code == 422
        assert words in response.text


def test_presets_hold_latents_and_say_what_is_missing(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        url = browser.ask()
        data = {**form(i3="0"), "preset": "dark", "panel": "p"}
        run = url.rsplit("/", 1)[1]
        assert browser.http.post(f"/presets?run={run}", data=data, headers=HTMX).status_code == 200
        exported = browser.http.get("/presets.json").json()
        (preset,) = exported["presets"]
        assert preset["steering"]["latents"] == [[ID, SAE, 3, "scale", 0.0]]
        page = browser.http.get(f"/presets?run={run}").text
        assert f"sae.{SAE}.3 × 0" in page
        apply = re.findall(r'formaction="(/presets/\w+/apply)"', page)[0]
        other = browser.ask("Another?")
        response = browser.http.post(apply, data={"run": other.rsplit("/", 1)[1]}, follow_redirects=False)
        child = f"/runs/{response.headers['location'].rsplit('=', 1)[1]}"
        assert browser.settled(child)["provenance"]["steering"]["latents"] == preset["steering"]["latents"]
    with serving(tmp_path / "there") as there:
        assert take(there, exported).endswith("added=1")
    with serving(tmp_path, Without) as browser:
        response = browser.http.post(apply, data={"run": other.rsplit("/", 1)[1]})
        assert response.status_code == 422
        assert f"cannot be applied to this run. The SAE “{SAE}” is not attached to the loaded model." in response.text
    with serving(tmp_path / "elsewhere", Renamed) as elsewhere:
        assert "Another one has its name now" in take(elsewhere, exported)


def take(browser: Browser, value: Any) -> str:
    """Where an import leads, or what its page says."""
    files = {"file": ("presets.json", json.dumps(value).encode())}
    response = browser.http.post("/presets/import", files=files, follow_redirects=False)
    return str(response.headers["location"] if response.status_code == 303 else html.unescape(response.text))


@pytest.fixture
def left(tmp_path: Path) -> Iterator[tuple[Browser, str, str]]:
    """(server without the SAE, the original run, a run that is steered by it and cannot be found in the cache)."""
    with serving(tmp_path) as browser:
        url = browser.ask()
        child = turned(browser, url, form(i3="0"))
        browser.settled(child)
    with serving(tmp_path, Without) as browser:
        yield browser, url, child


def test_a_run_of_an_sae_that_is_gone_is_shown_and_says_what_is_missing(left: tuple[Browser, str, str]) -> None:
    browser, url, child = left
    page = browser.http.get(f"{url}?steer={child.rsplit('/', 1)[1]}")
    assert page.status_code == 200
    text = panel(page.text)
    assert f"The SAE “{SAE}” is not attached to the loaded model. None is: attach one first." in text
    assert f"sae.{SAE}.3 × 0" in page.text
    fields = {"concept:red": "1", **form(i3="0"), f"sae:sae.{SAE}.3": ID}
    response = browser.http.post(f"{url}/steer", data=fields, headers=HTMX)
    assert response.status_code == 422
    assert f"The SAE “{SAE}” is not attached" in response.text
    with browser.services.database.write() as session:
        session.get_one(Run, child.rsplit("/", 1)[1]).state = "failed"
    response = browser.http.post(f"{child}/again")
    assert response.status_code == 422
    assert "is not attached" in response.text


def test_its_attributions_are_kept_and_others_say_why_they_fail(left: tuple[Browser, str, str]) -> None:
    browser, _, child = left
    kept = browser.data(child)["neurons"]
    assert kept
    with browser.services.database.write() as session:
        run = session.get_one(Run, child.rsplit("/", 1)[1])
        row = load.load(session, run.id, load.PageState())
        assert row is not None
        assert row.attribution is not None
        row.attribution.summary = {**(row.attribution.summary or {}), "stored": 0}
    assert browser.data(child)["neurons"] == kept, "what is stored is not thrown away for what cannot be computed"
    asked = f"{child}?method=direct"
    browser.http.get(asked)
    page = html.unescape(browser.http.get(asked).text)
    for _ in range(200):
        if jobs.NO_SAE in page:
            break
        page = html.unescape(browser.http.get(asked).text)
    assert f"{jobs.NO_SAE} ({SAE})." in page


def test_python_reproduces_it(shared: Browser, url: str) -> None:
    child = turned(shared, url, {**form(i3="0.5"), "concept:red": "1", "layers": "1-2"})
    shared.settled(child)
    with shared.services.database.read() as session:
        loaded = load.load(session, child.rsplit("/", 1)[1], load.PageState())
    assert loaded is not None
    script = exports.python(loaded)
    compile(script, "script", "exec")
    line = next(line for line in script.splitlines() if line.startswith("steering = "))
    names: dict[str, Any] = {}
    exec("from engine.contract import *", names)  # noqa: S102
    assert eval(line.removeprefix("steering = "), names) == steerings.from_json(loaded.run.steering or {})  # noqa: S307
    assert ID in script.partition("steering = ")[0], "it says which SAE must be attached"


def test_another_runs_latents_are_swapped_in(shared: Browser, picture: bytes, pictures: Path) -> None:
    mine, other = (
        shared.ask("Whose latents?", picture),
        shared.ask("The other’s?", (pictures / "ramp16.png").read_bytes()),
    )
    text = latents_card(shared.http.get(mine).text)
    assert "Swap in" not in text
    here, there = rank(shared, mine), rank(shared, other)
    text = latents_card(shared.http.get(mine).text)
    assert f'<input type="radio" name="other" value="{there}"' in text
    assert f'value="{here}" checked' not in text, "its own is not offered"
    concept = turned(shared, mine, {"concept:red": "1.5", **form(i3="0")}).rsplit("/", 1)[1]
    fields = {"mine": here, "other": there, "k": "5", "value": "peak", "steer": concept, "panel": "p", "heat": "all"}
    response = shared.http.post(f"{mine}/swap", data=fields, follow_redirects=False)
    assert response.status_code == 303, response.text
    assert re.fullmatch(rf"{mine}\?heat=all&steer=\w+", response.headers["location"])
    child = f"/runs/{response.headers['location'].rsplit('=', 1)[1]}"
    steering = shared.settled(child)["provenance"]["steering"]
    assert steering["concepts"] == [["red", 1.5]], "what else is turned stays"
    own, theirs = (shared.http.get(f"{run}/latents.json").json()["latents"] for run in (mine, other))
    expected = {one["index"]: 0.0 for one in own[:5]} | {one["index"]: round(one["peak"], 4) for one in theirs[:5]}
    assert {index: value for _, _, index, how, value in steering["latents"] if how == "set"} == expected
    for changed, words in (({"k": "3"}, "Choose 1, 5, 10"), ({"other": ""}, "Choose the run"),
                           ({"value": "most"}, "Choose peak or mean_activation"),
                           ({"other": "nosuch"}, "are ranked first"),
                           ({"steer": "nosuch"}, "no steered run")):  # fmt: skip
        response = shared.http.post(f"{mine}/swap", data={**fields, **changed})
        assert response.status_code == 422
        assert words in response.text
    assert shared.http.post("/runs/nosuch/swap", data=fields).status_code == 404
    ended(shared, here)


def test_the_command_line_turns_latents(capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["ask", "--model", "fake", "--question", "What is this?"]
    assert main([*ask, "--steer", f"{FIRST}=0", "--steer", "red=1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    question = Question(None, "What is this?", 64)
    steering = Steering((ConceptTurn("red", 1),), latents=(LatentTurn(SAE, 3, "scale", 0),))
    said = FakeEngine().steer(question, [token["id"] for token in told["tokens"]], steering)
    assert told["steered"]["answer"] == said.answer.text
    assert told["steered"]["original_under_steered"] == pytest.approx(said.original_under_steered)
    assert main([*ask, "--steer", f"{FIRST}=0.5"]) == 0
    assert f"steered ({FIRST} × 0.5): " in capsys.readouterr().out
    for given, words in (("sae.nothing.3=0", f"Attached: {SAE}."), (f"sae.{SAE}.96=1", "go from 0 to 95")):
        assert main([*ask, "--steer", given]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(("engine", "paged"), [(Without, True), (Renamed, False)])
def test_a_ranking_by_an_sae_that_is_gone_leads_to_no_other(tmp_path: Path, engine: Any, paged: bool) -> None:
    with serving(tmp_path) as browser:
        url = browser.ask()
        job = rank(browser, url)
        text = latents_card(browser.http.get(f"{url}?latents={job}").text)
        assert 'class="add"' in text
        assert f"/sae.{SAE}." in text
        assert "is not attached" not in text
    with serving(tmp_path, engine) as browser:
        text = latents_card(browser.http.get(f"{url}?latents={job}").text)
        assert f"The SAE “{SAE}” of this ranking is not attached now" in text
        assert ("another one has its name" in text) is not paged
        assert 'class="add"' not in text
        assert (f"/sae.{SAE}." in text) is paged, "a page of that name would be another SAE's"
