"""capture() and intervene(): the only file that registers hooks.

Both are context managers that remove their hooks by handle whatever happens inside (BaseException too). Neither stores
anything on the model. Registered in the order intervene → capture, so a capture sees the activations after the edit.

Positions are absolute: a pre-hook on the decoder counts what the key–value cache of each call already holds and
publishes the positions to this intervention alone, so prefill, decoding with the cache and decoding without it all
agree. The decoder's own `position_ids` will not do: they are rotary coordinates, from 1 in one family and
three-dimensional in another.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from engine.contract import EngineError, NonFinite
from engine.interventions import Edits, Places, Together, together
from engine.sae.steering import changes

if TYPE_CHECKING:  # the anatomy is found with the help of a trace
    from engine.anatomy import Anatomy


@dataclasses.dataclass
class Captured:
    """Filled while the model runs. `activations[layer]` = a list with one (rows, pos, d_mlp) tensor per call;
    `final[call]` = the final norm's input (rows, pos, d_model); `norms[call]` (rows, pos) = the length of the residual
    stream that enters the middle layer, at every position."""

    activations: list[list[torch.Tensor]]
    final: list[torch.Tensor]
    norms: list[torch.Tensor] = dataclasses.field(default_factory=list)

    def layer(self, layer: int) -> torch.Tensor:
        """(rows, pos, d_mlp) of the only call. Raises EngineError if the model ran more or less than once."""
        calls = self.activations[layer]
        if len(calls) != 1:
            raise EngineError(f"Layer {layer} ran {len(calls)} times where one run was expected.")
        return calls[0]

    def layers(self) -> list[torch.Tensor]:
        return [self.layer(layer) for layer in range(len(self.activations))]


@contextlib.contextmanager
def _removing(handles: list[RemovableHandle]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclasses.dataclass
class Flow:
    """How tensors go through a decoder's blocks; filled by `trace`. `flat`: the MLPs see (rows · pos, width)."""

    mlp_norms: tuple[torch.nn.Module | None, ...] = ()
    attention_norms: tuple[torch.nn.Module | None, ...] = ()
    flat: bool = False


def _first(result: Any) -> torch.Tensor:
    tensor = result[0] if isinstance(result, tuple) else result
    assert isinstance(tensor, torch.Tensor)
    return tensor


@contextlib.contextmanager
def trace(
    mlps: Sequence[torch.nn.Module],
    attentions: Sequence[torch.nn.Module | None],
    norms: Sequence[Sequence[torch.nn.Module]],
    downs: Sequence[torch.nn.Module],
) -> Iterator[Flow]:
    """While the decoder runs once, see which norm of each block is given the very tensor that the block's MLP (or
    attention) returned. The flow is complete when the context ends."""
    flow = Flow()
    returned: dict[str, list[torch.Tensor | None]] = {"mlp": [None] * len(mlps), "attention": [None] * len(mlps)}
    after: dict[str, list[torch.nn.Module | None]] = {"mlp": [None] * len(mlps), "attention": [None] * len(mlps)}

    def leave(kind: str, layer: int) -> Any:
        def hook(_module: torch.nn.Module, _args: Any, result: Any) -> None:
            returned[kind][layer] = _first(result)

        return hook

    def enter(layer: int) -> Any:
        def hook(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = args[0] if args else next(iter(kwargs.values()))
            for kind, tensors in returned.items():
                if given is tensors[layer]:
                    after[kind][layer] = module

        return hook

    def shape(_module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        flow.flat = args[0].ndim == 2

    handles: list[RemovableHandle] = []
    with _removing(handles):
        for layer, (mlp, attention) in enumerate(zip(mlps, attentions, strict=True)):
            handles.append(mlp.register_forward_hook(leave("mlp", layer)))
            if attention is not None:
                handles.append(attention.register_forward_hook(leave("attention", layer)))
            handles += [norm.register_forward_pre_hook(enter(layer), with_kwargs=True) for norm in norms[layer]]
        handles.append(downs[0].register_forward_pre_hook(shape))
        yield flow
        flow.mlp_norms, flow.attention_norms = tuple(after["mlp"]), tuple(after["attention"])


@contextlib.contextmanager
def silence(modules: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Inside, these modules return zeros in place of their (first) result."""

    def hook(_module: torch.nn.Module, _args: Any, result: Any) -> Any:
        if isinstance(result, tuple):
            return (torch.zeros_like(result[0]), *result[1:])
        return torch.zeros_like(result)

    handles: list[RemovableHandle] = []
    with _removing(handles):
        handles += [module.register_forward_hook(hook) for module in modules]
        yield


@contextlib.contextmanager
def watch_attention(module: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """The cross-attention weights (rows, heads, queries, keys) of every submodule that is given encoder states and
    returns them, in order of layers."""
    seen: list[torch.Tensor] = []

    def hook(_module: torch.nn.Module, _args: Any, kwargs: dict[str, Any], result: Any) -> None:
        weights = result[1] if isinstance(result, tuple) and len(result) > 1 else None
        if isinstance(weights, torch.Tensor) and weights.ndim == 4 and weights.shape[-1] != weights.shape[-2]:
            seen.append(weights.detach())

    handles: list[RemovableHandle] = []
    with _removing(handles):
        leaves = [m for name, m in module.named_modules() if name.endswith("crossattention.attention")]
        handles += [leaf.register_forward_hook(hook, with_kwargs=True) for leaf in leaves]
        yield seen


class Call(NamedTuple):
    """One call of the decoder: it computes `length` positions from the absolute position `start` on, in each row."""

    rows: int
    start: int
    length: int


def _call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    given = [kwargs[name] for name in ("inputs_embeds", "input_ids") if kwargs.get(name) is not None] or list(args[:1])
    if not given or given[0] is None:
        raise EngineError("The decoder was run without inputs, so a steering cannot tell where it acts.")
    caches = [kwargs[name] for name in ("cache", "past_key_values") if kwargs.get(name) is not None]
    start = int(caches[0].get_seq_length()) if caches else 0
    rows, length = given[0].shape[:2]
    return Call(int(rows), start, int(length))


def _publisher(here: list[Call]) -> Any:
    """A decoder pre-hook that keeps the running call's rows and positions in `here`."""

    def publish(_module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        here[:] = [_call(args, kwargs)]

    return publish


@contextlib.contextmanager
def capture(anatomy: "Anatomy", gradients: bool = False, last_only: bool = False) -> Iterator[Captured]:
    """Keep every layer's activations (the down projections' inputs) and the final norm's input.

    With `gradients` the activations can be differentiated: the first layer's are made a leaf, so a backward pass
    stops there and never enters the vision tower. With `last_only` just the last position of each call is kept.
    """
    captured = Captured([[] for _ in anatomy.downs], [])
    here: list[Call] = []

    def keep(layer: int) -> Any:
        def hook(_module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
            activation = args[0].reshape(here[0].rows, here[0].length, -1) if anatomy.flat else args[0]
            if gradients:
                if not activation.requires_grad:
                    activation = activation.detach().requires_grad_(True)
                captured.activations[layer].append(activation)
                return (activation.flatten(0, 1) if anatomy.flat else activation, *args[1:])
            captured.activations[layer].append((activation[:, -1:] if last_only else activation).detach().clone())
            return None

        return hook

    def keep_final(_module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        captured.final.append((args[0][:, -1:] if last_only else args[0]).detach())

    def keep_norms(_module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stream = args[0] if args else kwargs["hidden_states"]
        captured.norms.append(stream.detach().float().norm(dim=-1))

    handles: list[RemovableHandle] = []
    with _removing(handles):
        if anatomy.flat:
            handles.append(anatomy.decoder.register_forward_pre_hook(_publisher(here), with_kwargs=True))
        middle = anatomy.layers[anatomy.n_layers // 2]
        handles.append(middle.register_forward_pre_hook(keep_norms, with_kwargs=True))
        for layer, down in enumerate(anatomy.downs):
            handles.append(down.register_forward_pre_hook(keep(layer)))
        handles.append(anatomy.final_norm.register_forward_pre_hook(keep_final))
        yield captured


@contextlib.contextmanager
def leaf_embeddings(anatomy: "Anatomy") -> Iterator[list[torch.Tensor]]:
    """Inside, the embeddings that the decoder is given (rows, pos, d_model) are a leaf of the graph, one entry a call:
    what it reads can be differentiated, what made them cannot."""
    leaves: list[torch.Tensor] = []

    def hook(_module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        given = kwargs.get("inputs_embeds")
        if given is None:
            given = anatomy.embedding(args[0] if args else kwargs["input_ids"])
        leaves.append(given.detach().requires_grad_(True))
        without_ids = {name: value for name, value in kwargs.items() if name != "input_ids"}
        return (None, *args[1:]) if args else (), {**without_ids, "inputs_embeds": leaves[-1]}

    handles: list[RemovableHandle] = []
    with _removing(handles):
        handles.append(anatomy.decoder.register_forward_pre_hook(hook, with_kwargs=True))
        yield leaves


@contextlib.contextmanager
def capture_writes(anatomy: "Anatomy") -> Iterator[dict[str, list[torch.Tensor]]]:
    """Keep what each component adds to the residual stream: `embedding`, `attention`, `mlp` (one (rows, pos,
    d_model) tensor a layer; after its post-norm where there is one), the stream after each layer as `residual`, and
    `final` = the final norm's input."""
    writes: dict[str, list[torch.Tensor]] = {"embedding": [], "attention": [], "mlp": [], "residual": [], "final": []}

    def output(kind: str) -> Any:
        def hook(_module: torch.nn.Module, _args: Any, result: Any) -> None:
            value = _first(result).detach()
            writes[kind].append(value if value.ndim == 3 else value.reshape(writes["embedding"][0].shape))

        return hook

    def entry(kind: str) -> Any:
        def hook(_module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            value = args[0] if args else kwargs["hidden_states"]
            writes[kind].append(value.detach())

        return hook

    handles: list[RemovableHandle] = []
    with _removing(handles):
        handles.append(anatomy.layers[0].register_forward_pre_hook(entry("embedding"), with_kwargs=True))
        for layer, (attention, mlp) in enumerate(zip(anatomy.attentions, anatomy.mlps, strict=True)):
            writer = anatomy.attention_norms[layer] or attention
            if writer is not None:
                handles.append(writer.register_forward_hook(output("attention")))
            handles.append((anatomy.mlp_norms[layer] or mlp).register_forward_hook(output("mlp")))
            handles.append(anatomy.layers[layer].register_forward_hook(output("residual")))
        handles.append(anatomy.final_norm.register_forward_pre_hook(entry("final"), with_kwargs=True))
        yield writes


@contextlib.contextmanager
def intervene(anatomy: "Anatomy", rows: Sequence[Edits], spread: bool = False) -> Iterator[None]:
    """Edit activations, one `Edits` a batch row: a' = a · scale + shift at the positions each row names; and latents,
    where their SAEs stand (`engine.sae.steering`), which see what the neurons' edits made.

    With `spread`, the decoder is run with one row, which becomes all of them at the first edit, of neurons. A row with
    no edits is left bit-equal, and so is a call in which no row acts. Raises EngineError when the batch has another
    number of rows.
    """
    touched = sorted({layer for row in rows for layer in row.layers})
    places = Places(rows)
    edits: dict[int, Together] = {}
    here: list[Call] = []
    acting: list[torch.Tensor | None] = []
    """Of the running call: where each row acts, None = everywhere; empty = nowhere."""

    def publish(_module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = _call(args, kwargs)
        acts = places.at(call.start, call.length)
        here[:] = [call]
        acting[:] = ([None] if bool(acts.all()) else [acts]) if bool(acts.any()) else []

    def edit(layer: int) -> Any:
        def hook(_module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
            call = here[0]
            if call.rows != (1 if spread else len(rows)):
                raise EngineError(f"The steering has {len(rows)} rows but the batch has {call.rows}.")
            if not acting:
                return None
            batch = call.rows if layer == touched[0] else len(rows)
            activation = args[0].reshape(batch, call.length, -1) if anatomy.flat else args[0]
            if batch != len(rows):
                activation = activation.expand(len(rows), -1, -1)
            if layer not in edits:
                edits[layer] = together(rows, layer, activation)
            acts = acting[0]
            # Nothing reads an activation but its down projection: without a graph there is no need of a copy.
            alone = batch == len(rows) and not torch.is_grad_enabled()
            whole = edits[layer].apply(activation, None if acts is None else acts.to(activation.device), alone)
            return (whole.flatten(0, 1) if anatomy.flat else whole, *args[1:])

        return hook

    handles: list[RemovableHandle] = []
    with contextlib.ExitStack() as sites, _removing(handles):
        if touched:
            handles.append(anatomy.decoder.register_forward_pre_hook(publish, with_kwargs=True))
        handles += [anatomy.downs[layer].register_forward_pre_hook(edit(layer)) for layer in touched]
        for (layer, site), change in changes(rows).items():
            sites.enter_context(replace_site(anatomy, layer, site, change))
        yield


@contextlib.contextmanager
def replace_site(
    anatomy: "Anatomy", layer: int, site: str, change: Callable[[torch.Tensor, Call], torch.Tensor]
) -> Iterator[None]:
    """Inside, `change(values, call)` stands for what `site` (see `engine.sae.contract.SITES`) of a layer gives, values
    (rows, pos, d_model) in the model's dtype, to which the result is brought. A call for which it returns the very
    tensor is left bit-equal."""
    here: list[Call] = []

    def hook(_module: torch.nn.Module, _args: Any, result: Any) -> Any:
        given, call = _first(result), here[0]
        new = change(given.reshape(call.rows, call.length, -1), call).to(given.dtype).reshape(given.shape)
        return (new, *result[1:]) if isinstance(result, tuple) else new

    handles: list[RemovableHandle] = []
    with _removing(handles):
        handles.append(anatomy.decoder.register_forward_pre_hook(_publisher(here), with_kwargs=True))
        handles.append(anatomy.site(layer, site).register_forward_hook(hook))
        yield


class Block(NamedTuple):
    """What a block of the decoder gave in one call: `stream` (rows, pos, d_model), its (first) result; `rest` = how
    many further results came with it, all None, or None where it gave no tuple."""

    stream: torch.Tensor
    rest: int | None


@contextlib.contextmanager
def keep_blocks(anatomy: "Anatomy") -> Iterator[list[Block]]:
    """Keep what each block gives, in order, while the decoder runs once. A block that gives more than its stream is
    left out, and so are those after it."""
    kept: list[Block] = []

    def keep(layer: int) -> Any:
        def hook(_module: torch.nn.Module, _args: Any, result: Any) -> None:
            rest = result[1:] if isinstance(result, tuple) else ()
            if len(kept) == layer and all(value is None for value in rest):
                kept.append(Block(_first(result).detach().clone(), len(rest) if isinstance(result, tuple) else None))

        return hook

    handles: list[RemovableHandle] = []
    with _removing(handles):
        handles += [block.register_forward_hook(keep(layer)) for layer, block in enumerate(anatomy.layers)]
        yield kept


def count_hooks(model: torch.nn.Module) -> int:
    """Hooks of any kind on the model's modules, and stand-ins for a module's run (`engine.lower`): zero between
    requests. Those of transformers itself do not count: it leaves some on a vision tower that returns several
    layers."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = [hook for module in model.modules() for kind in kinds for hook in getattr(module, kind).values()]
    standing = sum(hasattr(vars(module).get("forward"), "stands_in") for module in model.modules())
    return standing + sum(not str(getattr(hook, "__module__", "")).startswith("transformers.") for hook in hooks)


def require_finite(tensor: torch.Tensor, where: str) -> None:
    """Raise NonFinite naming `where` if any entry is NaN or infinite."""
    if not bool(torch.isfinite(tensor).all()):
        raise NonFinite(f"The numbers stop being finite at {where}. Try another dtype (float32), or a milder steering.")
