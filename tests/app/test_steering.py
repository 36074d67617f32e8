"""Steering through the pages: both answers side by side, the last value wins, people do not disturb each other."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import func, select

from app.tables import Run
from tests.app.conftest import HTMX, Browser, until
from tests.app.test_validation import weaken


def children(browser: Browser) -> int:
    with browser.services.database.read() as session:
        return session.scalar(select(func.count()).select_from(Run).where(Run.parent_id.is_not(None))) or 0


def test_suppressing_the_answers_concept_changes_it(browser: Browser, pictures: Path) -> None:
    url = browser.ask("What is on the right?", (pictures / "ok.png").read_bytes())
    answer = browser.data(url)["answer"]
    response = browser.http.post(f"{url}/steer", data={f"concept:{answer}": "-1", "panel": "p"}, headers=HTMX)
    assert response.status_code == 200
    assert response.text.lstrip().startswith('<section id="steered"')
    assert "λ −1" in response.text
    state = response.headers["HX-Replace-Url"]
    assert re.fullmatch(rf"{url}\?steer=\w+", state)
    child = f"/runs/{state.split('=')[1]}"
    data = browser.settled(child)
    assert data["answer"] != answer
    page = browser.http.get(state).text
    for words in (answer, data["answer"], "answer unchanged", "24 neurons", "one scale"):
        assert words in page
    assert 'value="-1"' in page, "the panel shows the steering of this state"
    beside = browser.http.get(f"{url}.json?steer={child.rsplit('/', 1)[1]}").json()["steered"]
    assert beside["answer"] == data["answer"]
    assert len(beside["original_under_steered"]) == len(browser.data(url)["tokens"])
    assert beside["control"]["same"]


def test_the_same_steering_is_one_run_and_back_to_zero_computes_nothing(browser: Browser) -> None:
    url = browser.ask()
    answer = browser.data(url)["answer"]
    child = browser.turn(url, answer, -1)
    browser.settled(child)
    assert browser.turn(url, answer, -1.0, panel="another") == child
    assert browser.turn(url, answer, 0) == ""
    assert children(browser) == 1
    response = browser.steer(url, htmx=False, concept__penguin="0", neuron__text_0="1")
    assert response.status_code == 422
    response = browser.http.post(f"{url}/steer", data={"neuron:text.0.1": "1"}, follow_redirects=False)
    assert response.headers["location"] == url


def test_without_javascript(browser: Browser) -> None:
    url = browser.ask()
    answer = browser.data(url)["answer"]
    data = {f"concept:{answer}": "-1", "positions": "answer", "panel": "p", "sort": "image", "heat": "off"}
    response = browser.http.post(f"{url}/steer", data=data, follow_redirects=False)
    assert response.status_code == 303
    assert re.fullmatch(rf"{url}\?heat=off&sort=image&steer=\w+", response.headers["location"])
    page = browser.http.get(response.headers["location"]).text
    assert "answer positions" in page
    assert re.search(r'<option value="answer" selected>', page)


def test_concepts_that_pass_stand_before_weak_ones(browser: Browser) -> None:
    url = browser.ask()
    named = [concept["name"] for concept in browser.data(url)["concepts"]]
    assert panel_of(browser, url) == named[:6]
    for name in (named[0], *named[7:]):
        weaken(browser, name)
    assert panel_of(browser, url) == named[1:7], "however similar it is to the answer"
    weaken(browser, named[3])
    passing = [name for name in named[1:7] if name != named[3]]
    assert panel_of(browser, url) == [*passing, named[0]], "the most similar ones fill what is left"


def panel_of(browser: Browser, url: str) -> list[str]:
    return re.findall(r'data-field="concept:([^"]+)"', browser.http.get(url).text)


def test_a_neuron_that_leaves_the_panel_takes_only_its_own_edit_along(browser: Browser) -> None:
    url = browser.ask()
    answer = browser.data(url)["answer"]
    alone = browser.turn(url, answer, -1)
    data = {f"concept:{answer}": "-1", "neuron:text.0.1": "0", "neuron:text.0.2": "1", "panel": "p"}
    state = f"{url}?steer={browser.turn(url, answer, -2).rsplit('/', 1)[1]}&add=text.0.1&add=text.0.2"
    assert 'name="drop" value="neuron:text.0.1"' in browser.http.get(state).text
    form = {**data, "add": ["text.0.1", "text.0.2"], "drop": "neuron:text.0.1"}
    response = browser.http.post(f"{url}/steer", data=form, follow_redirects=False)
    assert response.headers["location"] == f"{url}?steer={alone.rsplit('/', 1)[1]}&add=text.0.2"
    response = browser.http.post(f"{url}/steer", data=form, headers=HTMX)
    assert response.headers["HX-Push-Url"] == f"{url}?steer={alone.rsplit('/', 1)[1]}&add=text.0.2"
    assert re.findall(r'<section id="(\w+)"', response.text) == ["steer", "steered", "neurons", "picture", "answer"]
    assert "neuron:text.0.2" in response.text
    assert 'value="neuron:text.0.1"' not in response.text
    browser.settled(alone)


def test_a_steered_run_has_a_page_of_its_own(browser: Browser) -> None:
    url = browser.ask()
    answer = browser.data(url)["answer"]
    child = browser.turn(url, answer, -1)
    steered = browser.settled(child)
    page = browser.http.get(child).text
    assert f'href="{url}"' in page
    assert steered["neurons"][0]["id"] in page
    further = browser.http.post(f"{child}/steer", data={f"concept:{answer}": "-2"}, follow_redirects=False)
    assert further.headers["location"].startswith(f"{url}?steer=")
    events = browser.http.get(f"{child}/events").text
    assert "event: steered" in events


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"concept:pengiun": "-1"}, "Did you mean penguin"),
        ({"concept:penguin": "-3"}, "from -2 to 4"),
        ({"concept:penguin": "nan"}, "must be a number"),
        ({"concept:penguin": "much"}, "must be a number"),
        ({"neuron:text.9.1": "0"}, "layers go from 0 to 3"),
        ({"neuron:head.1": "0"}, "text.LAYER.INDEX"),
        ({"concept:penguin": "1", "positions": "nowhere"}, "no choice of positions"),
    ],
)
def test_what_cannot_be_steered_is_said(shared: Browser, fields: dict[str, str], words: str) -> None:
    url = shared.ask()
    response = shared.http.post(f"{url}/steer", data=fields, headers=HTMX)
    assert response.status_code == 422
    assert words in response.text
    assert response.headers["HX-Retarget"] == "#errors"


def test_the_last_value_wins(slow: Browser) -> None:
    url = slow.ask("Describe it.")
    answer = "penguin"
    asked = [slow.turn(url, answer, lam) for lam in (-0.5, -0.6, -0.7)]
    assert slow.settled(asked[-1])["provenance"]["state"] == "done"
    assert [slow.state(child) for child in asked[:2]] == ["cancelled", "cancelled"]
    again = slow.turn(url, answer, -0.5)
    assert again == asked[0]
    assert slow.settled(again)["provenance"]["state"] == "done"


def test_going_back_and_forth_ends_at_the_last_value(slow: Browser) -> None:
    url = slow.ask("Describe it.")
    one, two = -0.5, -0.6
    for lam in (one, two, one, two, one):
        child = slow.turn(url, "penguin", lam)
    assert slow.settled(child)["provenance"]["state"] == "done"
    assert slow.data(child)["provenance"]["run"] == child.rsplit("/", 1)[1]


def test_two_panels_never_cancel_one_another(slow: Browser) -> None:
    url = slow.ask("Describe it.")
    mine = slow.turn(url, "penguin", -0.5, panel="mine")
    theirs = slow.turn(url, "penguin", -0.6, panel="theirs")
    shared = slow.turn(url, "penguin", -0.7, panel="mine")
    assert shared != mine
    assert slow.turn(url, "penguin", -0.7, panel="theirs") == shared
    slow.turn(url, "penguin", 0, panel="mine")
    assert slow.settled(shared)["provenance"]["state"] == "done", "the other panel still waits for it"
    assert slow.state(mine) == "cancelled"
    assert slow.state(theirs) == "cancelled"


def test_back_to_zero_stops_what_the_panel_waited_for(slow: Browser) -> None:
    url = slow.ask("Describe it.")
    child = slow.turn(url, "penguin", -0.5)
    slow.turn(url, "penguin", 0)
    assert slow.settled(child)["provenance"]["state"] == "cancelled"


def test_who_has_a_steered_run_open_keeps_it_alive(slow: Browser) -> None:
    """Another tab opened the address of a state whose steered answer is being made; it asked for nothing itself."""
    url = slow.ask("Describe it.")
    mine = slow.turn(url, "penguin", -0.5, panel="mine")
    page = slow.http.get(f"{url}?steer={mine.rsplit('/', 1)[1]}").text
    stream = re.search(r'sse-connect="([^"]+only=steered[^"]*)"', page)
    assert stream
    with ThreadPoolExecutor(1) as tab:
        body = tab.submit(slow.http.get, stream[1].replace("&amp;", "&"))
        until(lambda: slow.services.broker.listeners, lambda count: count == 1)
        slow.turn(url, "penguin", 0, panel="mine")
        assert slow.settled(mine)["provenance"]["state"] == "done"
        assert "event: end" in body.result().text


def test_a_panels_own_listening_does_not_count(slow: Browser) -> None:
    url = slow.ask("Describe it.")
    mine = slow.turn(url, "penguin", -0.5, panel="mine")
    with ThreadPoolExecutor(1) as tab:
        body = tab.submit(slow.http.get, f"{url}/events?steer={mine.rsplit('/', 1)[1]}&only=steered&panel=mine")
        until(lambda: slow.services.broker.listeners, lambda count: count == 1)
        slow.turn(url, "penguin", 0, panel="mine")
        assert slow.settled(mine)["provenance"]["state"] == "cancelled"
        assert "event: end" in body.result().text


def test_steering_waits_for_an_answer(slow: Browser) -> None:
    url = slow.ask("Describe it.", wait=False)
    response = slow.steer(url, concept__penguin="-1")
    assert response.status_code == 422
    assert "no answer to steer yet" in response.text
    slow.settled(url)


def test_one_steered_and_one_clean_never_mix(browser: Browser) -> None:
    """Two people, interleaved: every clean answer is the one asked alone."""
    alone = {number: browser.data(browser.ask(f"What is {number}?")) for number in range(6)}
    for number, data in alone.items():
        url = browser.ask(f"What is {number}?")
        browser.turn(url, data["answer"], -1, panel=str(number))
        other = browser.ask(f"What is {number}? ", wait=False)
        assert browser.settled(other)["tokens"] == data["tokens"]


def test_the_steered_fragment_streams(slow: Browser) -> None:
    url = slow.ask("Describe it.")
    child = slow.turn(url, "penguin", -0.5)
    fragment = slow.http.get(f"{url}?steer={child.rsplit('/', 1)[1]}&fragment=steered").text
    stream = re.search(r'sse-connect="([^"]+)"', fragment)
    assert stream
    body = slow.http.get(stream[1].replace("&amp;", "&")).text
    names = re.findall(r"^event: (\w+)", body, re.MULTILINE)
    assert set(names) == {"steered", "end"}
    assert len(names) > 5
    assert names[-1] == "end"
    until(lambda: slow.services.broker.listeners, lambda count: count == 0)
