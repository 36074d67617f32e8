"""The card that says how far a ranking can be trusted: from the empty state to the numbers, with and without htmx."""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from app.views import trust
from tests.app.conftest import HTMX, Browser, until
from tests.app.measuring import ended, holding, measure, row_of, running


def card(browser: Browser, url: str) -> str:
    """The card as text without line breaks."""
    path, _, query = url.partition("?")
    text = browser.http.get(f"{path}?{query}&fragment=trust").text
    assert text.lstrip().startswith('<section id="trust"')
    return " ".join(html.unescape(text).split())


def post(browser: Browser, url: str, kind: str = "faithfulness", *, htmx: bool = True, **fields: str) -> Any:
    headers = {**HTMX, "HX-Target": "trust"} if htmx else {}
    data = {"kind": kind, **fields}
    return browser.http.post(f"{url}/measurements", data=data, headers=headers, follow_redirects=htmx)


@pytest.fixture(scope="module")
def url(shared: Browser) -> str:
    return shared.ask("Describe it.")


@pytest.fixture(scope="module")
def measured(shared: Browser, url: str) -> Iterator[str]:
    """A run with both measurements."""
    for kind in ("faithfulness", "noise"):
        ended(shared, measure(shared, url, kind))
    return url


def test_the_empty_state_teaches_what_it_takes(browser: Browser) -> None:
    url = browser.ask("Describe it.")
    text = card(browser, url)
    assert "Can this ranking be trusted?" in text
    assert "are set to zero" in text
    assert "That takes some seconds" in text
    assert ">Measure faithfulness<" in text
    assert ">Measure noise band<" in text
    assert "sse-connect" not in text
    ended(browser, measure(browser, url))
    other = card(browser, browser.ask("Describe that."))
    assert "That takes 64 runs of the model: about a second, as it did last time." in other


def test_a_click_measures_and_the_card_listens(tmp_path: Path) -> None:
    with holding(tmp_path) as (browser, go_on):
        url = browser.ask("Describe it.")
        response = post(browser, url, span="0-2")
        assert response.status_code == 200
        text = response.text
        assert text.lstrip().startswith('<section id="trust"'), "the fragment alone"
        stream = html.unescape(re.findall(r'sse-connect="([^"]+)"', text)[0])
        assert stream.startswith(f"{url}/events?span=0-2&only=trust")
        page = until(lambda: card(browser, f"{url}?span=0-2"), lambda page: "of 64" in page)
        assert re.search(r'<progress aria-label="Faithfulness" value="0\.125" max="1">', page)
        assert re.search(r"8 of 64 ablated runs · about .+ left", page)
        assert ">Cancel<" in page
        assert "sse-connect" not in card(browser, url), "another target's card does not wait for it"
        assert 'http-equiv="refresh"' in browser.http.get(f"{url}?span=0-2").text, (
            "without scripts the page looks again"
        )
        go_on.set()
        body = browser.http.get(stream).text
        assert set(re.findall(r"^event: (\w+)", body, re.MULTILINE)) == {"trust", "end"}
        assert "Spearman" in body
        assert "sse-connect" not in card(browser, f"{url}?span=0-2")


def test_without_htmx_it_is_a_form(shared: Browser, url: str) -> None:
    response = post(shared, url, htmx=False, span="1-2", heat="all")
    assert response.status_code == 303
    assert response.headers["location"] == f"{url}?span=1-2&heat=all"


def test_the_pages_own_stream_does_not_wait_for_it(tmp_path: Path) -> None:
    with holding(tmp_path) as (browser, go_on):
        url = browser.ask("Describe it.")
        running(browser, measure(browser, url))
        body = browser.http.get(f"{url}/events").text
        assert body.rstrip().endswith("event: end\ndata:")
        go_on.set()


def test_cancelling_by_its_button(tmp_path: Path) -> None:
    with holding(tmp_path) as (browser, go_on):
        url = browser.ask("Describe it.")
        job = measure(browser, url)
        running(browser, job)
        action = re.search(r'action="(/measurements/\w+/cancel)"', card(browser, url))
        assert action
        assert action[1] == f"/measurements/{job}/cancel"
        response = browser.http.post(action[1], headers={**HTMX, "HX-Target": "trust"})
        assert response.text.lstrip().startswith('<section id="trust"')
        ended(browser, job, "cancelled")
        text = card(browser, url)
        assert "Cancelled; nothing was kept." in text
        assert ">Measure again<" in text
        go_on.set()


def test_a_running_noise_band_can_be_cancelled(tmp_path: Path) -> None:
    with holding(tmp_path) as (browser, go_on):
        url = browser.ask("Describe it.")
        job = measure(browser, url, "noise")
        until(lambda: row_of(browser, job), lambda row: row.state == "running")
        assert f"/measurements/{job}/cancel" in card(browser, url)
        assert browser.http.post(f"/measurements/{job}/cancel").status_code == 200
        ended(browser, job, "cancelled")
        assert ">Measure again<" in card(browser, url)
        go_on.set()


def test_a_waiting_measurement_says_its_place(tmp_path: Path) -> None:
    with holding(tmp_path) as (browser, go_on):
        url = browser.ask("Describe it.")
        running(browser, measure(browser, url, method="direct"))
        measure(browser, url)
        assert "number 2 in the queue" in card(browser, url)
        go_on.set()


def test_a_failure_says_why_and_offers_to_try_again(tmp_path: Path) -> None:
    from app.tables import JobRow

    with holding(tmp_path) as (browser, go_on):
        go_on.set()
        url = browser.ask("Describe it.")
        job = measure(browser, url)
        ended(browser, job)
        with browser.services.database.write() as session:
            row = session.get_one(JobRow, job)
            row.state, row.error = "failed", "The engine stopped with <RuntimeError>."
        text = browser.http.get(f"{url}?fragment=trust").text
        assert "The engine stopped with &lt;RuntimeError&gt;." in text
        assert "Measure again" in text
        assert post(browser, url).status_code == 200
        assert ended(browser, job).result


def test_what_was_measured_is_shown_in_words_and_numbers(shared: Browser, measured: str) -> None:
    text = card(shared, measured)
    result = shared.data(measured)["measurements"]["faithfulness"]["result"]
    at = result["sizes"].index(50)
    words = (
        f"Ablating the 50 neurons ranked first lowers the log-probability from {_plain(result['whole'])} (dotted) to "
    )
    assert words + _plain(result["ranked"][at]) in text
    assert f"Spearman {result['spearman']:.2f}" in text
    assert "<strong>Yes.</strong>" in text
    figures = dict(re.findall(r'<script type="application/json" id="([\w-]+)">(.*?)</script>', text))
    curve, scatter = (json.loads(figures[name]) for name in ("trust-curve", "trust-scatter"))
    assert curve["data"][-1]["y"] == result["ranked"]
    assert curve["data"][-1]["x"] == result["sizes"]
    assert scatter["data"][1]["text"] == result["sample"]
    table = re.findall(r'<th scope="row">(\d+)</th><td class="figure">([^<]+)</td>', text)
    assert (str(result["sizes"][at]), _plain(result["ranked"][at])) in table
    assert "error 11 %" in text, "a tenth of what is lost is not in the scores"


def _plain(value: float) -> str:
    return f"{value:.3f}".replace("-", "−")


def test_the_noise_band_names_what_changes_place(shared: Browser, measured: str) -> None:
    text = card(shared, measured)
    first, second = shared.data(measured)["measurements"]["noise"]["result"]["bands"]
    assert "In bfloat16, 2 of the first 20 change place; scores differ by at most 1 % of the largest." in text
    for neuron in first["moved"]:
        assert f'<a href="{measured}?heat=neuron%3A{neuron}">{neuron}</a>' in text
    assert second["moved"] == []
    assert "In a batch of two, none of the first 20 changes place; the scores are the same to the last bit." in text


def test_the_export_holds_what_was_measured(shared: Browser, measured: str) -> None:
    data = shared.data(measured)["measurements"]
    assert data["faithfulness"]["state"] == data["noise"]["state"] == "done"
    assert data["faithfulness"]["method"] == "gradient"
    assert len(data["faithfulness"]["result"]["effects"]) == 100
    assert shared.data(shared.ask("Unmeasured?"))["measurements"] == {}


@pytest.mark.parametrize("method", ["direct", "pan"])
def test_scores_of_another_unit_are_compared_by_order_only(shared: Browser, url: str, method: str) -> None:
    assert "event: end" in shared.http.get(f"{url}/events?method={method}").text, "the ranking is there"
    ended(shared, measure(shared, url, method=method))
    text = card(shared, f"{url}?method={method}")
    assert f"scores of {method} have another unit" in text
    assert "On the line" not in text
    assert f"The noise band is defined for the method gradient only; this ranking was made by {method}." in text
    assert ">Measure noise band<" not in text


def test_a_steered_runs_noise_is_not_measured(browser: Browser) -> None:
    url = browser.ask("Describe it.")
    child = browser.turn(url, "pizza", -1)
    browser.settled(child)
    assert "look at the original run" in card(browser, child)
    assert ">Measure faithfulness<" in card(browser, child)
    refused = post(browser, child, "noise")
    assert refused.status_code == 422
    assert "measured without steering" in html.unescape(refused.text)


def test_what_cannot_be_measured_is_refused(shared: Browser, url: str) -> None:
    assert "There is no measurement “beauty”" in html.unescape(post(shared, url, "beauty").text)
    assert post(shared, url, "beauty").status_code == 422
    assert post(shared, url, span="0-99").status_code == 422
    assert post(shared, "/runs/nosuchrun").status_code == 404
    assert shared.http.post("/measurements/nosuchjob/cancel").status_code == 404


def test_a_run_without_an_answer_has_nothing_to_measure(slow: Browser) -> None:
    url = slow.ask("Describe it.", wait=False)
    assert post(slow, url).status_code == 422
    assert "The ranking comes first" in card(slow, url)


RESULT: dict[str, Any] = {
    "method": "gradient",
    "unit": "log-probability",
    "words": "log-probability",
    "whole": -0.02,
    "sizes": [1, 2, 5],
    "ranked": [-1.0, -2.0, -4.0],
    "random": [[-0.03, -0.04, -0.05], [-0.02, -0.02, -0.06]],
    "area": 2.0,
    "auc": 2.1,
    "spearman": 0.91,
    "sample": ["text.0.1", "text.0.2"],
    "scores": [1.0, 0.5],
    "effects": [0.9, 0.4],
    "total": 4.0,
    "emptied": 5.0,
    "completeness_error": 0.2,
}


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({}, "Yes.", "agrees with exact ablation (Spearman 0.91 over 2 neurons)"),
        ({"spearman": 0.8}, "Yes.", "agrees with"),
        ({"spearman": 0.79}, "With care.", "agrees roughly with"),
        ({"spearman": 0.2}, "With care.", "does not agree with exact ablation"),
        ({"ranked": [0.0, 0.0, -4.0]}, "With care.", "at 1 of 3 sizes"),
        ({"ranked": [0.0, 0.0, -0.06], "spearman": 0.49}, "No.", "at 0 of 3 sizes"),
    ],
)
def test_the_verdict_follows_the_stated_thresholds(changes: dict[str, Any], verdict: str, words: str) -> None:
    told = trust.judged(RESULT | changes)
    assert told["verdict"] == verdict
    assert words in told["because"]
    assert f"from {trust.AGREES} on: agrees; from {trust.ROUGHLY}: roughly" in trust.THRESHOLDS
    assert (trust.AGREES, trust.ROUGHLY) == (0.8, 0.5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "integrated"}, "do not: the error is 20 %, so take its scores for an order and not for amounts."),
        ({"method": "integrated", "completeness_error": 0.05}, "and do: the error is 5 %."),
        ({"method": "integrated", "completeness_error": None}, ""),
        ({}, ""),
    ],
)
def test_integrated_says_beside_its_verdict_whether_it_adds_up(changes: dict[str, Any], words: str) -> None:
    said = trust.judged(RESULT | changes)["because"]
    assert said.endswith(words or "at 3 of 3 sizes.")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "lowers the log-probability from −0.020 (dotted) to −4.000; 5 random: −0.055 (mean of 2 sets)."),
        ({"ranked": [0, 0, 0.5]}, "raises the log-probability from −0.020 (dotted) to 0.500"),
        ({"ranked": [0, 0, -0.02]}, "leaves the log-probability at −0.020"),
    ],
)
def test_the_curves_caption_says_what_happens(changes: dict[str, Any], words: str) -> None:
    assert words in trust.figures_of(RESULT | changes)[0].caption


def test_a_contrast_loses_a_difference(shared: Browser, url: str) -> None:
    target = {"span": "0-1", "against": " cat", "quantity": "logit"}
    here = f"{url}?{urlencode(target)}"
    assert post(shared, url, **target).status_code == 200
    text = until(lambda: card(shared, here), lambda card: 'class="verdict"' in card)
    assert re.search(r"neurons? ranked first (lowers|raises) the logit difference from ", text)
    assert re.search(r"<dt>AUC</dt><dd class=\"figure\">[−\d.]+ logits</dd>", text)
    assert "without any neuron the logit difference falls by" in text


def test_a_text_against_itself_has_no_order(shared: Browser, url: str) -> None:
    said = shared.data(url)["tokens"][0]["text"]
    query = urlencode({"span": "0-1", "against": said, "exact": "1"})
    until(lambda: shared.http.get(f"{url}.json?{query}"), lambda response: response.status_code == 200)
    text = card(shared, f"{url}?{query}")
    assert "Every score is zero: there is no order that could be judged." in text
    assert ">Measure faithfulness<" not in text
