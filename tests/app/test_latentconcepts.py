"""Concepts in latents: what ships, what a job makes, and the pages that show it."""

import html
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from app import latentbuilding, latentconcepts
from app.library import SMALLEST
from app.tables import EvaluationPart, JobRow, LatentConcept, LatentMembership
from engine.concepts.evidence import Evidence
from engine.contract import Concept, Floats, Library, concepts, saes
from engine.fake_memberships import members_of
from engine.fake_saes import SHIPPED
from engine.fake_world import KINDS, OBJECTS
from tests.app.conftest import Browser, serving, until
from tests.app.owning import World, built, make, press, text_only
from tests.app.test_compare import queries

MADE = f"/saes/{SHIPPED.id}/concepts"


class Recording(World):
    """It remembers of which concepts' probes evidence was taken; after `free` concepts it waits for `go_on`."""

    def __init__(self, free: int = 1000) -> None:
        super().__init__()
        self.free, self.asked, self.go_on = free, list[str](), threading.Event()

    def latent_evidence(self, sae: str, probes: Sequence[Any], on_progress: Any = None, cancelled: Any = None) -> Any:
        while len(self.asked) >= self.free and not self.go_on.wait(0.005):
            on_progress(0, len(probes))
            super()._pause(cancelled)
        self.asked.append(probes[0].says)
        return super().latent_evidence(sae, probes, on_progress, cancelled)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Browser]:
    with serving(tmp_path, Recording) as opened:
        yield opened


def stored(browser: Browser, concept: str, sae: str = SHIPPED.id) -> dict[int, float]:
    chosen = select(LatentMembership.index, LatentMembership.mu)
    mine = (LatentMembership.sae_id == sae) & (LatentMembership.concept == concept)
    with browser.services.database.read() as session:
        return {row.index: row.mu for row in session.execute(chosen.where(mine))}


def post(browser: Browser, **fields: str) -> Any:
    return browser.http.post(MADE, data=fields, follow_redirects=False)


def job(browser: Browser) -> JobRow | None:
    with browser.services.database.read() as session:
        return latentbuilding.newest(session, [SHIPPED.id]).get(SHIPPED.id)


def ended(browser: Browser) -> JobRow:
    return until(lambda: job(browser), lambda row: row is not None and not row.live)  # type: ignore[no-any-return]


def section(text: str, name: str) -> str:
    found = re.search(rf'<section class="card" id="{name}".*?</section>', text, re.DOTALL)
    assert found, name
    return " ".join(html.unescape(found[0]).split())


# What ships


def test_what_ships_with_an_sae_is_copied_once(browser: Browser) -> None:
    for name in OBJECTS:
        mu = members_of(SHIPPED, name)[0]
        assert stored(browser, name) == {int(k): pytest.approx(float(mu[k])) for k in np.flatnonzero(mu >= SMALLEST)}
    known = Library("another", (Concept("lemon", "object", 3, np.eye(1, 96, 5, dtype=np.float32)),))
    with browser.services.database.write() as session:
        model = browser.services.worker.info.revision
        same = Library(f"latents-of-{SHIPPED.id}", tuple(Concept(n, "", 8, members_of(SHIPPED, n)) for n in OBJECTS))
        assert not latentconcepts.copy(session, model, SHIPPED.id, same)
        assert latentconcepts.copy(session, model, SHIPPED.id, known)
    assert stored(browser, "lemon") == {5: 1.0}
    assert len(stored(browser, "pizza")) > 1


def test_a_latents_page_lists_its_concepts_by_membership(shared: Browser) -> None:
    index = int(np.argmax(sum(members_of(SHIPPED, name)[0] for name in OBJECTS)))
    wanted = sorted((-float(members_of(SHIPPED, n)[0, index]), n) for n in OBJECTS if members_of(SHIPPED, n)[0, index])
    card = section(shared.http.get(f"/latents/fake-1/sae.{SHIPPED.name}.{index}").text, "latent-concepts")
    shown = re.findall(r'href="([^"]+)">([^<]+)</a>.*?class="figure" title="membership μ">([\d.]+)<', card)
    assert [(name, mu) for _, name, mu in shown] == [(name, f"{-mu:.2f}") for mu, name in wanted]
    assert f"It belongs to {len(wanted)} of {len(OBJECTS)} concepts." in card
    assert all(shared.http.get(href).status_code == 200 for href, _, _ in shown)


def test_a_latent_that_belongs_to_nothing_says_so(shared: Browser) -> None:
    free = int(np.flatnonzero(sum(members_of(SHIPPED, name)[0] for name in OBJECTS) == 0)[0])
    card = section(shared.http.get(f"/latents/fake-1/sae.{SHIPPED.name}.{free}").text, "latent-concepts")
    assert "none of the 6 concepts" in card


def test_a_concepts_page_lists_its_strongest_latents(shared: Browser) -> None:
    mu = members_of(SHIPPED, "pizza")[0]
    order = np.argsort(-mu, kind="stable")[: int((mu > 0).sum())]
    card = section(shared.http.get("/concepts/pizza").text, "concept-latents")
    assert re.findall(r">latent (\d+)</a>", card) == [str(k) for k in order]
    assert f"{len(order)} of 96 latents belong to it, {int((mu >= 0.5).sum())} of them by at least 0.5" in card
    assert "Find its latents" not in card
    missing = section(shared.http.get("/concepts/red").text, "concept-latents")
    assert "No latents can be found for it" in missing


def test_a_run_ranks_latents_with_the_concept_they_belong_to_most(shared: Browser) -> None:
    url = shared.ask()
    shared.http.post(f"{url}/latents", follow_redirects=True)
    text = until(lambda: shared.http.get(url).text, lambda text: "ranked-latents" in text)
    found = re.findall(r'aria-label="sae\.fake-residual-2\.(\d+)">\1</a>(.*?)</th>', text, re.DOTALL)
    assert found
    for index, rest in found:
        most = max((float(members_of(SHIPPED, n)[0, int(index)]), n) for n in OBJECTS)
        assert (f">{most[1]}<small>" in rest) == (most[0] > 0)
    assert any("chip" in rest for _, rest in found)


# What a job makes


def specific(engine: World, name: str, n: int) -> Floats:
    """Of one kind's evidence, by the formulas."""
    kind = dict(engine.world_concepts())[name]
    mean = {c: engine.latent_evidence(SHIPPED.id, engine.world_probes(c, n)).mean() for c in KINDS[kind]}
    others = [mean[c] for c in KINDS[kind] if c != name]
    own = np.maximum(mean[name] - np.mean(others, axis=0, dtype=np.float32), 0) if others else mean[name]
    return concepts.fuzzy.linear(own, saes.LATENT_QUANTILE)


def test_all_that_lack_memberships_get_them(world: Browser) -> None:
    page = section(world.http.get("/saes").text, "memberships")
    lacking = [name for names in KINDS.values() for name in names if name not in OBJECTS]
    assert f"Memberships in 6 concepts. {len(lacking)} concepts with probes lack them" in page
    assert f"{24 * len(lacking)} probes of {len(lacking)} concepts" in page
    assert post(world, probes="5").headers["location"] == "/saes#memberships"
    row = ended(world)
    assert row.state == "done", row.error
    assert row.result
    assert row.result["concepts"] == len(lacking)
    assert row.total == 5 * len(lacking)
    for name in ("red", "two"):
        mu = specific(World(), name, 5)[0]
        assert stored(world, name) == {int(k): pytest.approx(float(mu[k])) for k in np.flatnonzero(mu >= SMALLEST)}
    page = section(world.http.get("/saes").text, "memberships")
    assert f"Memberships in {6 + len(lacking)} concepts." in page
    assert "Make memberships" not in page
    assert post(world).status_code == 422
    with world.services.database.read() as session:
        assert not session.scalars(select(EvaluationPart)).all()


def test_what_was_stopped_goes_on_between_concepts(tmp_path: Path) -> None:
    engine = Recording(free=2)
    with serving(tmp_path, lambda: engine) as browser:
        post(browser, probes="3")
        until(lambda: len(engine.asked), lambda n: n == 2)
        until(lambda: job(browser), lambda row: row is not None and row.done == 6)
        page = section(browser.http.get("/saes").text, "memberships")
        assert 'hx-trigger="every 1s"' in page
        assert "6 of 18 probes" in page
        assert post(browser).status_code == 422
        cancel = re.search(r'action="([^"]+/cancel)"', page)
        assert cancel
        assert browser.http.post(cancel[1], follow_redirects=False).status_code == 303
        assert ended(browser).state == "cancelled"
        assert "started again, it goes on from there" in section(browser.http.get("/saes").text, "memberships")
        assert not stored(browser, "red")
        engine.free = 1000
        post(browser, probes="3")
        assert ended(browser).state == "done"
        assert len(engine.asked) == len(set(engine.asked)) == 6
        mu = specific(World(), "red", 3)[0]
        assert stored(browser, "red") == {int(k): pytest.approx(float(mu[k])) for k in np.flatnonzero(mu >= SMALLEST)}


def test_an_own_concept_gets_its_latents_from_its_page(browser: Browser) -> None:
    url = make(browser, files=text_only(6))
    built(browser, url)
    page = section(browser.http.get("/concepts/my red").text, "concept-latents")
    assert "not made yet" in page
    assert "6 probes of 1 concept" in page
    assert post(browser, concept="my red").headers["location"] == "/concepts/my%20red#concept-latents"
    assert ended(browser).state == "done"
    probes = [concepts.probes.Probe(None, f"Which colour has thing {k}?", "a red thing", "red") for k in range(6)]
    mean: Evidence = browser.services.worker._factory().latent_evidence(SHIPPED.id, probes)
    mu = mean.memberships("linear", saes.LATENT_QUANTILE)[0]
    assert stored(browser, "my red") == {int(k): pytest.approx(float(mu[k])) for k in np.flatnonzero(mu >= SMALLEST)}
    page = section(browser.http.get("/concepts/my red").text, "concept-latents")
    assert "Made of 6 probes in mode raw" in page
    assert "out of date" not in page
    browser.http.post(f"{url}/probes", files=text_only(9))
    built(browser, url)
    page = section(browser.http.get("/concepts/my red").text, "concept-latents")
    assert "out of date" in page
    assert "Find its latents" in page
    press(browser, url, "delete")


@pytest.mark.parametrize(("fields", "words"), [
    ({"probes": "0"}, "between 1 and 200"), ({"probes": "many"}, "between 1 and 200"),
    ({"concept": "pizza"}, "nothing to make"), ({"concept": "no such"}, "nothing to make"),
])  # fmt: skip
def test_what_cannot_be_made_is_refused(world: Browser, fields: dict[str, str], words: str) -> None:
    response = post(world, **fields)
    assert response.status_code == 422
    assert words in response.text
    assert job(world) is None


def test_unknown_saes_and_jobs_are_refused(world: Browser) -> None:
    assert world.http.post("/saes/none/concepts").status_code == 422
    assert world.http.post(f"{MADE}/none/cancel").status_code == 422


def test_an_sae_that_is_gone_fails_the_job_and_says_so(tmp_path: Path) -> None:
    class Gone(Recording):
        def latent_evidence(self, sae: str, *args: Any, **kwargs: Any) -> Any:
            return super().latent_evidence("none", *args, **kwargs)

    with serving(tmp_path, Gone) as browser:
        post(browser, probes="2")
        row = ended(browser)
        assert row.state == "failed"
        assert html.escape(row.error[:20], quote=True) in browser.http.get("/saes").text
        assert "Make memberships" in browser.http.get("/saes").text


def test_a_library_for_other_weights_is_passed_over(tmp_path: Path) -> None:
    from engine.contract import ModelRefused

    class Other(World):
        def latent_library(self, sae: str) -> Library:
            raise ModelRefused("It was built for another.")

    with serving(tmp_path, Other) as browser:
        assert not stored(browser, "pizza")
        assert browser.services.worker.state == "ready"


def test_pages_take_a_fixed_number_of_queries(world: Browser) -> None:
    path = f"/latents/fake-1/sae.{SHIPPED.name}.3"
    until(lambda: world.http.get(path).text, lambda text: "Reading the weights" not in text)
    for url in (path, "/concepts/pizza", "/saes"):
        before = queries(world, lambda url=url: world.http.get(url))  # type: ignore[misc]
        mine = [one for one in before if "latent_memberships" in one or "latent_concepts" in one]
        assert 1 <= len(mine) <= 2, mine
        with world.services.database.write() as session:
            for k in range(40):
                name, mu = f"more {url} {k}", np.full(96, 0.5, np.float32)
                latentconcepts.store(session, SHIPPED.id, name, "x", {}, mu)
        assert len(queries(world, lambda url=url: world.http.get(url))) <= len(before)  # type: ignore[misc]


def test_two_saes_are_apart(browser: Browser) -> None:
    with browser.services.database.write() as session:
        latentconcepts.store(session, "other", "pizza", "x", {"probes": 1, "mode": "raw"}, np.eye(1, 96, 2)[0])
        latentconcepts.store(session, "other", "pizza", "y", {"probes": 1, "mode": "raw"}, np.eye(1, 96, 3)[0])
        assert session.get_one(LatentConcept, ("other", "pizza")).fingerprint == "y"
        assert latentconcepts.of_latent(session, "other", 3) == [("pizza", 1.0)]
        assert latentconcepts.of_latent(session, "other", 2) == []
        assert latentconcepts.strongest(session, "other", [2, 3]) == {3: ("pizza", 1.0, 0)}
        for name in ("apple", "zebra", "half"):
            latentconcepts.store(session, "other", name, "x", {}, np.eye(1, 96, 3)[0] * (0.5 if name == "half" else 1))
        assert latentconcepts.strongest(session, "other", [3]) == {3: ("apple", 1.0, 2)}
        assert latentconcepts.strongest(session, "other", [3], ["half", "zebra", "pizza"]) == {3: ("zebra", 1.0, 2)}
        assert set(latentconcepts.of_concept(session, ["other", SHIPPED.id], "pizza")) == {"other", SHIPPED.id}
        assert latentconcepts.counts(session, ["other"]) == {"other": 4}
