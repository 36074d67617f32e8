"""Between the engine's data and rows: what is stored of an answer, a pair and an attribution, and how it is read."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from app.arrays import pack
from app.tables import AttributionRow, NeuronRow
from engine.contract import Alternative, Answer, AnswerToken, Attribution, ModelInfo, Steered, Variant

JsonObject = dict[str, Any]


def model_to_json(info: ModelInfo) -> JsonObject:
    """What a run remembers of the model that answered it."""
    kept = ("name", "revision", "family", "device", "dtype", "n_layers", "d_model", "d_mlp", "processor", "builtin")
    return {name: getattr(info, name) for name in kept}


def token_to_json(token: AnswerToken) -> JsonObject:
    return {
        "text": token.text,
        "id": token.id,
        "logprob": token.logprob,
        "alternatives": [[a.text, a.id, a.logprob] for a in token.alternatives],
    }


def token_from_json(value: JsonObject) -> AnswerToken:
    return AnswerToken(
        value["text"], value["id"], value["logprob"], tuple(Alternative(*a) for a in value["alternatives"])
    )


def answer_to_json(answer: Answer) -> JsonObject:
    return {
        "text": answer.text,
        "stopped": answer.stopped,
        "tokens": [token_to_json(token) for token in answer.tokens],
        "prompt": [[token.text, token.id, token.modality, token.count] for token in answer.prompt],
    }


def tokens(answer: JsonObject | None) -> tuple[AnswerToken, ...]:
    return tuple(token_from_json(token) for token in answer["tokens"]) if answer else ()


def ids(answer: JsonObject) -> list[int]:
    return [token["id"] for token in answer["tokens"]]


def pair_to_json(steered: Steered) -> JsonObject:
    """Log-probabilities of each answer's tokens under the other model, and how many neurons were edited."""
    return {
        "original_under_steered": list(steered.original_under_steered),
        "steered_under_original": list(steered.steered_under_original),
        "n_neurons": steered.n_neurons,
    }


def fill(
    row: AttributionRow, attribution: Attribution, library: str, ways: Mapping[str, tuple[Variant, ...]]
) -> list[NeuronRow]:
    """Write an attribution into its row; the ranked neurons come back as rows to insert (the row needs its id).
    `library`: the revision of the library that its concepts belong to. `ways` in which its texts can be written."""
    grid = attribution.grid
    row.value = attribution.value
    row.summary = {
        "grid": [grid.rows, grid.cols, list(grid.box)] if grid else None,
        "modalities": [[name, len(list(run))] for name, run in itertools.groupby(attribution.modality_of_position)],
        "library": library,
        "modality_shares": list(attribution.modality_shares),
        "concepts": [[scored.concept, scored.score, scored.similarity] for scored in attribution.concepts],
        "checks": [[check.name, check.holds, check.detail] for check in attribution.checks],
        "text": attribution.target.text,
        "against": attribution.target.against,
        "explained": list(attribution.explained),
        "explained_against": list(attribution.explained_against),
        "apart": [[kind.kind, list(kind.positions), kind.share, kind.left_out] for kind in attribution.apart],
        "ways": {
            field: [[way.text, list(way.ids), list(way.pieces), way.logprob] for way in found]
            for field, found in ways.items()
        },
    }
    row.arrays = pack(
        {
            "scores": attribution.scores,
            "positions": attribution.positions,
            "layer_sums": attribution.layer_sums,
            "heat": attribution.heat,
            "evidence_heat": attribution.evidence_heat,
            "layer_heats": attribution.layer_heats,
            "neuron_heats": _stack([neuron.heat for neuron in attribution.neurons]),
            "activation_heats": _stack([neuron.activation for neuron in attribution.neurons]),
            "concept_heats": _stack([scored.heat for scored in attribution.concepts]),
        }
    )
    return [
        NeuronRow(
            attribution_id=row.id, rank=rank, layer=neuron.layer, index=neuron.index, score=neuron.score,
            image=neuron.by_modality[0], question=neuron.by_modality[1], template=neuron.by_modality[2],
            answer=neuron.by_modality[3], peak=neuron.peak,
        )
        for rank, neuron in enumerate(attribution.neurons, start=1)
    ]  # fmt: skip


def _stack(heats: list[Any]) -> np.typing.NDArray[np.float32] | None:
    kept = [heat for heat in heats if heat is not None]
    return np.stack(kept).astype(np.float32) if kept and len(kept) == len(heats) else None
