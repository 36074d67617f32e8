"""SAEs on every family of models: each site is what is written to the stream, and a faultless SAE changes nothing."""

import numpy as np
import pytest
import torch

from engine.contract import Question, Target, saes
from engine.features import embed
from engine.hooks import capture_writes, count_hooks
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.prompts import build_prompt
from engine.running import forward, picture_features, with_answer
from engine.sae.activations import at_site
from engine.sae.sae import Sae, make
from tests.engine import tiny
from tests.engine.families import kits, seeing

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # PaliGemma's processor

ANSWER = [700, 701]
FAMILIES = {**kits.TEXT, **seeing.SEEING}


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return kits.make(tmp_path_factory.mktemp(request.param), FAMILIES[request.param]())


def faultless(loaded: Loaded, layer: int, site: str) -> Sae:
    """H = ReLU(±Z): Ẑ = Z."""
    both = torch.cat([torch.eye(loaded.anatomy.d_model), -torch.eye(loaded.anatomy.d_model)])
    tensors = {"W_enc": both.T, "W_dec": both, "b_enc": torch.zeros(len(both)), "b_dec": torch.zeros(both.shape[1])}
    return make(saes.SaeInfo("", f"both-{site}", layer, site, "standard", 0, 0, None, "", ""), tensors)


def test_the_sites_and_what_stands_there(family: Loaded) -> None:
    question = Question(tiny.picture(height=60, width=80) if family.sees else None, "what is on the left?", 3)
    engine = LocalEngine(family)
    prompt = build_prompt(family, question)
    seen = picture_features(family, prompt.pixels) if family.sees else None
    inputs = embed(family, with_answer(prompt, ANSWER), seen)
    with torch.no_grad(), capture_writes(family.anatomy) as writes:
        forward(family, inputs, 1)
    own = engine.attribute(question, ANSWER, Target(), "direct").explained
    assert own == tuple(ANSWER)
    value = engine.attribute(question, ANSWER, Target()).value
    for site in saes.SITES:
        if site != "residual":
            found, expected = at_site(family, inputs, 1, site), writes[site][1]
            assert (found - expected.float()).abs().max() < 1e-4 * float(expected.abs().max())
        sae = faultless(family, 1, site)
        engine._standing = {sae.info.name: sae}
        for keep in (True, False):
            result = engine.latent_influence(question, ANSWER, sae.info.name, saes.Settings(keep_error=keep), top=5)
            assert result.value == pytest.approx(value, abs=1e-3)
            assert result.fit.explained_variance == pytest.approx(1, abs=1e-4)
            assert (result.heat is None) == (not family.sees)
        assert result.influence.max() > 0
        best = result.latents[0]
        lost = engine.latent_ablation(question, ANSWER, sae.info.name, [best.index])
        assert np.isfinite(lost).all()
        assert lost[0] != 0
    assert count_hooks(family.model) == 0
