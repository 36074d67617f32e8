"""Two people's runs through the worker, one steered and one clean, interleaved: each is what the engine says alone."""

from engine.contract import PLAIN, ConceptTurn, Question, Steering
from engine.fake import FakeEngine
from tests.app.conftest import Browser, until

TURNS = [
    ("penguin", 2.0, "all"),
    ("traffic light", -1.0, "all"),
    ("penguin", -2.0, "answer"),
    ("polar bear", 4.0, "all"),
]


def test_two_people_interleaved_are_as_in_sequence(browser: Browser) -> None:
    alone = FakeEngine()
    clean: list[tuple[str, list[int]]] = []
    steered: list[tuple[str, list[int], list[float]]] = []
    for number in range(50):
        name, lam, positions = TURNS[number % len(TURNS)]
        mine = Question(None, f"What is {number}?")
        parent = browser.ask(mine.text, wait=False)
        other = Question(None, f"Describe {number}.")
        clean.append((browser.ask(other.text, wait=False), [t.id for t in alone.ask(other).answer.tokens]))
        until(lambda url=parent: browser.state(url), lambda state: state == "done")
        ids = [token.id for token in alone.ask(mine).answer.tokens]
        steering = Steering((ConceptTurn(name, lam),), positions=positions)
        expected = alone.steer(mine, ids, steering)
        fields = {f"concept:{name}": str(lam), "positions": positions}
        child = browser.steer(parent, str(number), **fields)
        assert child.status_code == 200
        address = child.headers["HX-Replace-Url"].split("steer=")[1].split("&")[0]
        steered.append(
            (f"/runs/{address}", [t.id for t in expected.answer.tokens], list(expected.original_under_steered))
        )
    for url, tokens in clean:
        assert [token["id"] for token in browser.settled(url)["tokens"]] == tokens
    for url, tokens, _ in steered:
        assert [token["id"] for token in browser.settled(url)["tokens"]] == tokens
    assert len({tuple(tokens) for _, tokens, _ in steered}) > 1
    assert alone.steer(Question(None, "x"), [], PLAIN).n_neurons == 0
