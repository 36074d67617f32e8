"""What `gradient` costs on a model of 7B shape: LLaVA 1.5's, with random weights, made on the device from its
configuration in bfloat16. Nothing is downloaded.

    python tests/gpu/measure.py [--tiny] [--device cuda] [--rounds 10] [--json FILE]

Medians over rounds in shuffled order, one question of a picture (576 image positions), and an answer of 8 tokens:

- plain forward: vision tower, projector and decoder, nothing kept;
- gradient: scores of all neurons at all positions of all layers, the picture's features kept from the generation;
- decoder forward + backward: plain autograd of the same scalar with respect to the decoder's input embeddings;
- second target: `gradient` of another target of the same run.

Peak memory is what CUDA allocated at most beyond the weights; the activations themselves are n_layers · pos · d_mlp
numbers. `--tiny` is a small shape, for the CPU; there memory is not measured.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from engine.anatomy import find_anatomy
from engine.attribution.gradient import gradient
from engine.contract import Target
from engine.features import Inputs, embed, forward, picture_features
from engine.loading import Loaded, known_device
from engine.targets import scalar

IMAGE_ID, QUESTION, ANSWER = 32000, 40, 8
GOALS = {
    "gradient / plain forward": 1.3,
    "second target / decoder forward + backward": 1.2,
    "peak memory of gradient beyond a plain forward's, in activations": 3.0,
}


def config(tiny: bool) -> LlavaConfig:
    """LLaVA 1.5 7B's shape, or one of a few hundred thousand parameters."""
    side = 56 if tiny else 336
    vision = CLIPVisionConfig(
        hidden_size=32 if tiny else 1024, intermediate_size=48 if tiny else 4096, image_size=side, patch_size=14,
        num_hidden_layers=2 if tiny else 24, num_attention_heads=2 if tiny else 16,
    )  # fmt: skip
    text = LlamaConfig(
        vocab_size=32064, hidden_size=32 if tiny else 4096, intermediate_size=48 if tiny else 11008,
        num_hidden_layers=3 if tiny else 32, num_attention_heads=4 if tiny else 32, max_position_embeddings=4096,
        tie_word_embeddings=False,
    )  # fmt: skip
    return LlavaConfig(
        vision_config=vision, text_config=text, image_token_id=IMAGE_ID, image_seq_length=(side // 14) ** 2,
        tie_word_embeddings=False,
    )  # fmt: skip


def build(tiny: bool, device: str) -> Loaded:
    """The model on its device, as the engine takes it; there is no processor, so positions are laid out here."""
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = LlavaForConditionalGeneration._from_config(config(tiny), dtype=torch.bfloat16)
    model = model.eval().requires_grad_(False)
    return Loaded("random LLaVA", None, "", model, None, find_anatomy(model))


class Run:
    """One question with a picture, and the calls to be measured."""

    def __init__(self, loaded: Loaded) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = loaded.model.config
        side = shape.vision_config.image_size
        words = torch.randint(3, 1000, (QUESTION,), generator=generator)
        self.answer = torch.randint(3, 1000, (ANSWER,), generator=generator).tolist()
        picture = torch.full((shape.image_seq_length,), IMAGE_ID)
        self.ids = torch.cat([torch.tensor([1]), picture, words, torch.tensor(self.answer)])
        self.pixels = {"pixel_values": torch.randn(1, 3, side, side, generator=generator)}
        self.loaded = loaded
        self.features = picture_features(loaded, self.pixels)

    def inputs(self) -> Inputs:
        return embed(self.loaded, self.ids, self.features)

    @torch.no_grad()
    def plain_forward(self) -> None:
        forward(self.loaded, embed(self.loaded, self.ids, picture_features(self.loaded, self.pixels)), 1)

    def gradient(self) -> None:
        gradient(self.loaded, self.inputs(), self.answer, Target(0, ANSWER))

    def second_target(self) -> None:
        gradient(self.loaded, self.inputs(), self.answer, Target(ANSWER // 2, ANSWER // 2 + 1))

    def forward_and_backward(self) -> None:
        embeddings = self.loaded.anatomy.embedding(self.ids[None].to(self.loaded.device))
        at_image = (self.ids == IMAGE_ID).to(embeddings.device)[None, :, None]
        embeddings = embeddings.masked_scatter(at_image, self.features.features).requires_grad_(True)
        output = self.loaded.model(inputs_embeds=embeddings, use_cache=False, logits_to_keep=ANSWER + 1)
        scalar(output.logits[0, :-1], self.answer, "logprob").backward()

    def calls(self) -> dict[str, Callable[[], None]]:
        return {
            "plain forward": self.plain_forward,
            "gradient": self.gradient,
            "decoder forward + backward": self.forward_and_backward,
            "second target": self.second_target,
        }


def timed(call: Callable[[], None], cuda: bool) -> tuple[float, float]:
    """(milliseconds, MiB allocated at most beyond what was before; 0 on the CPU)."""
    before = 0
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    began = time.perf_counter()
    call()
    if cuda:
        torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before if cuda else 0
    return 1000 * (time.perf_counter() - began), peak / 2**20


def measure(run: Run, rounds: int) -> dict[str, float]:
    """All figures by name; two rounds of warm-up."""
    cuda = run.loaded.device.type == "cuda"
    calls = run.calls()
    times: dict[str, list[float]] = {name: [] for name in calls}
    peaks = dict.fromkeys(calls, 0.0)
    order, shuffled = list(calls), random.Random(0)
    for k in range(rounds + 2):
        shuffled.shuffle(order)
        for name in order:
            took, peak = timed(calls[name], cuda)
            if k >= 2:
                times[name].append(took)
                peaks[name] = max(peaks[name], peak)
    figures = {f"{name}, ms": statistics.median(values) for name, values in times.items()}
    for over, under in (("gradient", "plain forward"), ("second target", "decoder forward + backward")):
        figures[f"{over} / {under}"] = figures[f"{over}, ms"] / figures[f"{under}, ms"]
    if cuda:
        anatomy = run.loaded.anatomy
        activations = anatomy.n_layers * len(run.ids) * anatomy.d_mlp * 2 / 2**20
        figures |= {f"{name}, peak MiB": peak for name, peak in peaks.items()}
        figures["activations, MiB"] = activations
        figures["peak memory of gradient / plain forward"] = peaks["gradient"] / peaks["plain forward"]
        beyond = (peaks["gradient"] - peaks["plain forward"]) / activations
        figures["peak memory of gradient beyond a plain forward's, in activations"] = beyond
    return figures


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What gradient costs on a model of 7B shape.")
    parser.add_argument("--tiny", action="store_true", help="a small shape instead")
    parser.add_argument("--device", help="cuda where there is one")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    device = str(known_device(options.device))
    if device == "cpu" and not options.tiny:
        print("There is no CUDA device here, and 7B parameters are too many for the CPU. Try --tiny.", file=sys.stderr)
        return 2
    run = Run(build(options.tiny, device))
    figures = measure(run, options.rounds)
    n = run.loaded.model.num_parameters()
    print(f"random LLaVA, {n / 1e9:.2f} billion parameters, bfloat16 on {run.loaded.device}; {len(run.ids)} positions")
    for name, value in figures.items():
        print(f"  {name:66s} {value:9.2f}" + (f"  (goal ≤ {GOALS[name]})" if name in GOALS else ""))
    if device == "cpu":
        print("  peak memory: not measured on the CPU")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
