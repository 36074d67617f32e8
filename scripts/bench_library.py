"""`make bench`, third part: pages of a large library, from the database alone.

A generated library of 500 concepts over 5,000 neurons, a survey of them and their tokens; the server's time for the
HTML of each page, without a browser, and the processor's time for it (of the whole process, the client too), which a
busy machine changes less. Medians.

    python scripts/bench_library.py [--times 20] [--json FILE]
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from fastapi.testclient import TestClient

sys.path.insert(0, str(Path(__file__).parent.parent))

from app import longjobs, neuronqueries, surveying
from app.arrays import pack
from app.library import copy
from app.main import create_app
from app.neurons import look_params
from app.settings import Settings
from app.tables import JobRow, now
from engine.contract import Concept, Library, Question
from engine.fake import FakeEngine

CONCEPTS, LAYERS, WIDTH = 500, 5, 1000
REVISION, MEMBERS = "fake-1", 250
CLOCKS = {"time": time.perf_counter, "processor": time.process_time}
PLACE = neuronqueries.Place(REVISION, 2, 7)


class Wide(FakeEngine):
    """A model of 5,000 neurons that knows the generated library."""

    def library(self) -> Library:
        rng = np.random.default_rng(0)
        concepts = []
        for k in range(CONCEPTS):
            memberships = np.zeros(LAYERS * WIDTH, np.float32)
            members = rng.choice(memberships.size, MEMBERS, replace=False)
            memberships[members] = rng.uniform(0.02, 1, MEMBERS)
            memberships[PLACE.layer * WIDTH + PLACE.index] = rng.uniform(0.02, 1)
            concepts.append(Concept(f"concept {k}", "object", 8, memberships.reshape(LAYERS, WIDTH)))
        return Library("generated", tuple(concepts))


def fill(client: TestClient) -> None:
    """The library, a survey, what was looked up of one neuron, and everybody's tokens."""
    services = client.app.state.services  # type: ignore[attr-defined]
    engine = Wide()
    questions = [Question(None, f"what is number {k}?", 1) for k in range(200)]
    found = engine.survey(questions)
    name = surveying.keep(services.store, np.resize(found.neurons, LAYERS * WIDTH))
    survey = {
        "file": name, "shape": [LAYERS, WIDTH], "cases": [[None, one.text, ""] for one in questions],
        "tokens": [[list(token) for token in tokens] for tokens in found.tokens], "positions": [0, 1000],
        "scenes": 200, "refused": 0,
    }  # fmt: skip
    lens = engine.lens(2, 7)
    looked = {
        "promoted": [{"text": t.text, "id": t.id, "value": t.value} for t in lens.promoted],
        "suppressed": [{"text": t.text, "id": t.id, "value": t.value} for t in lens.suppressed],
        "alike": [list(pair) for pair in lens.alike], "notes": [], "grids": [],
    }  # fmt: skip
    ids = np.random.default_rng(0).integers(0, 30_000, (LAYERS, WIDTH, 5)).astype(np.float32)
    texts = {str(token): f" token{token}" for token in range(30_000)}
    jobs: list[tuple[str, dict[str, object], dict[str, object], bytes | None]] = [
        ("survey", {"model_revision": REVISION, "scenes": 200, "runs": 0}, survey, None),
        ("neuron", look_params(PLACE, survey), looked, pack({})),
        ("promotions", {"model_revision": REVISION}, {"texts": texts}, pack({"ids": ids, "values": ids})),
    ]
    with services.database.write() as session:
        copy(session, REVISION, engine.library())
        for k, (kind, params, result, arrays) in enumerate(jobs):
            session.add(
                JobRow(
                    id=f"made{k}", identity=longjobs.identity(kind, None, params), kind=kind, params=params,
                    state="done", result=result, arrays=arrays, started=now(), finished=now(), total=200, done=200,
                )
            )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    paths = {
        "a neuron's page": PLACE.path,
        "search by name": "/search?q=concept%201",
        "search by token": "/search?q=token77",
        "list of concepts": "/concepts",
        "a concept's page": "/concepts/concept%207",
        "all concepts beside one another": "/concepts/similar",
        "… by inclusion": "/concepts/similar?of=inclusion",
    }
    medians: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        app = create_app(Settings(model="fake", data_dir=Path(folder)), Wide)
        with TestClient(app, base_url="http://localhost") as client:
            while client.app.state.services.worker.state != "ready":  # type: ignore[attr-defined]
                time.sleep(0.1)
            fill(client)
            for what, path in paths.items():
                taken: dict[str, list[float]] = {clock: [] for clock in CLOCKS}
                for _ in range(chosen.times + 1):
                    began = {clock: now_by() for clock, now_by in CLOCKS.items()}
                    response = client.get(path)
                    for clock, now_by in CLOCKS.items():
                        taken[clock].append(1000 * (now_by() - began[clock]))
                    assert response.status_code == 200, (what, response.status_code)
                medians[what] = {clock: statistics.median(times[1:]) for clock, times in taken.items()}
    print(f"A library of {CONCEPTS} concepts over {LAYERS * WIDTH:,} neurons, from the database (ms):")
    print(f"  {'':<34} " + " ".join(f"{clock:>9}" for clock in CLOCKS))
    for what, times in medians.items():
        print(f"  {what:<34} " + " ".join(f"{times[clock]:9.0f}" for clock in CLOCKS))
    if chosen.json:
        chosen.json.write_text(json.dumps(medians, indent=1))


if __name__ == "__main__":
    main()
