"""Train an SAE on one site of the loaded model:  python -m engine.sae.train --layer 2 --out var/sae [--resume]

1. Positions are streamed (`engine.sae.activations`) into a store of `kept`, of which every `each` steps the oldest make
   room for those of `pictures` more pictures; a batch is drawn from it at random.
2. x = (Z − mean) / scale, both measured on the first store, so that E‖x‖² = d_model.
   H = σ((x − b_dec) W_enc + b_enc), x̂ = H W_dec + b_dec; after each step the rows of W_dec are brought to length 1.
3. Loss: Σ‖x − x̂‖² / Σ‖x‖². TopK needs no more (Gao et al. 2024). JumpReLU adds PULL · (L0 / k − 1)², its thresholds
   learnt through a rectangle of width BANDWIDTH for a step's derivative (Rajamanoharan et al. 2024).
4. Dead latents, active at none of the last WINDOW steps' positions, are resampled every RESAMPLE steps until
   RESAMPLED of the training is over: they take the direction of a badly explained x, drawn in proportion to its loss
   squared, and forget their moments (after Bricken et al. 2023).
5. Adam; the rate is constant, then falls linearly to 0 over the last FALL of the steps.
6. At the end mean and scale are folded in, so that H is in the stream's units and W_dec's rows have length 1; what is
   written is measured, as rounded to float16, on held-out pictures.

`OUT/checkpoint.safetensors` is replaced every few minutes and when it is stopped; `--resume` goes on from it to the bit
(the same machine, one thread). `OUT/log.txt` gets a line every LOGGED steps. The SAE is `sae.safetensors` with its
`card.json`.
"""

import dataclasses
import json
import math
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from engine.contract import Cancelled, IsCancelled, RequestError, never
from engine.loading import Loaded
from engine.sae import activations
from engine.sae.activations import Asked
from engine.sae.contract import CHECKPOINT, OnPoint, Recipe, SaeInfo, TrainingPoint
from engine.sae.loading import check_place, write
from engine.sae.sae import Sae, fit_of, make

PULL, BANDWIDTH = 0.1, 0.5
WINDOW, RESAMPLE, RESAMPLED, FALL = 50, 200, 0.6, 0.35
LOGGED, SAVED = 50, 180.0
HELD_OUT = 60
"""Pictures of the little world that a trained SAE is measured on."""

Source = Callable[[int, int], list[Asked]]
"""(start, n): the n pictures from number `start` on."""


class _Step(torch.autograd.Function):
    """1 where x > θ, with a rectangle's derivative for θ; none for x."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, threshold)
        return (x > threshold).float()

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[None, torch.Tensor]:
        x, threshold = ctx.saved_tensors
        near = ((x - threshold).abs() < BANDWIDTH / 2).float() / BANDWIDTH
        return None, -(near * slope).sum(0)


class Trainee:
    """All that training changes, and what of it a checkpoint holds."""

    def __init__(self, recipe: Recipe, store: torch.Tensor) -> None:
        d_model = store.shape[1]
        drawn = torch.Generator().manual_seed(recipe.seed)
        self.recipe, self.store = recipe, store
        self.mean = store.mean(0)
        self.scale = (store - self.mean).pow(2).sum(-1).mean().sqrt() / d_model**0.5
        W_dec = torch.nn.functional.normalize(torch.randn(recipe.n_latents, d_model, generator=drawn), dim=1)
        self.parameters = {
            "W_enc": W_dec.T.contiguous().requires_grad_(),
            "W_dec": W_dec.clone().requires_grad_(),
            "b_enc": torch.zeros(recipe.n_latents, requires_grad=True),
            "b_dec": torch.zeros(d_model, requires_grad=True),
        }
        if recipe.architecture == "jumprelu":
            self.parameters["threshold"] = torch.ones(recipe.n_latents, requires_grad=True)
        self.idle = torch.zeros(recipe.n_latents)
        """Steps since each latent was active."""
        self.step = 0
        self.adam = torch.optim.Adam(list(self.parameters.values()), lr=recipe.rate, betas=(0.9, 0.99))
        for parameter in self.parameters.values():
            self.adam.state[parameter] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def state(self) -> dict[str, torch.Tensor]:
        """Every tensor, by name; those of the optimiser as `adam.PARAMETER.NAME`. They are the trainee's own."""
        held = {"store": self.store, "mean": self.mean, "scale": self.scale, "idle": self.idle, **self.parameters}
        for name, parameter in self.parameters.items():
            held |= {f"adam.{name}.{part}": value for part, value in self.adam.state[parameter].items()}
        return {name: value.detach() for name, value in held.items()}

    def batch(self) -> torch.Tensor:
        """(batch, d_model): this step's x."""
        drawn = torch.Generator().manual_seed(hash((self.recipe.seed, self.step)) % 2**63)
        chosen = torch.randint(len(self.store), (self.recipe.batch,), generator=drawn)
        x: torch.Tensor = (self.store[chosen] - self.mean) / self.scale
        return x

    def run(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(x̂, H, L0 a position)."""
        p = self.parameters
        given = (x - p["b_dec"]) @ p["W_enc"] + p["b_enc"]
        if "threshold" in p:
            gate = _Step.apply(given, p["threshold"])  # type: ignore[no-untyped-call]
            H = given.relu() * gate
            count = gate.sum(-1).mean()
        else:
            kept = given.topk(self.recipe.k, dim=-1)
            H = torch.zeros_like(given).scatter(-1, kept.indices, kept.values.relu())
            count = (H > 0).float().sum(-1).mean()
        return H @ p["W_dec"] + p["b_dec"], H, count

    def learn(self) -> TrainingPoint:
        """One step."""
        recipe, progress = self.recipe, self.step / self.recipe.steps
        x = self.batch()
        made, H, count = self.run(x)
        lost = (x - made).pow(2).sum() / x.pow(2).sum()
        loss = lost + PULL * (count / recipe.k - 1) ** 2 if recipe.architecture == "jumprelu" else lost
        self.adam.param_groups[0]["lr"] = recipe.rate * min(1.0, (1 - progress) / FALL)
        self.adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.adam.step()
        with torch.no_grad():
            W_dec = self.parameters["W_dec"]
            W_dec /= W_dec.norm(dim=1, keepdim=True).clamp(min=1e-8)
            if "threshold" in self.parameters:
                self.parameters["threshold"].clamp_(min=1e-3)
            self.idle = torch.where((H > 0).any(0), 0.0, self.idle + 1)
            self.step += 1
            if self.step % RESAMPLE == 0 and progress < RESAMPLED:
                self.resample(x, made)
            explained = 1 - float((x - made).pow(2).sum() / (x - x.mean(0)).pow(2).sum())
        dead = float((self.idle >= WINDOW).float().mean())
        return TrainingPoint(self.step, recipe.steps, float(loss.detach()), explained, float(count.detach()), dead)

    def resample(self, x: torch.Tensor, made: torch.Tensor) -> None:
        """Give dead latents a direction that is badly explained."""
        dead = torch.nonzero(self.idle >= WINDOW)[:, 0]
        if not len(dead):
            return
        drawn = torch.Generator().manual_seed(hash((self.recipe.seed, self.step, 1)) % 2**63)
        chosen = torch.multinomial((x - made).pow(2).sum(-1).pow(2), len(dead), replacement=True, generator=drawn)
        fresh = torch.nn.functional.normalize((x - made)[chosen], dim=1)
        p = self.parameters
        length = float(p["W_enc"].norm(dim=0).mean())
        p["W_dec"][dead] = fresh
        p["W_enc"][:, dead] = (fresh * length).T
        p["b_enc"][dead] = 0
        if "threshold" in p:
            p["threshold"][dead] = p["threshold"].median()
        for name, parameter in p.items():
            for part in ("exp_avg", "exp_avg_sq") if name != "b_dec" else ():
                self.adam.state[parameter][part].index_fill_(1 if name == "W_enc" else 0, dead, 0)
        self.idle[dead] = 0

    def tensors(self) -> dict[str, torch.Tensor]:
        """The SAE's own, mean and scale folded in, rounded to float16."""
        p = {name: value.detach() for name, value in self.parameters.items()}
        b_dec = self.mean + self.scale * p["b_dec"]
        folded = {"W_enc": p["W_enc"], "W_dec": p["W_dec"], "b_dec": b_dec,
                  "b_enc": self.scale * p["b_enc"] - b_dec @ p["W_enc"]}  # fmt: skip
        if "threshold" in p:
            folded["threshold"] = self.scale * p["threshold"]
        return {name: value.half().contiguous() for name, value in folded.items()}


def save(trainee: Trainee, out: Path, elapsed: float) -> None:
    """Write OUT/checkpoint.safetensors, whole or not at all."""
    out.mkdir(parents=True, exist_ok=True)
    told = {"recipe": dataclasses.asdict(trainee.recipe), "step": trainee.step, "elapsed": elapsed}
    state = {name: value.contiguous() for name, value in trainee.state().items()}
    save_file(state, out / "checkpoint.new", {"training": json.dumps(told)})
    (out / "checkpoint.new").replace(out / CHECKPOINT)


def resume(out: Path, recipe: Recipe) -> tuple[Trainee, float]:
    """The trainee of OUT's checkpoint, and the seconds that it has trained. Raises RequestError where there is none, or
    one of another recipe."""
    path = out / CHECKPOINT
    try:
        with safe_open(path, "pt") as file:
            told = json.loads(file.metadata()["training"])
            held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except (OSError, SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise RequestError(f"{path} cannot be gone on from: {error}. Train anew without resuming.") from error
    if told["recipe"] != dataclasses.asdict(recipe):
        raise RequestError(
            f"{path} is of another recipe: {told['recipe']}. Train with that one, or into another folder."
        )
    trainee = Trainee(recipe, held["store"])
    with torch.no_grad():
        for name, value in trainee.state().items():
            value.copy_(held[name])
    trainee.step = told["step"]
    return trainee, told["elapsed"]


def _checked(loaded: Loaded, recipe: Recipe) -> None:
    check_place(loaded, recipe.layer, recipe.site, loaded.anatomy.d_model, "the recipe")
    if recipe.architecture not in ("topk", "jumprelu"):
        raise RequestError(f"A {recipe.architecture!r} SAE cannot be trained here. Choose topk or jumprelu.")
    limits = {"n_latents": (8, 2**17), "k": (1, recipe.n_latents), "steps": (1, 10**7), "batch": (8, 2**16),
              "pictures": (1, 10**4), "each": (1, 10**4), "kept": (64, 10**7)}  # fmt: skip
    for name, (low, high) in limits.items():
        if not low <= getattr(recipe, name) <= high:
            raise RequestError(f"{name} = {getattr(recipe, name)} is outside {low} … {high}. Choose a value inside.")


def train(
    loaded: Loaded,
    recipe: Recipe,
    out: Path,
    source: Source | None = None,
    held_out: list[Asked] | None = None,
    again: bool = False,
    stop_at: int = 0,
    on_point: OnPoint | None = None,
    cancelled: IsCancelled = never,
) -> Sae:
    """Train, write OUT's sae.safetensors and card.json, and return the SAE. `source` None = the little world. With
    `again` it goes on from OUT's checkpoint. Raises Cancelled, with the checkpoint written, when `cancelled` says so or
    `stop_at` steps are done; RequestError for a recipe that does not fit."""
    _checked(loaded, recipe)
    source = source or (lambda start, n: activations.world("train", start, n))

    def fresh(start: int, n: int) -> torch.Tensor:
        return activations.values(loaded, source(start, n), recipe.layer, recipe.site)

    point: TrainingPoint | None = None
    before, began, saved = 0.0, time.process_time(), time.monotonic()
    if again:
        trainee, before = resume(out, recipe)
    else:
        trainee = Trainee(recipe, _first_store(recipe, fresh, on_point, cancelled))
    rounds_before = -(-recipe.kept // 64)
    """A number that no first store reaches: later pictures are others."""
    out.mkdir(parents=True, exist_ok=True)

    def elapsed() -> float:
        return before + time.process_time() - began

    with (out / "log.txt").open("a", encoding="utf-8") as log:
        while trainee.step < recipe.steps:
            if trainee.step % recipe.each == 0:
                if cancelled() or (stop_at and trainee.step >= stop_at):
                    save(trainee, out, elapsed())
                    raise Cancelled(f"Stopped at step {trainee.step} of {recipe.steps}; the same with resume goes on.")
                if time.monotonic() - saved > SAVED:
                    save(trainee, out, elapsed())
                    saved = time.monotonic()
                if trainee.step:
                    more = fresh(recipe.pictures * (rounds_before + trainee.step // recipe.each), recipe.pictures)
                    trainee.store = torch.cat([trainee.store, more])[-recipe.kept :].contiguous()
            point = trainee.learn()
            if on_point:
                on_point(point)
            if trainee.step % LOGGED == 0 or trainee.step == recipe.steps:
                log.write(_line(point, elapsed()))
                log.flush()
    save(trainee, out, elapsed())
    return finish(loaded, trainee, out, held_out, elapsed(), _between(point, on_point, cancelled))


def _line(point: TrainingPoint, elapsed: float) -> str:
    return (
        f"step {point.step} cpu-seconds {elapsed:.0f} loss {point.loss:.4f} "
        f"explained {point.explained_variance:.4f} l0 {point.l0:.1f} dead {point.dead_share:.3f}\n"
    )


def _between(point: TrainingPoint | None, on_point: OnPoint | None, cancelled: IsCancelled) -> Callable[[], None]:
    """While it is measured: the last point again, and a way to stop."""

    def between() -> None:
        if on_point and point:
            on_point(point)
        if cancelled():
            raise Cancelled("Stopped while it was measured; the same with resume goes on.")

    return between


def _first_store(
    recipe: Recipe, fresh: Callable[[int, int], torch.Tensor], on_point: OnPoint | None, cancelled: IsCancelled
) -> torch.Tensor:
    parts: list[torch.Tensor] = []
    while (gathered := sum(map(len, parts))) < recipe.kept:
        if on_point:
            on_point(TrainingPoint(0, recipe.steps, math.nan, math.nan, math.nan, math.nan, gathered))
        if cancelled():
            raise Cancelled("Stopped before the training began.")
        parts.append(fresh(recipe.pictures * len(parts), recipe.pictures))
    return torch.cat(parts)[-recipe.kept :].contiguous()


def finish(
    loaded: Loaded,
    trainee: Trainee,
    out: Path,
    held_out: list[Asked] | None,
    seconds: float,
    between: Callable[[], None],
) -> Sae:
    """Measure what was trained on `held_out` (None = the little world's), and write it with its card. `between` is
    called between two pictures."""
    recipe = trainee.recipe
    on_folder = held_out is not None
    if held_out is None:
        held_out = activations.world("held out", 0, HELD_OUT)
    k = recipe.k if recipe.architecture == "topk" else None
    name = recipe.name or f"{loaded.name.rsplit('/', 1)[-1]}-{recipe.site}-{recipe.layer}"
    info = SaeInfo("", name, recipe.layer, recipe.site, recipe.architecture, 0, 0, k, loaded.revision, str(out))
    sae = make(info, trainee.tensors())
    parts = []
    for one in held_out:
        between()
        parts.append(activations.values(loaded, [one], recipe.layer, recipe.site))
    Z = torch.cat(parts)
    explained, l0, active = fit_of(sae, Z)
    given = {key: value for key, value in dataclasses.asdict(recipe).items() if value != ""}
    words = " ".join(f"--{key.replace('_', '-')} {shlex.quote(str(value))}" for key, value in given.items())
    words += ("" if loaded.builtin else " --model MODEL") + (" --folder PICTURES" if on_folder else "")
    card = {
        "explained_variance": round(explained, 4),
        "l0": round(l0, 2),
        "dead_share": round(1 - float(active.float().mean()), 4),
        "positions": len(Z),
        "pictures": len(held_out),
        "trained_positions": recipe.steps * recipe.batch,
        "cpu_minutes": round(seconds / 60, 1),
        "command": f"python -m engine.sae.train {words} --out DIR",
    }
    sae = Sae(dataclasses.replace(sae.info, card=card), **trainee_fields(sae))
    write(sae, out)
    return sae


def trainee_fields(sae: Sae) -> dict[str, Any]:
    """An SAE's tensors by name."""
    return {field.name: getattr(sae, field.name) for field in dataclasses.fields(sae) if field.name != "info"}


def folder_source(path: Path, seed: int = 0) -> tuple[Source, list[Asked]]:
    """A folder's pictures in a fixed random order, over and over, and every tenth of them held out."""
    asked = activations.folder(path)
    order = torch.randperm(len(asked), generator=torch.Generator().manual_seed(seed)).tolist()
    held = [asked[n] for n in order[::10]]
    rest = [asked[n] for k, n in enumerate(order) if k % 10] or held
    return (lambda start, n: [rest[k % len(rest)] for k in range(start, start + n)]), held


def main() -> None:
    """The command line."""
    import argparse

    from engine.loading import load, quiet

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint, the log and the SAE")
    parser.add_argument("--model", default="builtin", help="builtin, a folder, or the name of a model on a hub")
    parser.add_argument("--folder", type=Path, help="pictures with a questions.csv, .jsonl or .json (the little world)")
    parser.add_argument("--resume", action="store_true", help="go on from OUT/checkpoint.safetensors")
    for field in dataclasses.fields(Recipe):
        needed = field.default is dataclasses.MISSING
        kind: Any = field.type
        parser.add_argument(
            f"--{field.name.replace('_', '-')}", type=kind, required=needed, default=None if needed else field.default
        )
    arguments = vars(parser.parse_args())
    out, model, path, again = (arguments.pop(name) for name in ("out", "model", "folder", "resume"))
    torch.set_num_threads(1)
    quiet()
    recipe = Recipe(**arguments)
    source, held = folder_source(path, recipe.seed) if path else (None, None)
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda caught, _: stopped.append(caught))
    try:
        print(train(load(model), recipe, out, source, held, again, cancelled=lambda: bool(stopped)).info)
    except Cancelled as error:
        print(error)


if __name__ == "__main__":
    main()
