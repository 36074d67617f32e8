"""A run as data: the JSON object of the command line with its provenance, and Python that reproduces it exactly."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from app import records, steerings
from app.arrays import Floats
from app.tables import NeuronRow
from app.views.load import Loaded
from engine.contract import AnswerToken, Target


def quoted(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")


def tokens_as_json(tokens: tuple[AnswerToken, ...]) -> list[dict[str, Any]]:
    return [{"text": token.text, "id": token.id, "logprob": token.logprob} for token in tokens]


def run_as_json(loaded: Loaded) -> dict[str, Any]:
    """Keys as `sfumato ask --json` writes them (`heatmap`: the evidence heat map, `heatmap_net`: the net heat map), and
    `provenance`: all that the result depends on."""
    run, row = loaded.run, loaded.attribution
    summary = (row.summary if row is not None else None) or {"concepts": [], "grid": None}
    heat, net = (loaded.arrays.get(name) for name in ("evidence_heat", "heat"))
    beside = loaded.beside
    steered = None
    if beside is not None and beside.answer is not None:
        steered = {
            "answer": beside.answer["text"],
            "tokens": tokens_as_json(records.tokens(beside.answer)),
            "steering": beside.steering,
            "control": beside.control,
            **(beside.pair or {}),
        }
    return {
        "model": loaded.model.get("name"),
        "answer": run.answer["text"] if run.answer else None,
        "tokens": tokens_as_json(loaded.tokens),
        "neurons": [neuron_as_json(neuron) for neuron in loaded.neurons],
        "concepts": [
            {"name": name, "score": finite(score), "similarity": finite(alike)}
            for name, score, alike in summary["concepts"]
        ],
        "heatmap": heat_as_json(heat, summary["grid"][2] if summary["grid"] else None),
        "heatmap_net": net.tolist() if net is not None else None,
        "measurements": measurements_as_json(loaded),
        "steered": steered,
        "timing_ms": run.timing,
        "provenance": {
            "run": run.id,
            "state": run.state,
            "question": run.question,
            "picture": run.picture_hash,
            "picture_size": [loaded.picture.width, loaded.picture.height] if loaded.picture else None,
            "model": dict(loaded.model),
            "generation": {"greedy": True, "max_new_tokens": run.max_new_tokens},
            "method": loaded.state.method,
            "target": target_as_json(loaded),
            "steering": run.steering,
            "library": library(loaded),
            "target_value": finite(row.value) if row is not None and row.value is not None else None,
            "created": run.created.isoformat(),
        },
    }


def measurements_as_json(loaded: Loaded) -> dict[str, Any]:
    """What has been measured of the target, by kind (see engine.measures): its state, and its result once it is done. A
    method's name where the measurement is of its ranking."""
    return {
        kind: {
            "state": job.state,
            "method": job.params["method"],
            "result": job.result if job.state == "done" else None,
        }
        for kind, job in loaded.measured.items()
    }


def target_as_json(loaded: Loaded) -> dict[str, Any] | None:
    """`span`: the answer's tokens that are explained, empty for a text put in its place; `text` and `against` as they
    are written once that is known (`exact`: and as they were asked for); `explained` ids of each side, null before."""
    if loaded.choice is None:
        return None
    target = written_target(loaded)
    return {
        "span": list(loaded.choice.span),
        "text": target.text,
        "against": target.against,
        "exact": loaded.choice.exact,
        "quantity": target.quantity,
        "leave_out": list(target.leave_out),
        "explained": loaded.summary.get("explained"),
        "explained_against": loaded.summary.get("explained_against"),
    }


def written_target(loaded: Loaded) -> Target:
    """The target with its texts exactly as they were explained."""
    target = loaded.choice.target if loaded.choice is not None else Target()
    text, against = loaded.summary.get("text", target.text), loaded.summary.get("against", target.against)
    return dataclasses.replace(target, text=text, against=against)


def target_as_python(target: Target) -> str:
    """The expression that makes this target: its span, or where its text is put, and whatever is not a default."""
    named = [
        f"{field.name}={getattr(target, field.name)!r}"
        for field in dataclasses.fields(target)[2:]
        if getattr(target, field.name) != field.default
    ]
    place = [target.start] if target.text is not None else [target.start, target.end]
    return f"Target({', '.join([*map(repr, place), *named])})"


def heat_as_json(evidence: Floats | None, box: Sequence[float] | None) -> dict[str, Any] | None:
    """Where the neurons that carried the target found it: `rows` on the patch grid, which covers `box`."""
    if evidence is None or box is None:
        return None
    return {"rows": evidence.tolist(), "box": list(box), "of": "evidence"}


def neuron_as_json(neuron: NeuronRow) -> dict[str, Any]:
    parts = {name: finite(getattr(neuron, name)) for name in ("image", "question", "template", "answer")}
    whole = sum(abs(part) for part in parts.values() if part is not None)
    return {
        "id": f"text.{neuron.layer}.{neuron.index}",
        "score": finite(neuron.score),
        "image_share": abs(parts["image"] or 0.0) / whole if whole else 0.0,
        "by_modality": parts,
        "peak": finite(neuron.peak),
    }


def finite(value: float) -> float | None:
    """JSON has no NaN: what is not finite is null."""
    return value if math.isfinite(value) else None


def library(loaded: Loaded) -> str | None:
    """The revision of the library whose concepts steered this run, or else were weighed in its attribution."""
    summary = loaded.attribution.summary if loaded.attribution is not None else None
    return loaded.model.get("library") or (summary or {}).get("library") or None


def python(loaded: Loaded) -> str:
    """A script that computes this state's attribution again, from the same pixels with the same model."""
    run, state, model = loaded.run, loaded.state, loaded.model
    loaded_name = "builtin" if model.get("builtin") else model.get("name", "builtin")
    lines = [
        f"# Sfumato run {run.id}: model {model.get('name')}, revision {model.get('revision')}.",
        *(["import numpy as np", "from PIL import Image", ""] if loaded.picture else []),
        "from engine.contract import ConceptTurn, LatentTurn, NeuronTurn, Question, Steering, Target",
        "from engine.local import load_engine",
        "",
        f"engine = load_engine({loaded_name!r}{_loading(model)})",
        f"assert engine.info().revision == {model.get('revision')!r}",
    ]
    if run.steering and run.steering["concepts"]:
        lines.append(f"assert engine.library().revision == {model.get('library')!r}  # what its concepts mean")
    elif library(loaded):
        lines.append(f"# The concepts of this attribution are those of library {library(loaded)}.")
    if run.steering and run.steering.get("latents"):
        wanted = sorted(steerings.sae_names(run.steering))
        lines.append(f"assert {{sae.id for sae in engine.saes()}} >= set({wanted})  # engine.attach_sae(…) before")
    pixels = "None"
    if loaded.picture:
        lines.append(f'picture = Image.open("{run.picture_hash}.png")  # saved from /pictures/{run.picture_hash}.png')
        pixels = 'np.asarray(picture.convert("RGB"))'
    top = max(1, len(loaded.neurons))
    lines += [
        f"question = Question({pixels}, {run.question!r}, max_new_tokens={run.max_new_tokens})",
        f"steering = {_steering(run.steering)}",
        f"answer_ids = {[token.id for token in loaded.tokens]}  # {(run.answer or {}).get('text', '')!r}",
        "attribution = engine.attribute(",
        f"    question, answer_ids, {target_as_python(written_target(loaded))},",
        f"    {state.method!r}, steering, top={top}",
        ")",
        "for neuron in attribution.neurons:",
        '    print(neuron.neuron, *(f"{score:.3g}" for score in (neuron.score, *neuron.by_modality)))',
    ]
    return "\n".join(lines) + "\n"


def _loading(model: Mapping[str, Any]) -> str:
    """How the model was loaded, as arguments: its numbers come from this device, dtype and packing."""
    if not model.get("device"):
        return ""
    dtype, _, packed = str(model["dtype"]).partition(", ")
    bits = f", quantize={packed[0]}" if packed[:1].isdigit() else ""
    return f", device={str(model['device'])!r}, dtype={dtype!r}{bits}"


def _steering(value: dict[str, Any] | None) -> str:
    if not value:
        return "Steering()"
    concepts = "".join(f"ConceptTurn({name!r}, {lam!r}), " for name, lam in value["concepts"])
    neurons = "".join(f"NeuronTurn({', '.join(map(repr, turn))}), " for turn in value["neurons"])
    named = f", layers={tuple(value['layers'])!r}" if value.get("layers") else ""
    if value.get("latents"):
        latents = (f"LatentTurn({', '.join(map(repr, (sae, *edit)))}), " for sae, _, *edit in value["latents"])
        named += f", latents=({''.join(latents)})"
    return f"Steering(({concepts}), ({neurons}), {value['positions']!r}{named})"
