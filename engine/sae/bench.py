"""What influence costs:  python -m engine.sae.bench

Influence of all latents at all positions against a plain forward pass with the SAE in place (Ẑ in place of Z), both on
prompt + answer of the same questions, teacher-forced; medians of alternating runs.
"""

import statistics
import time

import torch

from engine.contract import PLAIN, Question, saes
from engine.local import LocalEngine, load_engine
from engine.sae.activations import world
from engine.sae.influence import standing

RUNS, PICTURES = 12, 4


def measure(engine: LocalEngine, runs: int = RUNS) -> tuple[float, float]:
    """Median seconds of (a plain forward with the SAE in place, influence with heat maps of the first 50 of each
    order)."""
    name = engine.saes()[0].name
    cases = []
    for one in world("bench", 0, PICTURES):
        question = Question(one.picture, one.questions[0][0], 16)
        cases.append((question, [token.id for token in engine.latent_answers(question, name, [[]])[0].tokens]))
    plain: list[float] = []
    whole: list[float] = []
    settings = saes.Settings(keep_error=False)
    for run in range(runs):
        question, ids = cases[run % len(cases)]
        case = engine._case(question, ids, name, settings, PLAIN)
        began = time.perf_counter()
        with torch.no_grad():
            case.run(standing(case.sae, settings, case.first))
        middle = time.perf_counter()
        engine.latent_influence(question, ids, name)
        plain.append(middle - began)
        whole.append(time.perf_counter() - middle)
    return statistics.median(plain), statistics.median(whole)


def main() -> None:
    """Print both, and their ratio."""
    torch.set_num_threads(1)
    plain, whole = measure(load_engine())
    print(f"plain forward with the SAE in place {1000 * plain:.1f} ms")
    print(f"influence of all latents at all positions {1000 * whole:.1f} ms: {whole / plain:.2f} × (at most 3)")


if __name__ == "__main__":
    main()
