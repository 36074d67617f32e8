"""Building own concepts: stopped, killed, gone on with, grown; and probes of the little world."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app import own, owning
from app.tables import JobRow, OwnConcept, ProbeRow
from tests.app.conftest import Browser, serving, until
from tests.app.owning import Stepping, World, built, data, make, memberships, outcomes, press, settled, text_only
from tests.app.test_load import start


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Browser]:
    with serving(tmp_path, World) as browser:
        yield browser


# Building


def test_building_makes_memberships_that_the_library_has(browser: Browser) -> None:
    url = make(browser, files=text_only(6))
    page = browser.http.get(url).text
    assert "6 of 6 probes are not built yet" in page
    assert "measured on the first" in page
    assert not memberships(browser, "my red")
    found = built(browser, url)
    assert set(outcomes(found)) <= {"right", "wrong"}
    assert all(probe["logprob"] <= 0 for probe in found["probes"])
    assert memberships(browser, "my red")
    assert browser.http.get("/concepts/my%20red").status_code == 200
    assert '<a href="/concepts/my%20red">' in browser.http.get(url).text
    other = make(browser, "another", text_only(3))
    assert "That takes about a second for 3, as probes took before." in browser.http.get(other).text


def test_growing_a_concept_gives_the_same_as_building_it_at_once(browser: Browser) -> None:
    whole, grown = make(browser, "whole", text_only(9)), make(browser, "grown", text_only(4))
    built(browser, whole)
    built(browser, grown)
    assert memberships(browser, "grown") != memberships(browser, "whole")
    browser.http.post(f"{grown}/probes", files=text_only(9))
    assert outcomes(data(browser, grown)).count("waiting") == 5
    built(browser, grown)
    assert memberships(browser, "grown") == memberships(browser, "whole")
    removed = data(browser, grown)["probes"][8]["id"]
    assert press(browser, grown, f"probes/{removed}/remove").status_code == 303
    assert len(settled(browser, grown)["probes"]) == 8
    assert memberships(browser, "grown") != memberships(browser, "whole")


def test_cancelling_keeps_what_is_done_and_the_rest_is_built_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.worker.PACE", 0.0)
    go_on = threading.Event()
    with serving(tmp_path, lambda: Stepping(go_on)) as browser:
        url = make(browser, files=text_only(10))
        press(browser, url, "build")
        until(lambda: data(browser, url), lambda found: found["build"]["done"] == 4)
        page = browser.http.get(url).text
        assert "4 of 10 probes built" in page
        assert "4 of 10 done · about" in page
        assert press(browser, url, "cancel").status_code == 303
        found = settled(browser, url)
        assert found["build"]["state"] == "cancelled"
        assert outcomes(found).count("waiting") == 6
        partly = memberships(browser, "my red")
        assert partly, "what is done counts"
        page = browser.http.get(url).text
        assert "what was done is kept" in page
        assert "Build the rest" in page
        go_on.set()
        built(browser, url)
        whole = memberships(browser, "my red")
        assert whole != partly
        built(browser, make(browser, "at once", text_only(10)))
        assert memberships(browser, "at once") == whole


def test_probes_that_come_while_it_is_built_are_built_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.worker.PACE", 0.0)
    go_on = threading.Event()
    with serving(tmp_path, lambda: Stepping(go_on)) as browser:
        url = make(browser, files=text_only(6))
        press(browser, url, "build")
        until(lambda: data(browser, url), lambda found: found["build"]["done"] == 4)
        browser.http.post(f"{url}/probes", files=text_only(9))
        go_on.set()
        assert "waiting" not in outcomes(settled(browser, url))


def test_a_refused_probe_is_told_and_the_others_are_built(browser: Browser) -> None:
    url = make(browser, files=text_only(2))
    with browser.services.database.write() as session:
        row = own.probes(session, url.rsplit("/", 1)[1])[0]
        session.get_one(ProbeRow, row.id).says = "blue"
    found = built(browser, url)
    assert outcomes(found)[0] == "refused"
    assert "does not contain 'blue'" in browser.http.get(url).text.replace("&#39;", "'")
    assert outcomes(found)[1] != "refused"


def test_killed_in_mid_build_and_started_again(tmp_path: Path) -> None:
    with serving(tmp_path / "undisturbed") as browser:
        built(browser, make(browser, files=text_only(24)))
        wanted = memberships(browser, "my red")
    folder = tmp_path / "killed"
    server, address = start(folder, 0.15)
    try:
        until(lambda: httpx.get(f"{address}/concepts/new").status_code, lambda status: status == 200)
        fields = {"name": "my red", "source": "file"}
        made = until(
            lambda: httpx.post(f"{address}/concepts/new", data=fields, files=text_only(24)),
            lambda response: response.status_code == 303,  # the model is loading at first
        )
        url = made.headers["location"]
        httpx.post(f"{address}{url}/build")
        until(
            lambda: httpx.get(f"{address}{url}.json").json()["probes"],
            lambda probes: 0 < sum(probe["outcome"] != "waiting" for probe in probes) < 24,
        )
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
        assert server.stdout
        server.stdout.close()
    with serving(folder) as browser:
        found = settled(browser, url)
        assert found["build"]["state"] == "done"
        assert "waiting" not in outcomes(found)
        assert memberships(browser, "my red") == wanted


# The little world


def test_one_click_draws_and_builds_probes_of_the_little_world(world: Browser) -> None:
    page = world.http.get("/concepts/new?world=polar+bear").text
    assert 'value="my polar bear"' in page
    assert '<option value="polar bear" selected>' in page
    url = make(world, "my polar bear", source="world", world="polar bear", n="6")
    found = settled(world, url)
    assert found["surface_forms"] == ["polar bear"]
    assert len(found["probes"]) == 6
    assert len({probe["picture"] for probe in found["probes"]}) == 6
    assert "waiting" not in outcomes(found)
    theirs, mine = memberships(world, "polar bear"), memberships(world, "my polar bear")
    assert max(mine, key=mine.__getitem__) == max(theirs, key=theirs.__getitem__)
    assert "must be between 1 and 200" in world.http.post(
        "/concepts/new", data={"name": "x", "source": "world", "world": "polar bear", "n": "900"}
    ).text  # fmt: skip


def test_a_drawing_that_was_stopped_is_taken_up_with_what_it_was_asked(tmp_path: Path) -> None:
    with serving(tmp_path, World) as browser:
        services = browser.services
        url = make(browser, "my lemon", source="none")
        with services.database.write() as session:
            row = session.get_one(OwnConcept, url.rsplit("/", 1)[1])
            job = owning._queue_build(session, services, row, {"world": "lemon", "n": 5})
            session.get_one(JobRow, job).state = "cancelled"
        assert "5 probes are to be drawn and built" in browser.http.get(url).text
        assert len(built(browser, url)["probes"]) == 5
        assert len(built(browser, url)["probes"]) == 5, "they are drawn once"


def test_other_models_have_no_little_world(browser: Browser) -> None:
    assert 'value="world"' not in browser.http.get("/concepts/new").text
