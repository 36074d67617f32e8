"""`make bench`: what Sfumato's work costs, as ratios in one run against plain calls of the same model.

Every round runs each contender once, in a shuffled order, so that a noisy machine disturbs all alike; medians over the
rounds are compared. The picture is new to the engine each time (its feature cache is emptied), as a plain call also
runs the processor and the vision tower. Then 200 identical asks: is memory flat, is no hook left?

    python -m engine.bench [--rounds 30] [--asks 200] [--model builtin] [--json FILE]
"""

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from engine.attribution.gradient import gradient
from engine.builtin import scenes
from engine.contract import PLAIN, ConceptTurn, NeuronTurn, Question, Steering, Target
from engine.hooks import count_hooks
from engine.local import LocalEngine, load_engine
from engine.prompts import build_prompt
from engine.running import FeatureCache, answer_ids, embed, forward, picture_features, with_answer

QUESTION = "what is on the left?"
LIMITS = {
    "ask, gradient / plain generate": 1.8,
    "ask, direct / plain generate": 1.15,
    "steered generate / plain generate": 1.1,
    "gradient for all neurons / plain forward": 1.5,
}


def _picture() -> Any:
    rng = random.Random("bench")
    return scenes.render(scenes.make_scene(rng, ["traffic light", "pizza"])).pixels


def contenders(engine: LocalEngine) -> dict[str, Callable[[], Any]]:
    """The calls to time, by name."""
    loaded = engine.loaded
    question = Question(_picture(), QUESTION)
    prompt = build_prompt(loaded, question)
    ids = prompt.ids[None].to(loaded.device)
    pixels = {name: value.to(loaded.device) for name, value in prompt.pixels.items()}
    picture = Image.fromarray(_picture())
    words = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]}]
    answer = engine.ask(question).answer
    whole = with_answer(prompt, answer_ids(answer))
    names = [concept.name for concept in engine.library().concepts]
    steering = (
        Steering((ConceptTurn(names[0], -0.5),)) if names else Steering(neurons=(NeuronTurn(0, 0, "scale", 0.5),))
    )

    def forget() -> None:
        engine._features = FeatureCache()

    @torch.no_grad()
    def plain_generate() -> None:
        text = loaded.processor.apply_chat_template(words, tokenize=False, add_generation_prompt=True)
        inputs = loaded.processor(images=picture, text=text, return_tensors="pt", add_special_tokens=False)
        assert torch.equal(inputs["input_ids"], ids)
        inputs.pop("token_type_ids", None)
        loaded.model.generate(**inputs.to(loaded.device), max_new_tokens=question.max_new_tokens)

    @torch.no_grad()
    def ready_generate() -> None:
        loaded.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=question.max_new_tokens, **pixels
        )

    @torch.no_grad()
    def plain_forward() -> None:
        forward(loaded, embed(loaded, whole, picture_features(loaded, prompt.pixels)), 1)

    def all_neurons() -> None:
        embeddings = embed(loaded, whole, picture_features(loaded, prompt.pixels))
        gradient(loaded, embeddings, answer_ids(answer), Target())

    def decoder_forward() -> None:
        with torch.no_grad():
            forward(loaded, embed(loaded, whole, features), 1)

    def decoder_gradient() -> None:
        gradient(loaded, embed(loaded, whole, features), answer_ids(answer), Target())

    features = picture_features(loaded, prompt.pixels)

    def ask(method: str, steered: Steering = PLAIN) -> Callable[[], None]:
        def call() -> None:
            forget()
            engine.ask(question, method=method, steering=steered)

        return call

    def steered_generate() -> None:
        forget()
        engine.generate_only(question, steering)

    return {
        "plain generate": plain_generate,
        "generate, tensors ready": ready_generate,
        "plain forward": plain_forward,
        "decoder forward": decoder_forward,
        "decoder gradient": decoder_gradient,
        "gradient for all neurons": all_neurons,
        "ask, gradient": ask("gradient"),
        "ask, direct": ask("direct"),
        "steered generate": steered_generate,
        "steer, both answers scored": lambda: engine.steer(question, answer_ids(answer), steering),
    }


def measure(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each call in each round, after two rounds of warm-up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    rng = random.Random(0)
    for k in range(rounds + 2):
        rng.shuffle(order)
        for name in order:
            began = time.perf_counter()
            calls[name]()
            if k >= 2:
                times[name].append(1000 * (time.perf_counter() - began))
    return times


def resident_mib() -> float:
    """This process's resident memory in MiB (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def soak(engine: LocalEngine, asks: int, warm_up: int = 20) -> dict[str, float]:
    """`asks` identical asks with attribution: resident memory after the warm-up and at the end, and the most hooks ever
    left on the model between two of them."""
    question = Question(_picture(), QUESTION)
    most = 0
    for _ in range(warm_up):
        engine.ask(question)
    before = resident_mib()
    for _ in range(asks):
        engine.ask(question)
        most = max(most, count_hooks(engine.loaded.model))
    return {"asks": asks, "MiB after warm-up": before, "MiB at the end": resident_mib(), "most hooks between": most}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--asks", type=int, default=200, help="identical asks of the memory test (0: none)")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    engine = load_engine(arguments.model)
    times = measure(contenders(engine), arguments.rounds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    info = engine.info()
    print(f"engine, {info.name} on {info.device}, {torch.get_num_threads()} threads, medians of {arguments.rounds}")
    for name, value in medians.items():
        print(f"  {name:28s} {value:8.1f} ms")
    ratios = {}
    pairs = [*(tuple(key.split(" / ")) for key in LIMITS), ("decoder gradient", "decoder forward")]
    pairs += [(name, "generate, tensors ready") for name in ("ask, gradient", "ask, direct", "steered generate")]
    for over, under in pairs:
        key = f"{over} / {under}"
        ratios[key] = medians[over] / medians[under]
        limit = LIMITS.get(key)
        print(f"  {key:44s} {ratios[key]:5.2f}×" + (f"  (goal ≤ {limit}×)" if limit else ""))
    report: dict[str, Any] = {"median_ms": medians, "ratios": ratios}
    if arguments.asks:
        report["soak"] = soak(engine, arguments.asks)
        print("  " + ", ".join(f"{name} {value:.0f}" for name, value in report["soak"].items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
