"""What else than the answer can be explained: texts, contrasts, their variants; what is left out; and the way back."""

import contextlib
import dataclasses
import html
import io
import re
import sys
import types
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from app.targets import MAX_TEXT
from app.views import answer as answers
from engine.contract import MODALITIES, ModelInfo, Question, Target
from engine.fake import FakeEngine
from tests.app.conftest import Browser, serving, until

QUESTION = "What is this?"


def parameters(**fields: Any) -> str:
    return urlencode(fields, doseq=True)


def explained(browser: Browser, url: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    """The page and the JSON of a target, once it is there."""
    query = parameters(**fields)
    data = until(lambda: browser.http.get(f"{url}.json?{query}"), lambda r: r.status_code == 200).json()
    response = browser.http.get(f"{url}?{query}")
    assert response.status_code == 200
    return response.text, data


def words(page: str, part: str) -> str:
    """The visible text of the first element of a class."""
    found = re.search(rf'<(\w+) class="{part}[^>]*>(.*?)</\1>', page, re.DOTALL)
    assert found, part
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", found[2])).split())


def strips(page: str) -> list[list[tuple[str, int]]]:
    """(piece, id) of each side's strip."""
    sides = re.findall(r'<ol class="pieces".*?</ol>', page, re.DOTALL)
    pattern = r"<code>(.*?)</code><small[^>]*>(\d+)</small>"
    return [[(html.unescape(text), int(i)) for text, i in re.findall(pattern, side)] for side in sides]


def links(page: str, words_of: str) -> list[str]:
    """Addresses of links whose text holds these words."""
    found = re.findall(r'<a [^>]*?href="([^"]+)"[^>]*>(.*?)</a>', page, re.DOTALL)
    return [html.unescape(href) for href, text in found if words_of in html.unescape(re.sub(r"<[^>]+>", "", text))]


@pytest.fixture(scope="module")
def run(shared: Browser) -> str:
    """A run that answers “polar bear”."""
    url = shared.ask(QUESTION)
    assert shared.data(url)["answer"] == "polar bear"
    return url


def test_the_plain_page_is_folded_and_offers_contrasts(shared: Browser, run: str) -> None:
    page, data = explained(shared, run)
    assert '<details id="explain" class="explain">' in page
    assert words(page, "target-line").startswith("Target: “polar bear”, 2 tokens, log-probability −0.18")
    (strip,) = strips(page)
    assert [i for _, i in strip] == data["provenance"]["target"]["explained"] == [t["id"] for t in data["tokens"]]
    assert [piece for piece, _ in strip] == ["·polar", "·bear"]
    offers = re.search(r'<p class="offers">(.*?)</p>', page, re.DOTALL)
    assert offers
    assert "polar" not in re.sub(r"<[^>]+>", "", offers[1]), "what was said is no alternative to itself"
    assert "blue" in offers[1]
    assert "%" in offers[1]


def test_an_offer_contrasts_the_first_token_with_an_alternative(shared: Browser, run: str) -> None:
    (href,) = [link for link in links(explained(shared, run)[0], "blue") if "against" in link]
    assert "span=0-1" in href
    assert "against=%20blue" in href
    assert "exact=1" in href
    page, data = explained(shared, run, span="0-1", against=" blue", exact="1")
    assert words(page, "target-line").startswith("Target: “polar” rather than “blue”, 1 token against 1, difference +")
    target = data["provenance"]["target"]
    assert [[i for _, i in strip] for strip in strips(page)] == [target["explained"], target["explained_against"]]
    assert '<details id="explain" class="explain" open>' in page
    first = shared.data(run)["tokens"][0]["logprob"]
    assert data["provenance"]["target_value"] > 0 > first


def test_a_text_is_explained_in_its_most_probable_way(shared: Browser, run: str) -> None:
    page, data = explained(shared, run, say="red light")
    target = data["provenance"]["target"]
    ways = FakeEngine().variants(Question(None, QUESTION), "red light")
    assert target["text"] == ways[0].text
    assert target["explained"] == list(ways[0].ids)
    assert target["span"] == [0, 0]
    assert not target["exact"]
    line = words(page, "target-line")
    assert line.startswith(f"Target: “{ways[0].text.strip()}” (not said by the model), 2 tokens, log-probability −")
    assert "most probable way to write it" in page
    shown = re.findall(r'<a class="chip"[^>]*?title="2 tokens: ([\d, ]+)"( aria-current="true")?>', page)
    assert [ids for ids, _ in shown] == [", ".join(map(str, way.ids)) for way in ways]
    assert [bool(current) for _, current in shown] == [True, False, False, False]
    assert [piece for piece, _ in strips(page)[0]] == [piece.replace(" ", "·") for piece in ways[0].pieces]


def test_another_way_of_writing_is_taken_exactly_with_the_other_side(shared: Browser, run: str) -> None:
    page, first = explained(shared, run, say="red light", against="green light")
    ways = FakeEngine().variants(Question(None, QUESTION), "red light")
    (href,) = [link for link in links(page, ways[2].text.replace(" ", "·")) if "exact=1" in link]
    other = first["provenance"]["target"]["against"]
    assert parameters(say=ways[2].text, against=other).replace("+", "%20") in href
    _, data = explained(shared, run, say=ways[2].text, against=other, exact="1")
    target = data["provenance"]["target"]
    assert (target["text"], target["against"], target["exact"]) == (ways[2].text, other, True)
    assert target["explained"] == list(ways[2].ids) != first["provenance"]["target"]["explained"]
    assert target["explained_against"] == first["provenance"]["target"]["explained_against"]
    assert "exactly as written" in explained(shared, run, say=ways[2].text, against=other, exact="1")[0]


def test_a_text_stands_at_the_place_of_the_chosen_span(shared: Browser, run: str) -> None:
    page, data = explained(shared, run, span="1-2", say=" light", exact="1")
    assert "After “polar”, instead of the rest" in page
    alone = explained(shared, run, say=" light", exact="1")[1]
    assert data["provenance"]["target_value"] != alone["provenance"]["target_value"]
    (said,) = links(page, "its answer")
    assert "against=%20bear" in said
    assert "say=%20light" in said


def test_the_words_of_the_answer_itself_are_recognised(shared: Browser, run: str) -> None:
    page, _ = explained(shared, run, say=" polar bear", exact="1")
    assert "“polar bear” (as the model said it)" in words(page, "target-line")


def test_a_token_and_the_whole_answer_lead_back(shared: Browser, run: str) -> None:
    page, _ = explained(shared, run, say="red", against="blue", quantity="logit", sort="layer")
    (back,) = links(page, "Explain the whole answer")
    assert back == f"{run}?sort=layer"
    tokens = re.findall(r'<a id="token-\d"[^>]*?href="([^"]+)"', page)
    assert [html.unescape(href) for href in tokens] == [
        f"{run}?span={n}-{n + 1}&quantity=logit&sort=layer" for n in (0, 1)
    ]


def test_the_form_keeps_the_rest_of_the_state(shared: Browser, run: str) -> None:
    page, _ = explained(shared, run, span="0-1", against="blue", method="direct", sort="layer", leave="special")
    form = page[page.index('id="explain"') :].partition("</form>")[0]
    hidden = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form)
    assert hidden == [("span", "0-1"), ("leave", "special"), ("method", "direct"), ("sort", "layer")]
    assert 'name="against" value="blue"' in form
    assert "direct always explains the logit." in page
    again = shared.http.get(run, params=[*hidden, ("say", ""), ("against", "green"), ("quantity", "logprob")])
    assert "rather than <strong>“<bdi>green</bdi>”" in again.text


def test_a_logit_has_its_own_words_and_sums(shared: Browser, run: str) -> None:
    page, data = explained(shared, run, quantity="logit")
    assert "2 tokens, logit " in words(page, "target-line")
    assert "Scores are in logits." in page
    assert "Scores are in nats." in explained(shared, run)[0]
    assert data["provenance"]["target"]["quantity"] == "logit"
    contrast, _ = explained(shared, run, quantity="logit", against="red")
    assert " logits" in words(contrast, "target-line")


def test_a_nearly_certain_answer_points_to_what_says_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = FakeEngine._distribution

    def certain(self: FakeEngine, *asked: Any) -> Any:
        logprobs = usual(self, *asked)
        logprobs[int(logprobs.argmax())] += 20
        return logprobs - max(logprobs)

    monkeypatch.setattr(FakeEngine, "_distribution", certain)
    with serving(tmp_path) as browser:
        url = browser.ask(QUESTION)
        line = words(explained(browser, url)[0], "target-line")
        assert "nearly certain, so its scores are tiny. Explain its logit, or “polar” rather than “blue”." in line
        part = words(explained(browser, url, span="0-1")[0], "target-line")
        assert "Explain the whole answer" in part
        assert "nearly certain" not in words(explained(browser, url, method="direct")[0], "target-line")
        (logit,) = links(explained(browser, url)[0], "its logit")
        assert logit == f"{url}?quantity=logit"


def test_positions_are_left_out_by_a_switch_that_says_what_is_gone(shared: Browser, run: str) -> None:
    page, data = explained(shared, run)
    shown = dict(re.findall(r'<span class="what">([\w -]+) <span class="figure">([^<]*)</span>', page))
    found = FakeEngine().attribute(
        Question(None, QUESTION), [token["id"] for token in data["tokens"]], Target(0, 2), top=1
    )
    assert shown == {
        label: f"{100 * kind.share:.0f} %"
        for label, kind in zip(("special tokens", "high-norm positions"), found.apart, strict=True)
    }
    assert 'class="left-out"' not in page
    (href,) = links(page, "special tokens")
    assert href == f"{run}?leave=special"

    without, less = explained(shared, run, leave="special")
    assert words(without, "left-out") == f"Left out: special tokens (2 positions, {shown['special tokens']})."
    assert less["provenance"]["target"]["leave_out"] == ["special"]
    assert less["provenance"]["target_value"] == data["provenance"]["target_value"], "the target is the same"
    assert less["neurons"] != data["neurons"]
    assert links(without, "special tokens") == [run]
    both, _ = explained(shared, run, leave=["high-norm", "special"])
    assert " and high-norm positions (1 position, " in words(both, "left-out")
    assert re.findall(r'aria-checked="(\w+)"', both) == ["false", "false"]


def test_where_everything_is_left_out_nothing_is_ranked(shared: Browser, run: str) -> None:
    page, _ = explained(shared, run, span="0-1", method="direct", leave="special")
    assert "Nothing is left to rank." in words(page, "left-out")


def test_sums_by_modality_add_up(shared: Browser, run: str) -> None:
    page, data = explained(shared, run, method="integrated")
    head = re.search(r'<table class="sums">(.*?)</table>', page, re.DOTALL)
    assert head
    cells = re.sub(r"<[^>]+>", " ", head[1]).split()
    names, values = [*MODALITIES, "all"], [float(cell.replace("−", "-")) for cell in cells[-5:]]
    assert [cell for cell in cells if cell in names] == names
    assert sum(values[:4]) == pytest.approx(values[4], abs=0.003)
    assert any(values)
    assert 'href="#where"' in head[1]
    value = f"{data['provenance']['target_value']:.3f}".replace("-", "−")
    assert f"the target’s log-probability is {value}." in page


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"say": "   "}, "The text to explain is empty. Type what the model could have said."),
        ({"against": "\t "}, "The text to contrast with is empty."),
        ({"say": "a" * (MAX_TEXT + 1)}, "has 201 characters; at most 200 are taken"),
        ({"quantity": "odds"}, "There is no quantity “odds”. Choose one of logprob, logit."),
        ({"leave": "sky"}, "Choose one of special, high-norm."),
    ],
)
def test_what_cannot_be_explained_is_refused_in_words(
    shared: Browser, run: str, fields: dict[str, str], message: str
) -> None:
    response = shared.http.get(run, params=fields)
    assert response.status_code == 422
    assert message in html.unescape(response.text)
    posted = shared.http.post(f"{run}/attributions", data=fields)
    assert posted.status_code == 422
    assert message in html.unescape(posted.text)


def test_equal_sides_are_named(shared: Browser, run: str) -> None:
    page, data = explained(shared, run, say="red", against=" red")
    assert "Both sides are the same tokens, so every score is zero." in words(page, "target-line")
    assert data["provenance"]["target_value"] == 0
    assert not any(neuron["score"] for neuron in data["neurons"])


def test_an_attribution_that_fails_says_why_and_leads_on(shared: Browser, run: str) -> None:
    page, _ = explained(shared, run, quantity="logit", method="logprob_increase")
    page = page[page.index('<section id="neurons"') :]
    assert "choose another method to explain logits" in words(page, "empty")
    ways = words(page, "empty back")
    assert ways == "Explain the log-probability · Use gradient · Back to the whole answer"
    for label, method in (("Explain the log-probability", "logprob_increase"), ("Use gradient", "gradient")):
        (href,) = links(page, label)
        left = shared.http.get(href).text
        assert "choose another method" not in left, label
        assert f'aria-current="true">{answers.METHOD_LABELS.get(method, method)}</a>' in left
    page, _ = explained(shared, run, quantity="logit")
    assert "It explains log-probabilities, and the target is a logit." in page
    assert not links(page, "log-prob increase"), "a way that leads nowhere is no link"


class WithoutGradients(FakeEngine):
    def info(self) -> ModelInfo:
        return dataclasses.replace(super().info(), no_gradient="Its weights are packed in 4 bits.")


def test_methods_that_the_model_cannot_do_say_why(tmp_path: Path) -> None:
    with serving(tmp_path, WithoutGradients) as browser:
        page, _ = explained(browser, browser.ask(QUESTION))
        off = re.findall(r'<span class="off"[^>]*title="([^"]+)"[^>]*>(\w+)<span class="why">([^<]+)', page)
        why = "Its weights are packed in 4 bits."
        assert off == [(why, "gradient", why), (why, "integrated", why)]
        assert links(page, "direct")
        assert not links(page, "integrated")


@pytest.fixture
def reproducing(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """Python that is copied from a page gets the fake engine from `load_engine`."""
    engine = FakeEngine()
    module = types.ModuleType("engine.local")
    module.load_engine = lambda name, **how: engine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "engine.local", module)
    return engine


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"span": "1-2", "quantity": "logit"},
        {"say": "red light"},
        {"span": "1-2", "say": " light", "against": "it's “green”", "exact": "1"},
        {"span": "0-1", "against": "blue", "leave": ["special", "high-norm"]},
    ],
    ids=["whole", "logit", "text", "exact contrast", "left out"],
)
@pytest.mark.parametrize("looked", [False, True], ids=["text only", "with a picture"])
def test_the_python_of_a_target_computes_it_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pictures: Path,
    reproducing: FakeEngine,
    fields: dict[str, Any],
    looked: bool,
) -> None:
    with serving(tmp_path) as browser:
        url = browser.ask(QUESTION, (pictures / "ok.png").read_bytes() if looked else None)
        _, data = explained(browser, url, **fields)
        script = browser.http.get(f"{url}.py?{parameters(**fields)}").text
        if looked:
            name = f"{data['provenance']['picture']}.png"
            (tmp_path / name).write_bytes(browser.http.get(f"/pictures/{name}").content)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(script, names)  # noqa: S102 - it is what a person would run
    found, target = names["attribution"], data["provenance"]["target"]
    assert found.value == pytest.approx(data["provenance"]["target_value"])
    assert list(found.explained) == target["explained"]
    assert list(found.explained_against) == target["explained_against"]
    assert [neuron.neuron for neuron in found.neurons] == [neuron["id"] for neuron in data["neurons"]]
    assert [neuron.score for neuron in found.neurons] == pytest.approx([neuron["score"] for neuron in data["neurons"]])
    assert len(printed.getvalue().splitlines()) == len(data["neurons"]) > 0
