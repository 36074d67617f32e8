"""What a stored result depends on: after a restart with another model, device or library, old rows are never served as
new ones, and what failed for want of the right model is tried again when that is back."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from app.jobs import identity
from app.tables import AttributionRow, Run
from engine.contract import Library, ModelInfo
from engine.fake import FakeEngine
from tests.app.conftest import Browser, serving, until


class Other(FakeEngine):
    """Another model."""

    def info(self) -> ModelInfo:
        return dataclasses.replace(super().info(), revision="other-1", name="other")


class OnCuda(FakeEngine):
    """The same weights elsewhere, in other numbers."""

    def info(self) -> ModelInfo:
        return dataclasses.replace(super().info(), device="cuda:0", dtype="bfloat16")


class Rebuilt(FakeEngine):
    """The same model, whose concepts have swapped their neurons; one has a new name."""

    def __init__(self, delay: float = 0.0, load_delay: float = 0.0) -> None:
        super().__init__(delay, load_delay)
        known = self._known.concepts
        turned = [
            dataclasses.replace(one, memberships=other.memberships)
            for one, other in zip(known, (*known[1:], known[0]), strict=True)
        ]
        turned.append(dataclasses.replace(known[0], name="newcomer"))
        self._ship(Library("rebuilt", tuple(turned)))


def row(browser: Browser, url: str) -> Run:
    with browser.services.database.read() as session:
        return session.get_one(Run, url.rsplit("/", 1)[1])


def test_everything_that_a_result_depends_on_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = {"revision": "1", "processor": "p", "dtype": "float32", "device": "cpu", "library": "a"}
    steering = {"concepts": [["penguin", -1]], "neurons": [], "positions": "all"}
    neuron = {"concepts": [], "neurons": [[1, 2, "scale", 0]], "positions": "all"}

    def made(changes: dict[str, Any], steered: dict[str, Any] | None = steering) -> str:
        return identity(None, "What?", {**model, **changes}, 32, "gradient", steered)

    same = made({})
    for changes in ({"revision": "2"}, {"processor": "q"}, {"dtype": "bfloat16"}, {"device": "cuda:0"}):
        assert made(changes) != same
    assert made({"device": "cuda:1"}) == made({"device": "cuda:0"}), "one card is like another"
    assert made({"library": "b"}) != same
    assert made({"library": "b"}, neuron) == made({}, neuron), "no concept, no library"
    monkeypatch.setattr("app.jobs.RESULTS", 2)
    assert made({}) != same


def test_a_rebuilt_library_gives_a_new_steered_run(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        url = browser.ask("What is it?")
        answer = browser.data(url)["answer"]
        child = browser.turn(url, answer, -1)
        before = browser.settled(child)
        unit = browser.http.post(f"{url}/steer", data={"neuron:text.1.2": "0"}, follow_redirects=False)
        revision = before["provenance"]["library"]
        assert revision
        assert before["provenance"]["steering"]["concepts"] == [[answer, -1]]
        assert f"engine.library().revision == {revision!r}" in browser.http.get(f"{child}.py").text
        assert revision in browser.http.get(f"{url}.py").text
    with serving(tmp_path, Rebuilt) as browser:
        again = browser.turn(url, answer, -1)
        assert again != child
        data = browser.settled(again)
        assert data["provenance"]["state"] == "done"
        assert data["provenance"]["library"] == "rebuilt"
        same = browser.http.post(f"{url}/steer", data={"neuron:text.1.2": "0"}, follow_redirects=False)
        assert same.headers["location"] == unit.headers["location"], "no concept: one run with every library"
        assert browser.data(child)["answer"] == before["answer"], "what was computed before stays"
        assert "earlier concept library" in browser.http.get(child).text
        page = browser.http.get(f"{child}?heat=concept:newcomer")
        assert page.status_code == 200
        until(lambda: browser.http.get(f"{child}?method=direct").text, lambda text: "Steer the original run" in text)


def test_an_attribution_of_an_earlier_library_is_made_anew(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        url = browser.ask("What is it?")
    with serving(tmp_path, Rebuilt) as browser:
        browser.http.get(url)
        assert "event: end" in browser.http.get(f"{url}/events").text
        after = browser.data(url)
        assert after["provenance"]["library"] == "rebuilt"
        assert "newcomer" in {concept["name"] for concept in after["concepts"]}
        assert "earlier concept library" not in browser.http.get(url).text


def test_a_concept_that_the_stored_attribution_does_not_know_has_no_map(browser: Browser, pictures: Path) -> None:
    url = browser.ask("What is it?", (pictures / "ok.png").read_bytes())
    with browser.services.database.write() as session:
        stored = session.scalars(select(AttributionRow)).one()
        stored.summary = {
            **(stored.summary or {}),
            "concepts": [entry for entry in (stored.summary or {})["concepts"] if entry[0] != "penguin"],
        }
    response = browser.http.get(f"{url}?heat=concept:penguin&fragment=picture")
    assert response.status_code == 200
    assert "which has no penguin" in response.text
    assert 'class="for" x=' not in response.text.split("<figcaption>")[0]


def test_another_device_is_another_run(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        url = browser.ask("What is it?")
        answer = browser.data(url)["answer"]
    with serving(tmp_path, OnCuda) as browser:
        assert browser.ask("What is it?") != url
        assert "another model is loaded now" in browser.http.get(url).text
        child = browser.turn(url, answer, -1)
        assert browser.settled(child)["provenance"]["state"] == "failed"
        assert "cpu, float32" in browser.http.get(child).text


def test_a_queued_run_is_not_answered_by_another_model(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        url = browser.ask("What is it?")
        with browser.services.database.write() as session:
            run = session.get_one(Run, url.rsplit("/", 1)[1])
            run.state, run.answer = "running", None
    with serving(tmp_path, Other) as browser:
        assert browser.settled(url)["provenance"]["state"] == "failed"
        assert "asked of another model" in browser.http.get(url).text
        assert row(browser, url).model_revision != "other-1"
    with serving(tmp_path) as browser:
        browser.http.post(f"{url}/again")
        assert browser.settled(url)["provenance"]["state"] == "done"


def test_an_attribution_that_failed_is_tried_again_with_the_right_model(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        url = browser.ask("What is it?")
    with serving(tmp_path, Other) as browser:
        assert "event: end" in browser.http.get(f"{url}/events?method=direct").text
        assert "asked of another model" in browser.http.get(f"{url}?method=direct").text
    with serving(tmp_path) as browser:
        assert "event: end" in browser.http.get(f"{url}/events?method=direct").text
        assert browser.http.get(f"{url}.json?method=direct").json()["neurons"]


class OnceBroken(FakeEngine):
    """Its first attribution by the direct method fails."""

    broken = True

    def attribute(self, *args: Any, **kwargs: Any) -> Any:
        if "direct" in args and type(self).broken:
            type(self).broken = False
            raise RuntimeError("out of memory")
        return super().attribute(*args, **kwargs)


def test_a_failed_attribution_offers_to_be_tried_again(tmp_path: Path) -> None:
    OnceBroken.broken = True
    with serving(tmp_path, OnceBroken) as browser:
        url = browser.ask("What is it?")
        assert "event: end" in browser.http.get(f"{url}/events?method=direct").text
        page = browser.http.get(f"{url}?method=direct").text
        assert "out of memory" in page
        assert f'action="{url}/attributions"' in page
        assert "Try again" in page
        fields = {"method": "direct"}
        for name, value in fields.items():
            assert f'name="{name}" value="{value}"' in page
        browser.http.post(f"{url}/attributions", data=fields)
        assert "event: end" in browser.http.get(f"{url}/events?method=direct").text
        assert "Try again" not in browser.http.get(f"{url}?method=direct").text
