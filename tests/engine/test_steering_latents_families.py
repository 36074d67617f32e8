"""Steering by latents on families of other builds: flat MLPs, post-norms, blocks side by side, models that see."""

import pytest
import torch

from engine.contract import LatentTurn, Question, Steering, Target, saes
from engine.features import embed
from engine.local import LocalEngine
from engine.prompts import build_prompt
from engine.running import answer_ids, forward, picture_features, with_answer
from engine.sae.activations import first_position
from tests.engine import tiny
from tests.engine.families import kits, seeing
from tests.engine.test_sae_influence import N, random_sae, sigma, standing

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # PaliGemma's processor

ANSWER = [700, 701]
TURNED = (3, 7, 11)


@pytest.mark.parametrize("site", saes.SITES)
@pytest.mark.parametrize("name", ["gemma2", "gpt2", "cohere", "blip2", "qwen3_vl", "paligemma"])
def test_it_equals_a_plain_hook_at_each_site(name: str, site: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every tenth latent is scaled and three are added to; whole passes and cached generation."""
    made = {**kits.TEXT, **seeing.SEEING}[name]
    loaded = kits.make(tmp_path_factory.mktemp(name), made())
    engine, anatomy = LocalEngine(loaded), loaded.anatomy
    sae = random_sae(loaded, 1, site, "jumprelu")
    question = Question(tiny.picture() if loaded.sees else None, "what is this?", 4)
    prompt = build_prompt(loaded, question)
    first = first_position(loaded, prompt)

    def hook(_module: torch.nn.Module, _args: object, result: object) -> object:
        given = result[0] if isinstance(result, tuple) else result
        assert isinstance(given, torch.Tensor)
        Z = given.reshape(-1, given.shape[-1])
        H = sigma(sae, Z)
        more = torch.zeros_like(H)
        more[:, ::10] = H[:, ::10] * 2
        more[:, TURNED] += 2.5
        more[:first] = 0
        changed = (Z + more @ sae.W_dec).reshape(given.shape)
        return (changed, *result[1:]) if isinstance(result, tuple) else changed

    inputs = embed(
        loaded, with_answer(prompt, ANSWER), picture_features(loaded, prompt.pixels) if loaded.sees else None
    )
    handle = anatomy.site(1, site).register_forward_hook(hook)
    try:
        with torch.no_grad():
            expected = forward(loaded, inputs, 3)[0, :-1].log_softmax(-1)[[0, 1], ANSWER].tolist()
    finally:
        handle.remove()
    scaled = tuple(LatentTurn(sae.info.name, c, "scale", 3.0) for c in range(0, N, 10))
    steering = Steering(latents=(*scaled, *(LatentTurn(sae.info.name, c, "add", 2.5) for c in TURNED)))
    with standing(engine, sae):
        steered = engine.steer(question, ANSWER, steering)
        plain = engine.attribute(question, ANSWER, Target(), top=1).value
        asked = engine.ask(question, steering=steering, top=1)
        one, _ = engine.sweep(question, ANSWER, steering, scaled[0], (3.0, -3.0))
        (answer,) = engine.answers([(question, steering)])
    assert list(steered.original_under_steered) == pytest.approx(expected, rel=1e-5, abs=2e-5)
    assert abs(sum(expected) - plain) > 1e-4
    assert asked.attribution.value == pytest.approx(sum(token.logprob for token in asked.answer.tokens), abs=1e-3)
    assert list(one.ids) == answer_ids(asked.answer) == answer_ids(answer) == answer_ids(steered.answer)
    assert one.original == pytest.approx(sum(expected), abs=1e-4)
    assert tiny.all_hooks(loaded.model) == 0
