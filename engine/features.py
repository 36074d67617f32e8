"""A picture as the decoder gets it, and one teacher-forced forward pass, by the model's own way in.

1. `picture_features`: the vision tower and projector through the model's own `get_image_features`. What it returns is
   kept whole, for some decoders take more of it than the projected features (features for early layers, "deepstack").
2. `embed`: token ids and those features become the arguments of the model's forward pass. Where the model takes
   encoded pictures (`mm_encoder_outputs`) it places them itself, so that embedding scales, token types, rotary
   coordinates and deepstack are its own; elsewhere the features are scattered into the input embeddings.
3. `forward`: the logits. Rotary offsets that some models keep from the last picture are forgotten before and after.
"""

import dataclasses
import functools
import inspect
from typing import Any

import torch

from engine.contract import RequestError
from engine.hooks import Block, require_finite
from engine.loading import Loaded
from engine.queries import query_spread

KEPT = ("pooler_output", "deepstack_features")
"""What decoders read of a vision tower's output; hidden states and attentions are let go."""


@dataclasses.dataclass(frozen=True)
class Seen:
    """A picture's features. `features` (image positions, d_model); `output` = the model's own encoder output, which
    holds them; `extra` = further arguments of the forward pass, of which `per_token` have one entry a prompt position;
    `spread` (cells, image positions) where only the run can tell which patches a position stands for, else None."""

    features: torch.Tensor
    output: Any
    extra: dict[str, torch.Tensor]
    per_token: tuple[str, ...]
    spread: torch.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Past:
    """A prompt's first `length` positions, already run: the model's key–value `cache`, and the rotary `offsets` that
    its stateful modules had after it. `name`: what the model calls a cache. `blocks`: what each block of the decoder
    gave there, where that was kept (see `engine.lower`). `kept`: others will go on from it too."""

    cache: Any
    length: int
    offsets: tuple[Any, ...] = ()
    name: str = "cache"
    blocks: tuple[Block, ...] = ()
    kept: bool = False


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What the model is run on. `ids` (rows, pos); `embeddings` (rows, pos, d_model) where we place the features,
    `pictures` where the model does; `extra` as in `Seen`, per-token ones as long as `ids`. With a `past` the first
    positions of `ids` have been run, pictures among them; the run adds to its cache."""

    ids: torch.Tensor
    embeddings: torch.Tensor | None
    pictures: Any | None
    extra: dict[str, torch.Tensor]
    d_model: int
    past: Past | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """(rows, pos, d_model)."""
        return (*self.ids.shape, self.d_model)

    @property
    def device(self) -> torch.device:
        return self.ids.device

    def repeat(self, rows: int, *_ones: int) -> "Inputs":
        """The same row `rows` times; called as a tensor's `repeat(rows, 1, 1)`."""

        def times(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return value.repeat(rows, *[1] * (value.ndim - 1))
            return tuple(value) * rows

        pictures = self.pictures
        if pictures is not None:
            kept = {name: pictures[name] for name in KEPT if name in pictures}
            if "deepstack_features" in kept:
                kept["deepstack_features"] = [times(layer) for layer in kept["deepstack_features"]]
            pictures = type(pictures)(**{**kept, "pooler_output": times(kept["pooler_output"])})
        embeddings = None if self.embeddings is None else times(self.embeddings)
        extra = {name: times(value) for name, value in self.extra.items()}
        return Inputs(times(self.ids), embeddings, pictures, extra, self.d_model)

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of the model's `generate`."""
        given: dict[str, Any] = {"input_ids": self.ids, **self.extra}
        if self.pictures is not None:
            given["mm_encoder_outputs"] = {"image": self.pictures}
        if self.embeddings is not None:
            given["inputs_embeds"] = self.embeddings
        if self.past is not None:
            given[self.past.name] = self.past.cache
        return given

    def before(self, end: int) -> "Inputs":
        """The first `end` positions; the picture must lie within them."""
        embeddings = None if self.embeddings is None else self.embeddings[:, :end]
        per_token = {name: value.shape == self.ids.shape for name, value in self.extra.items()}
        extra = {name: value[:, :end] if per_token[name] else value for name, value in self.extra.items()}
        return dataclasses.replace(self, ids=self.ids[:, :end], embeddings=embeddings, extra=extra)


def _parameters(method: Any) -> frozenset[str]:
    function = inspect.unwrap(method)
    return _parameters_of(getattr(function, "__func__", function))


@functools.lru_cache(maxsize=64)
def _parameters_of(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(inspect.unwrap(function)).parameters)


def moved(loaded: Loaded, value: torch.Tensor) -> torch.Tensor:
    """On the model's device; floating-point tensors in its dtype."""
    return value.to(loaded.device, loaded.model.dtype) if value.is_floating_point() else value.to(loaded.device)


def _encoder_arguments(loaded: Loaded, pixels: dict[str, Any]) -> frozenset[str]:
    return _parameters(loaded.model.get_image_features) & set(pixels) - {"attention_mask"}


def with_prompt(loaded: Loaded, seen: Seen, pixels: dict[str, Any]) -> Seen:
    """The same picture in another prompt: its features with that prompt's own further arguments."""
    if not seen.extra:
        return seen
    return dataclasses.replace(seen, extra=_extra(loaded, pixels)[0])


def _extra(loaded: Loaded, pixels: dict[str, Any]) -> tuple[dict[str, torch.Tensor], tuple[str, ...]]:
    """Arguments of the forward pass beside ids and features, and the names of those with one entry a position."""
    takes = _parameters(loaded.anatomy.runner.forward)
    encoder = _encoder_arguments(loaded, pixels)
    per_token = tuple(name for name in pixels if name.endswith("token_type_ids") and name in takes)
    whole = [name for name in pixels if name in takes and name in encoder and name.endswith("grid_thw")]
    extra = {name: pixels[name].to(loaded.device) for name in (*per_token, *whole)}
    return extra, per_token


@torch.no_grad()
def picture_features(loaded: Loaded, pixels: dict[str, Any]) -> Seen:
    """The vision tower and projector, through the model's own method. `pixels` = `Prompt.pixels`."""
    given = {name: moved(loaded, pixels[name]) for name in _encoder_arguments(loaded, pixels)}
    try:
        spread, output = query_spread(loaded, given)
    except (RuntimeError, ValueError, IndexError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        remedy = "Use a larger one" if loaded.whole else "Use a larger one, or load the model whole (--device cpu)"
        raise RequestError(f"The model's vision tower cannot take this picture: {error}. {remedy}.") from error
    features = getattr(output, "pooler_output", output)
    if isinstance(features, list | tuple):
        features = torch.cat(list(features))
    features = features.reshape(-1, features.shape[-1])
    require_finite(features, "the picture's features")
    if hasattr(output, "keys"):
        output = type(output)(**{name: output[name] for name in KEPT if name in output})
    extra, per_token = _extra(loaded, pixels)
    placed = "mm_encoder_outputs" in _parameters(loaded.anatomy.runner.forward) and hasattr(output, "keys")
    return Seen(features, output if placed else None, extra, per_token, spread)


def _lengthened(name: str, value: torch.Tensor, ids: torch.Tensor, image_token: int | None) -> torch.Tensor:
    """Per-token `value` (1, prompt) for prompt + answer `ids` (1, pos). Where pictures have a type of their own, later
    tokens are text, type 0; where even the picture has type 0, 0 marks the prefix that all of it sees, and what is
    generated is 1."""
    missing = ids.shape[1] - value.shape[1]
    if missing <= 0:
        return value[:, : ids.shape[1]]
    at_image = ids[:, : value.shape[1]].eq(-1 if image_token is None else image_token)
    prefix = name == "token_type_ids" and bool((value[at_image] == 0).all())
    return torch.nn.functional.pad(value, (0, missing), value=int(prefix))


@torch.no_grad()
def embed(loaded: Loaded, ids: torch.Tensor, features: Seen | None) -> Inputs:
    """One row for the model: `ids` (pos,) of the prompt, or of prompt and answer, with the picture's features."""
    anatomy = loaded.anatomy
    ids = ids.to(loaded.device)[None]
    if features is None:
        return Inputs(ids, None, None, {}, anatomy.d_model)
    extra = {
        name: _lengthened(name, value, ids, anatomy.image_token_id) if name in features.per_token else value
        for name, value in features.extra.items()
    }
    if features.output is not None:
        return Inputs(ids, None, features.output, extra, anatomy.d_model)
    at_image = ids.eq(-1 if anatomy.image_token_id is None else anatomy.image_token_id)[..., None]
    embeddings: torch.Tensor = anatomy.embedding(ids)
    placed = features.features.to(embeddings.device, embeddings.dtype)
    embeddings = embeddings.masked_scatter(at_image.to(embeddings.device), placed)
    return Inputs(ids, embeddings, None, extra, anatomy.d_model)


def forget(loaded: Loaded) -> None:
    """Clear the rotary offsets that some models keep of the last picture: they would shift the next prompt."""
    for module in loaded.anatomy.stateful:
        module.rope_deltas = None  # type: ignore[assignment]


def recall(loaded: Loaded, inputs: Inputs) -> None:
    """The rotary offsets as a run of these inputs must find them: those of its past, or none."""
    forget(loaded)
    if inputs.past is not None:
        for module, offsets in zip(loaded.anatomy.stateful, inputs.past.offsets, strict=True):
            module.rope_deltas = offsets


def cache_name(loaded: Loaded) -> str:
    """What this model's forward pass calls its key–value cache."""
    return "cache" if "cache" in _parameters(loaded.anatomy.runner.forward) else "past_key_values"


def forward(loaded: Loaded, inputs: Inputs, keep: int) -> torch.Tensor:
    """(rows, keep, d_vocab): the logits at the last `keep` positions, by the model's own forward pass."""
    given = inputs.arguments()
    if inputs.embeddings is not None:
        del given["input_ids"]
    if inputs.past is not None:
        given["input_ids"] = inputs.ids[:, inputs.past.length :]
    recall(loaded, inputs)
    output = loaded.anatomy.runner(**given, use_cache=inputs.past is not None, logits_to_keep=keep, return_dict=True)
    forget(loaded)
    logits: torch.Tensor = output.logits
    return logits
