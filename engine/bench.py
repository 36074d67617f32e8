"""`make bench`: what Sfumato's work costs, as ratios in one run against plain calls of the same model.

Every round runs each contender once, in a shuffled order, so that a noisy machine disturbs all alike; medians over the
rounds are compared. The picture is new to the engine each time (its feature cache is emptied), as a plain call also
runs the processor and the vision tower; the calls named *decoder* get the features that are kept of it. Then the peak
memory of `gradient` against a plain forward pass, and 200 identical asks: is memory flat, is no hook left? Last, where
they are installed, nnsight and captum beside `gradient` (see `engine.bench_peers`).

    python -m engine.bench [--rounds 30] [--asks 200] [--model builtin] [--json FILE]
"""

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.profiler import ProfilerActivity, profile

from engine import bench_peers, bench_steering
from engine.attribution.gradient import gradient
from engine.contract import PLAIN, ConceptTurn, NeuronTurn, Question, Steering, Target
from engine.hooks import count_hooks
from engine.local import LocalEngine, load_engine
from engine.prompts import build_prompt
from engine.running import answer_ids, embed, forward, picture_features, with_answer

QUESTION = "what is on the left?"
LIMITS = {
    "ask, gradient / plain generate": 1.8,
    "ask, direct / plain generate": 1.15,
    "steered generate / plain generate": 1.05,
    "sweep of 13 values / plain generate": 3.0,
    "gradient for all neurons / plain forward": 1.3,
    "decoder gradient / plain forward": 1.3,
    "second target / decoder forward and backward": 1.2,
}
PAIRS = [
    *((over, under) for over, _, under in (key.partition(" / ") for key in LIMITS)),
    ("decoder gradient", "decoder forward"),
    *bench_steering.PAIRS,
    *((name, "generate, tensors ready") for name in ("ask, gradient", "ask, direct", "steered generate")),
]
GRAPH_LIMIT = 3.0
"""Most that `gradient` may hold beyond a plain forward pass, in sizes of all layers' activations in float32."""


def _picture() -> Any:
    return bench_steering.picture()


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

    def decoder_gradient() -> list[torch.Tensor]:
        return gradient(loaded, embed(loaded, whole, features), answer_ids(answer), Target()).scores

    def second_target() -> None:
        engine.attribute(question, answer_ids(answer), Target(0, 1))

    features = picture_features(loaded, prompt.pixels)
    inputs = embed(loaded, whole, features)

    def ask(method: str, steered: Steering = PLAIN) -> Callable[[], None]:
        def call() -> None:
            engine.forget()
            engine.ask(question, method=method, steering=steered)

        return call

    def steered_generate() -> None:
        engine.forget()
        engine.generate_only(question, steering)

    return {
        "plain generate": plain_generate,
        "generate, tensors ready": ready_generate,
        "plain forward": plain_forward,
        "decoder forward": decoder_forward,
        "decoder forward and backward": bench_peers.forward_and_backward(loaded, inputs, answer_ids(answer)),
        "decoder gradient": decoder_gradient,
        "second target": second_target,
        "gradient for all neurons": all_neurons,
        "ask, gradient": ask("gradient"),
        "ask, direct": ask("direct"),
        "steered generate": steered_generate,
        "steer, both answers scored": lambda: engine.steer(question, answer_ids(answer), steering),
        **bench_steering.contenders(engine, question, steering),
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


def peak_bytes(call: Callable[[], Any], device: str) -> int:
    """The most that torch holds at once while `call` runs, beyond what it held before; its result is kept."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        _kept = call()
        return int(torch.cuda.max_memory_allocated(device)) - int(before)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        _kept = call()
    assert seen.profiler is not None
    assert seen.profiler.kineto_results is not None
    events = seen.profiler.kineto_results.events()
    changes = sorted((int(event.start_ns()), int(event.nbytes())) for event in events if event.name() == "[memory]")
    return max(accumulate((change for _, change in changes), initial=0))


def memory(engine: LocalEngine, calls: dict[str, Callable[[], Any]], rounds: int = 3) -> dict[str, float]:
    """Peak MiB of a plain forward pass and of `gradient`, the size of all activations in float32, and how many such
    sizes `gradient` needs beyond the plain pass."""
    prompt = build_prompt(engine.loaded, Question(_picture(), QUESTION))
    answer = engine.ask(Question(_picture(), QUESTION)).answer
    anatomy = engine.loaded.anatomy
    size = 4 * anatomy.n_layers * anatomy.d_mlp * (prompt.length + len(answer.tokens))
    device = str(engine.loaded.device)
    plain, ours = (
        min(peak_bytes(calls[name], device) for _ in range(rounds))
        for name in ("plain forward", "gradient for all neurons")
    )
    return {
        "plain forward MiB": plain / 2**20,
        "gradient MiB": ours / 2**20,
        "activations MiB": size / 2**20,
        "beyond it, in activations": (ours - plain) / size,
    }


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


def beside(engine: LocalEngine, calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, dict[str, float]]:
    """Each installed peer, timed beside our own calls of the decoder: its ratio to a forward pass and to `gradient`,
    and its largest difference to `gradient`'s scores. Timed last, for nnsight wraps the model's own methods."""
    loaded, question = engine.loaded, Question(_picture(), QUESTION)
    prompt = build_prompt(loaded, question)
    ids = answer_ids(engine.ask(question).answer)
    inputs = embed(loaded, with_answer(prompt, ids), picture_features(loaded, prompt.pixels))
    own = ("decoder forward", "decoder gradient")
    peers = bench_peers.peers(loaded, inputs, ids)
    times = measure({**{name: calls[name] for name in own}, **peers}, rounds if peers else 0)
    return {
        name: {
            **{f"/ {under}": statistics.median(times[name]) / statistics.median(times[under]) for under in own},
            "difference": bench_peers.disagreement(call(), calls["decoder gradient"]()),
        }
        for name, call in peers.items()
    }


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
    calls = contenders(engine)
    times = measure(calls, arguments.rounds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    info = engine.info()
    print(f"engine, {info.name} on {info.device}, {torch.get_num_threads()} threads, medians of {arguments.rounds}")
    for name, value in medians.items():
        print(f"  {name:28s} {value:8.1f} ms")
    ratios = {}
    for over, under in PAIRS:
        key = f"{over} / {under}"
        ratios[key] = medians[over] / medians[under]
        limit = LIMITS.get(key)
        print(f"  {key:54s} {ratios[key]:5.2f}×" + (f"  (goal ≤ {limit}×)" if limit else ""))
    held = memory(engine, calls)
    print("  " + ", ".join(f"{name} {value:.2f}" for name, value in held.items()) + f"  (goal ≤ {GRAPH_LIMIT})")
    report: dict[str, Any] = {"median_ms": medians, "ratios": ratios, "memory": held}
    if arguments.asks:
        report["soak"] = soak(engine, arguments.asks)
        print("  " + ", ".join(f"{name} {value:.0f}" for name, value in report["soak"].items()))
    report["peers"] = beside(engine, calls, arguments.rounds)
    for name, figures in report["peers"].items():
        words = ", ".join(f"{figures[key]:5.2f}× {key[2:]}" for key in figures if key.startswith("/"))
        print(f"  {name:28s} {words}; differs from gradient by {figures['difference']:.0e} (at most 1e-3)")
    if bench_peers.missing():
        print(f"  not installed: {' and '.join(bench_peers.missing())}; to get them: pip install 'sfumato[peers]'")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
