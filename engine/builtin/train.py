"""Train the built-in model:  python -m engine.builtin.train --minutes 120 --out var/builtin [--init DIR] [--fresh]
[--resume]

1. Each step draws a batch of fresh scenes (`curriculum`), reads the pictures with the frozen tower in bfloat16,
   projects the standardised features, and answers about 15 packed questions a picture (`packing`).
2. Loss: cross-entropy of the answers, plus AUXILIARY times a dense loss that reads from each projected patch the
   class of the thing there, its colour, and where its centre lies.
3. Matrices of the decoder and projector move by Muon, everything else by AdamW; the rate is constant for a share
   `hold` of the time, then falls by a cosine. Time is wall-clock minutes of training (or `--steps`), so training ends
   when it must.
4. An exponential average of the weights is kept; it is what `export` ships.

`OUT/checkpoint.pt` is replaced every few minutes, at the end and on SIGTERM or SIGINT; `--resume` goes on from it
exactly. `OUT/log.txt` gets a line every `--every` steps."""

import argparse
import copy
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch._inductor import config as inductor
from torch.nn import functional

from engine.builtin import architecture, curriculum, packing, threads

SHIPPED: Final = Path(__file__).parent / "model"
AUXILIARY: Final = 0.3
EMPTY_PATCH: Final = 0.15
"""Weight of patches without a thing in the dense loss."""
Look = Callable[[nn.Module, Tensor], Tensor]
AVERAGE: Final = 0.995
WARMUP: Final = 0.01
FLOOR: Final = 0.02
LOOSENED: Final = 60
"""Steps for which a new auxiliary head learns without moving a trained projector."""


@dataclass(frozen=True)
class Options:
    """Of one training. Either `minutes` or `steps` (if not 0) sets the length. `fresh`: an untrained decoder on
    `init`'s tower. `threads` 0: as many as turn out fastest; a fixed number makes a training repeatable to the
    bit."""

    out: Path
    init: Path = SHIPPED
    minutes: float = 120.0
    steps: int = 0
    fresh: bool = False
    seed: int = 0
    pictures: int = 24
    rate: float = 3e-3
    decay: float = 0.05
    hold: float = 0.4
    workers: int = 1
    threads: int = 0
    every: int = 25
    save_minutes: float = 5.0
    compiled: bool = True
    measured: int = 96
    size: architecture.Size = field(default_factory=architecture.Size)


@dataclass
class Trainee:
    """Everything that training changes."""

    model: Any
    auxiliary: nn.Linear
    standard: architecture.Standard
    optimisers: list[torch.optim.Optimizer]
    average: dict[str, Tensor]
    step: int = 0
    elapsed: float = 0.0

    def learnt(self) -> dict[str, Tensor]:
        """The trained weights by name: projector and decoder, without the tower."""
        return {name: value for name, value in self.model.state_dict().items() if "vision_tower" not in name}


def begin(options: Options) -> Trainee:
    """The trainee before its first step."""
    torch.manual_seed(options.seed)
    model = architecture.from_folder(options.init)
    if options.fresh:
        model = architecture.fresh(options.size, model)
    hidden = architecture.size_of(model).hidden
    standard = _measure(model.model.vision_tower, options)
    if not options.fresh:
        architecture.unfold(model, standard)
    model.train()
    auxiliary = nn.Linear(hidden, packing.N_CLASSES + packing.N_COLOURS + 4)
    nn.init.zeros_(auxiliary.weight)
    trainee = Trainee(model, auxiliary, standard, _optimisers(model, auxiliary, options), {})
    trainee.average = {name: value.clone() for name, value in trainee.learnt().items()}
    return trainee


def _measure(tower: nn.Module, options: Options) -> architecture.Standard:
    """Mean and scale of the tower's features over `measured` scenes."""
    drawn = curriculum.batch(77, 0, options.measured, lambda text: [])
    states = architecture.features(tower, architecture.pixel_values(drawn.pixels.numpy()))
    return architecture.Standard(states.mean((0, 1)), states.std((0, 1)) + 1e-3)


def _optimisers(model: Any, auxiliary: nn.Linear, options: Options) -> list[torch.optim.Optimizer]:
    matrices = [p for n, p in model.model.language_model.named_parameters() if p.ndim == 2 and "embed" not in n]
    matrices += [p for p in model.model.multi_modal_projector.parameters() if p.ndim == 2]
    known = {id(p) for p in matrices}
    rest = [p for p in [*model.parameters(), *auxiliary.parameters()] if p.requires_grad and id(p) not in known]
    muon = torch.optim.Muon(
        matrices, lr=options.rate, weight_decay=options.decay, adjust_lr_fn="match_rms_adamw", ns_steps=4
    )
    return [torch.optim.AdamW(rest, lr=options.rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True), muon]


def save(trainee: Trainee, options: Options) -> Path:
    """Write OUT/checkpoint.pt, whole or not at all."""
    options.out.mkdir(parents=True, exist_ok=True)
    state = {
        "learnt": trainee.learnt(),
        "average": trainee.average,
        "auxiliary": trainee.auxiliary.state_dict(),
        "mean": trainee.standard.mean,
        "scale": trainee.standard.scale,
        "optimisers": [o.state_dict() for o in trainee.optimisers],
        "step": trainee.step,
        "elapsed": trainee.elapsed,
        "pictures": options.pictures,
        "size": asdict(architecture.size_of(trainee.model)),
    }
    path = options.out / "checkpoint.pt"
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)
    return path


def resume(trainee: Trainee, path: Path) -> None:
    """Put a checkpoint's state into a trainee that was begun with the same options."""
    state = torch.load(path, weights_only=True)
    missing, unexpected = trainee.model.load_state_dict(state["learnt"], strict=False)
    lost = [name for name in missing if "vision_tower" not in name] + list(unexpected)
    if lost:
        raise ValueError(f"{path} does not fit this model: {', '.join(lost[:3])}")
    trainee.average = state["average"]
    trainee.auxiliary.load_state_dict(state["auxiliary"])
    trainee.standard = architecture.Standard(state["mean"], state["scale"])
    for optimiser, saved in zip(trainee.optimisers, state["optimisers"], strict=True):
        optimiser.load_state_dict(saved)
    trainee.step, trainee.elapsed = state["step"], state["elapsed"]


def rate_factor(progress: float, hold: float) -> float:
    """Share of the full rate at this share of the training: a short warm-up, constant until `hold`, then a cosine to
    FLOOR."""
    warm = min(1.0, (progress + 1e-3) / WARMUP)
    if progress < hold:
        return warm
    return max(FLOOR, 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - hold) / (1 - hold)))))


def dense_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Auxiliary loss of (batch, patches, classes + colours + 4) outputs against `packing.patch_labels`."""
    n, m = packing.N_CLASSES, packing.N_CLASSES + packing.N_COLOURS
    weight = torch.ones(n)
    weight[0] = EMPTY_PATCH
    filled = labels[..., 0] > 0
    what = functional.cross_entropy(outputs[..., :n].flatten(0, 1), labels[..., 0].long().flatten(), weight)
    colour = functional.cross_entropy(outputs[..., n:m].flatten(0, 1), labels[..., 1].long().flatten())
    miss = (outputs[..., m:] - labels[..., 2:])[filled].abs()
    where: Tensor = miss[:, :2].mean() + miss[:, 2:].mean()
    return what + colour + where


def losses(
    trainee: Trainee, tower: nn.Module, look: Look, decoder: Any, batch: curriculum.Batch, loosened: bool
) -> tuple[Tensor, Tensor]:
    """Of the answers, and the dense one; `look` is `architecture.features`, perhaps compiled, `decoder` the language
    model."""
    with torch.autocast("cpu", torch.bfloat16):
        seen = look(tower, architecture.pixel_values(batch.pixels.numpy()))
        projected = trainee.model.model.multi_modal_projector((seen - trainee.standard.mean) / trainee.standard.scale)
        words = trainee.model.get_input_embeddings()(batch.ids).to(projected.dtype)
        inputs = torch.cat([words[:, :2], projected, words[:, 2 + packing.N_PATCHES :]], 1)
        hidden = decoder(
            inputs_embeds=inputs,
            attention_mask=packing.block_mask(batch.segments),
            position_ids=batch.positions,
            use_cache=False,
        ).last_hidden_state
        asked = batch.targets != packing.IGNORED
        logits = trainee.model.lm_head(hidden[asked])
    answers = functional.cross_entropy(logits.float(), batch.targets[asked])
    patches = (projected.detach() if loosened else projected).float()
    return answers, dense_loss(trainee.auxiliary(patches), batch.labels)


@contextmanager
def stoppable() -> Iterator[list[int]]:
    """A list that receives SIGTERM and SIGINT instead of the process being ended by them."""
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda n, _: received.append(n)) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def update(trainee: Trainee, loss: Tensor) -> None:
    """One step of both optimisers, and of the average."""
    for optimiser in trainee.optimisers:
        optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_([p for o in trainee.optimisers for g in o.param_groups for p in g["params"]], 1.0)
    for optimiser in trainee.optimisers:
        optimiser.step()
    for name, value in trainee.learnt().items():
        trainee.average[name].lerp_(value, 1 - AVERAGE)
    trainee.step += 1


def train(options: Options, again: bool = False, stop_at: int = 0) -> Path:
    """Train until time or steps are over, a signal comes, or `stop_at` steps are done; return the checkpoint."""
    chooser = threads.Chooser((options.threads,) if options.threads else ())
    torch.set_num_threads(chooser.using)
    trainee = begin(options)
    if again:
        resume(trainee, options.out / "checkpoint.pt")
    options.out.mkdir(parents=True, exist_ok=True)
    tower = copy.deepcopy(trainee.model.model.vision_tower).to(torch.bfloat16).eval()
    trainee.model.model.language_model.set_attn_implementation("eager")
    look, decoder = architecture.features, trainee.model.model.language_model
    if options.compiled:
        inductor.cpp.dynamic_threads = True
        look, decoder = (torch.compile(part, dynamic=False) for part in (look, decoder))
    batches = curriculum.stream(options.init, options.seed, trainee.step, options.pictures, options.workers)
    begun, saved = time.monotonic() - trainee.elapsed, time.monotonic()
    running, weight = 0.0, 0.0
    with stoppable() as received, (options.out / "log.txt").open("a", encoding="utf-8") as log:
        while not received and not (stop_at and trainee.step >= stop_at):
            progress = trainee.step / options.steps if options.steps else trainee.elapsed / (60 * options.minutes)
            if progress >= 1:
                break
            factor = rate_factor(progress, options.hold)
            for group in (group for optimiser in trainee.optimisers for group in optimiser.param_groups):
                group["lr"] = options.rate * factor
            batch, clock = next(batches), time.monotonic()
            answers, dense = losses(
                trainee, tower, look, decoder, batch, loosened=not options.fresh and trainee.step < LOOSENED
            )
            update(trainee, answers + AUXILIARY * dense)
            chooser.step(time.monotonic() - clock)
            trainee.elapsed = time.monotonic() - begun
            running, weight = 0.95 * running + 0.05 * answers.item(), 0.95 * weight + 0.05
            if trainee.step % options.every == 0:
                log.write(
                    f"step {trainee.step} minutes {trainee.elapsed / 60:.1f} "
                    f"pictures {trainee.step * options.pictures} answers {running / weight:.4f} "
                    f"dense {dense.item():.3f} rate {factor:.3f} threads {chooser.using}\n"
                )
                log.flush()
            if time.monotonic() - saved > 60 * options.save_minutes:
                save(trainee, options)
                saved = time.monotonic()
        why = " by a signal" if received else ""
        log.write(f"stopped at step {trainee.step}, minute {trainee.elapsed / 60:.1f}{why}\n")
    return save(trainee, options)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    defaults = Options(Path())
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint and the log")
    parser.add_argument("--init", type=Path, default=SHIPPED, help="model folder to start from")
    parser.add_argument(
        "--fresh", action="store_true", help="start with an untrained decoder; take only the tower from --init"
    )
    parser.add_argument("--resume", action="store_true", help="go on from OUT/checkpoint.pt")
    for name in ("minutes", "rate", "hold", "save_minutes"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=getattr(defaults, name))
    for name in ("steps", "seed", "pictures", "workers", "threads", "every"):
        parser.add_argument(f"--{name}", type=int, default=getattr(defaults, name))
    arguments = vars(parser.parse_args())
    again = arguments.pop("resume")
    print(train(Options(**arguments), again))


if __name__ == "__main__":
    main()
