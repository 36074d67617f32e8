"""What a steering changed: tokens that differ, concepts that moved, both heat maps; layers and neurons in the panel."""

import re
from pathlib import Path

import pytest

from app.views import moved
from engine.contract import AnswerToken
from tests.app.conftest import Browser


def tokens(text: str) -> tuple[AnswerToken, ...]:
    """A token a word; its id is its length and first letter, so equal words are equal."""
    return tuple(AnswerToken(f" {word}", ord(word[0]) * 100 + len(word), -0.1, ()) for word in text.split())


@pytest.mark.parametrize(
    ("text", "other", "marked"),
    [
        ("a red ball on ice", "a red ball on ice", []),
        ("a red ball on ice", "a ball on ice", ["red"]),
        ("a ball on ice", "a red ball on ice", []),
        ("a red ball on ice", "a green ball on ice", ["red"]),
        ("one two three four", "zero one two three four", []),
        ("zero one two three four", "one two three four", ["zero"]),
        ("one two", "", []),
        ("yes", "no", ["yes"]),
    ],
)
def test_differences_are_those_of_the_best_alignment(text: str, other: str, marked: list[str]) -> None:
    ours, theirs = tokens(text), tokens(other)
    flags = moved.differing(ours, theirs)
    assert [token.text.strip() for token, differs in zip(ours, flags, strict=True) if differs] == marked
    parts = moved.parts(text, ours, theirs)
    assert "".join(part for part, _ in parts) == text
    assert [part.strip() for part, differs in parts if differs] == marked


def test_an_answer_whose_tokens_do_not_make_it_up_stays_whole() -> None:
    halves = (AnswerToken("\ufffd", 1, -0.1, ()), AnswerToken("\ufffd", 2, -0.1, ()))
    assert moved.parts("漢", halves, tokens("no")) == (("漢", False),)


def steered_card(browser: Browser, url: str, child: str) -> str:
    return browser.http.get(f"{url}?steer={child.rsplit('/', 1)[1]}&fragment=steered").text


def test_which_concepts_moved_comes_from_the_stored_attributions(shared: Browser, pictures: Path) -> None:
    url = shared.ask("What is on the right?", (pictures / "ok.png").read_bytes())
    answer = shared.data(url)["answer"]
    child = shared.turn(url, answer, -1)
    was = {concept["name"]: concept["similarity"] for concept in shared.data(url)["concepts"]}
    now = {concept["name"]: concept["similarity"] for concept in shared.settled(child)["concepts"]}
    changes = sorted(
        ((abs(now[name] - was[name]), name) for name in was.keys() & now.keys() if name != answer), reverse=True
    )
    wanted = [name for change, name in changes if change >= moved.LEAST][: moved.SHOWN]
    card = steered_card(shared, url, child).split('class="moved"')[1].split("</ul>")[0]
    assert wanted
    assert re.findall(r'href="/concepts/([^"]+)"', card) == [name.replace(" ", "%20") for name in wanted]
    assert f"{was[wanted[0]]:.2f}" in card
    assert f"{now[wanted[0]]:.2f}" in card
    bars = [float(width) for width in re.findall(r'class="(?:default|turned)" (?:y="6" )?width="([\d.]+)"', card)]
    assert max(bars) == 1, "one scale: the largest value fills its bar"
    assert bars[0] / bars[1] == pytest.approx(was[wanted[0]] / now[wanted[0]], rel=0.01)


def test_the_marked_word_is_the_one_that_changed(shared: Browser) -> None:
    url = shared.ask()
    answer = shared.data(url)["answer"]
    child = shared.turn(url, answer, -1)
    other = shared.settled(child)["answer"]
    marked = re.findall(r"<mark>([^<]+)</mark>", steered_card(shared, url, child))
    assert marked == [answer, other]


def test_both_heat_maps_have_one_scale(shared: Browser, pictures: Path) -> None:
    url = shared.ask("What is on the right?", (pictures / "ok.png").read_bytes())
    child = shared.turn(url, shared.data(url)["answer"], -1)
    maps = [shared.data(url)["heatmap"]["rows"], shared.settled(child)["heatmap"]["rows"]]
    largest = max(abs(value) for rows in maps for row in rows for value in row)
    figures = re.findall(r"<figure.*?</figure>", steered_card(shared, url, child), re.DOTALL)
    assert len(figures) == 2
    for rows, figure in zip(maps, figures, strict=True):
        opacities = [float(value) for value in re.findall(r'fill-opacity="([\d.]+)"', figure)]
        wanted = [abs(value) / largest for row in rows for value in row]
        assert max(opacities) == pytest.approx(max(wanted), abs=0.001)


def test_the_panel_shows_layers_and_edits_of_the_steering_beside(shared: Browser) -> None:
    url = shared.ask()
    peak = shared.data(url)["neurons"][0]
    name = peak["id"]
    data = {
        "concept:penguin": "-1", "layers": ["1", "3"], f"neuron:{name}": "1", f"operation:{name}": "add",
        f"value:{name}": "-2.5", "neuron:text.0.3": "-2", "operation:text.0.3": "scale", "value:text.0.3": "",
    }  # fmt: skip
    where = shared.http.post(f"{url}/steer", data=data, follow_redirects=False).headers["location"]
    page = shared.http.get(where).text
    assert f"penguin λ −1 · text.0.3 × −2 · {name} − 2.5 · layers 1–3" in page
    panel = page.split('<section id="steer"')[1].split('<section id="steered"')[0]
    row = panel.split(f'data-field="neuron:{name}"')[1].split("</li>")[0]
    assert '<option value="add" selected>' in row
    assert f'name="value:{name}" step="any" value="-2.5"' in row
    assert "peak" in row
    beyond = panel.split('data-field="neuron:text.0.3"')[1].split("</li>")[0]
    assert 'min="-4" max="8" step="0.1" value="-2"' in beyond, "the slider reaches what is set"
    first, last = (panel.split(f'id="steer-{end}"')[1].split("</select>")[0] for end in ("first", "last"))
    assert re.findall(r'value="(\d*)" selected', first) == ["1"]
    assert re.findall(r'value="(\d*)" selected', last) == ["3"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"layers": ["3", "1"], "concept:penguin": "1"}, "FIRST-LAST"),
        ({"layers": "2-7", "concept:penguin": "1"}, "layers from 0 to 3"),
        ({"neuron:text.0.1": "9"}, "from -4 to 8"),
        ({"neuron:text.0.1": "1", "operation:text.0.1": "add", "value:text.0.1": "2e4"}, "from -10000 to 10000"),
        ({"neuron:text.0.1": "1", "operation:text.0.1": "cut"}, "scale, add, set"),
    ],
)
def test_what_cannot_be_turned_is_said(shared: Browser, fields: dict[str, str | list[str]], words: str) -> None:
    response = shared.http.post(f"{shared.ask()}/steer", data=fields)
    assert response.status_code == 422
    assert words in response.text


def test_layers_that_are_all_layers_are_the_same_steering(shared: Browser) -> None:
    url = shared.ask()
    whole, limited = (
        shared.http.post(f"{url}/steer", data={"concept:penguin": "-1", "layers": layers}, follow_redirects=False)
        for layers in ("", "0-3")
    )
    assert whole.headers["location"] == limited.headers["location"]


def test_derived_concepts_are_added_and_steered_by_name(browser: Browser) -> None:
    """(Own ones from probes go the same way: they join the library.)"""
    saved = browser.http.post("/algebra", data={"name": "cold birds", "expression": "penguin AND blue"})
    assert saved.status_code == 200
    url = browser.ask()
    panel = browser.http.get(f"{url}?add=cold%20birds&fragment=steer").text
    assert 'name="concept:cold birds"' in panel
    child = browser.turn(url, "cold birds", -1)
    assert browser.settled(child)["provenance"]["steering"]["concepts"] == [["cold birds", -1.0]]
