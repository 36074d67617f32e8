"""The latents' half of the contract, given on by `engine.contract` as `saes`: sparse autoencoders and what their
latents do (METHODS.md §4). Torch-free.

An SAE stands at one site of one layer: H = σ(Z W_enc + b_enc) (pos, n_latents), Ẑ = H W_dec + b_dec (pos, d_model). A
latent is written ``sae.SAE.INDEX``, SAE = its name.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from engine.errors import UnknownName
from engine.measures import Floats, Grid, OnProgress
from engine.neurons_contract import Survey
from engine.sae.items import items_of
from engine.sae.membership_contract import LATENT_QUANTILE, LatentConceptEngine
from engine.sae.results import (
    CALLED,
    Item,
    Masked,
    Report,
    Share,
    Swapped,
    clear_gaps,
    conclusions,
    experiment_as_json,
    experiment_csv,
    experiment_from_json,
    experiment_table,
)
from engine.sae.swapping import swapped
from engine.turns import PLAIN, Steering

__all__ = [
    "ARCHITECTURES", "CALLED", "CHECKPOINT", "DEFAULT", "LATENT_QUANTILE", "OF", "POSITIVE", "QUANTITIES", "SITES",
    "Influence", "Item", "LatentLens", "LatentScore", "Masked", "OnPoint", "Recipe", "Report", "SaeEngine", "SaeFit",
    "SaeInfo", "SeenLatent", "Settings", "Share", "Swapped", "TrainingPoint", "check_settings", "clear_gaps",
    "conclusions", "experiment_as_json", "experiment_csv", "experiment_from_json", "experiment_table", "items_of",
    "listed", "parse_latent", "swapped",
]  # fmt: skip

if TYPE_CHECKING:
    from engine.contract import Answer, Question

SITES = ("residual", "mlp", "attention")
"""The stream after a layer; what the layer's MLP, or its attention, writes to it (after its post-norm, if any)."""

ARCHITECTURES = ("standard", "topk", "jumprelu")

CHECKPOINT = "checkpoint.safetensors"
"""In the folder of a training that has not ended: what it goes on from."""

OF = ("answer", "next")
"""Y: the whole answer, or its first token alone."""

QUANTITIES = ("logprob", "probability")

POSITIVE = ("entry", "mean")


@dataclasses.dataclass(frozen=True, slots=True)
class SaeInfo:
    """An SAE. `id` hashes its weights and site; `model_revision` '' = it does not say for which model it was trained;
    `k` of TopK; `fits` = '' or why it cannot stand on the loaded model. `card`: what was measured of it and how it was
    made (explained_variance, l0, dead_share, positions, command, …), as far as it is known."""

    id: str
    name: str
    layer: int
    site: str
    architecture: str
    d_model: int
    n_latents: int
    k: int | None
    model_revision: str
    source: str
    card: dict[str, Any] = dataclasses.field(default_factory=dict)
    fits: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class SaeFit:
    """How well an SAE reads one input. `explained_variance` = 1 − Σ‖Z − Ẑ‖² / Σ‖Z − mean Z‖² over its positions; `l0` =
    latents active at a position, mean; `dead_share` = latents that are active at none of them. `warnings`: sentences
    about what is out of the range that the card gives (or that any SAE should keep). `positions` = their number."""

    explained_variance: float
    l0: float
    dead_share: float
    warnings: tuple[str, ...] = ()
    positions: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """A variant of influence. `of` one of OF; `quantity` one of QUANTITIES, of Y; `keep_error`: Z − Ẑ is added back, so
    that the answer is the model's own; `bos`: the SAE also stands at the first position where its token is reserved (a
    beginning of sequence: an attention sink); `positive`: the positive part is taken of each entry before the mean over
    positions ('entry', the paper's), or of the mean ('mean'). A position *counts* where the SAE stands."""

    of: str = "answer"
    quantity: str = "logprob"
    keep_error: bool = True
    bos: bool = False
    positive: str = "entry"


DEFAULT = Settings()
"""Why these: see `engine.sae.influence`."""


@dataclasses.dataclass(frozen=True, slots=True)
class LatentScore:
    """One latent in one answer. `influence` and `mean_activation` over the counted positions; `by_modality` = Σ of its
    entries' signed influence in the order of MODALITIES; `heat` and `activation` (rows, cols) = signed influence and
    activation on the patches (None without a picture); `peak` its largest activation, at position `at`."""

    index: int
    influence: float
    mean_activation: float
    by_modality: tuple[float, float, float, float]
    peak: float
    at: int
    heat: Floats | None = None
    activation: Floats | None = None

    @property
    def image_share(self) -> float:
        """|image| / Σ |modality|; 0 if all are zero."""
        whole = sum(abs(part) for part in self.by_modality)
        return abs(self.by_modality[0]) / whole if whole else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Influence:
    """Which latents an answer depends on. `value` = Y's quantity with the SAE in place. `influence` and
    `mean_activation` (n_latents,): every latent's; `active` (n_latents,) bool: active at a counted position.
    `latents`: the first `top` by influence and the first `top` by mean activation, each once, by falling influence,
    ties by index; none that is 0 in both. `heat` (rows, cols): all latents' positive influence together. `last_active`:
    latents active at the prompt's last position (the paper's K = 50 % is half of these)."""

    sae: SaeInfo
    settings: Settings
    value: float
    fit: SaeFit
    influence: Floats
    mean_activation: Floats
    active: npt.NDArray[np.bool_]
    latents: tuple[LatentScore, ...]
    grid: Grid | None
    heat: Floats | None
    last_active: int


@dataclasses.dataclass(frozen=True, slots=True)
class LatentLens:
    """What a latent writes and reads: tokens that its decoder row promotes and suppresses (text, id, value; the final
    norm's weight and the unembedding, less the mean over tokens), the neurons of earlier or the same layer whose write
    vectors its encoder reads (neuron, cosine), and latents whose decoder rows are like its own (index, cosine)."""

    promoted: tuple[tuple[str, int, float], ...]
    suppressed: tuple[tuple[str, int, float], ...]
    written_by: tuple[tuple[str, float], ...]
    alike: tuple[tuple[int, float], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class SeenLatent:
    """A picture (or text) that a latent answers to: its place among those looked at, its question, the latent's peak
    activation and the absolute position of it, and its activations on the patches."""

    index: int
    case: int
    question: str
    peak: float
    at: int
    grid: Grid | None
    heat: Floats | None


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """How an SAE is trained: `steps` steps of `batch` positions each. `k` = active latents a position: exactly of
    TopK, the aim of JumpReLU. `pictures` are looked at anew after every `each` steps."""

    layer: int
    site: str = "residual"
    architecture: str = "topk"
    n_latents: int = 2048
    k: int = 32
    steps: int = 2000
    batch: int = 1024
    rate: float = 1e-3
    seed: int = 0
    pictures: int = 8
    each: int = 4
    kept: int = 32768
    name: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingPoint:
    """How far a training is: `loss` of the last step, `explained_variance` and `l0` of its positions, and `dead_share`
    = latents that were active at none of the last positions trained on. Points of step 0 come while the first positions
    are gathered (`gathered` of them so far), and know nothing else: NaN."""

    step: int
    steps: int
    loss: float
    explained_variance: float
    l0: float
    dead_share: float
    gathered: int = 0


OnPoint = Callable[[TrainingPoint], None]


def _never() -> bool:
    return False


class SaeEngine(LatentConceptEngine, Protocol):
    """Calls that leave nothing on the model, whatever happens in them."""

    def saes(self) -> tuple[SaeInfo, ...]:
        """Those that are attached: what ships for this model, then those of `attach_sae`, in order."""
        ...

    def attach_sae(self, path: str, layer: int | None = None, site: str | None = None, name: str = "") -> SaeInfo:
        """Load an SAE from a folder, a file, or a hub name (OWNER/NAME, OWNER/NAME/FOLDER) that transformers is
        configured for, by any format of engine.sae.loading; `layer` and `site` come before what its files say, and so
        does `name`. It stays attached until `detach_sae`; one that is attached already is not attached again. Raises
        RequestError (what is missing, or does not fit the loaded model), UnknownName, NonFinite."""
        ...

    def check_sae(self, sae: str, questions: "Sequence[Question]" = ()) -> SaeFit:
        """How well an attached SAE reads what the model makes of these questions (prompts only), or, without any, of a
        few pictures of the little world. Raises UnknownName, RequestError (not one of them can be asked)."""
        ...

    def detach_sae(self, sae: str) -> None:
        """Let go of one, by name or id. Raises UnknownName."""
        ...

    def latent_influence(
        self,
        question: "Question",
        answer_ids: Sequence[int],
        sae: str,
        settings: Settings = DEFAULT,
        steering: Steering = PLAIN,
        top: int = 50,
        cancelled: Callable[[], bool] = _never,
    ) -> Influence:
        """Influence of all latents of the SAE named or identified by `sae` on a given answer (teacher-forced). Raises
        UnknownName, BadTarget (an empty answer), RequestError (no gradients; the SAE does not fit)."""
        ...

    def latent_ablation(
        self,
        question: "Question",
        answer_ids: Sequence[int],
        sae: str,
        latents: Sequence[int],
        settings: Settings = DEFAULT,
        steering: Steering = PLAIN,
        on_progress: OnProgress | None = None,
        cancelled: Callable[[], bool] = _never,
    ) -> Floats:
        """(latents,): what Y's quantity loses when each of these latents alone is zeroed at every counted position."""
        ...

    def latent_answers(
        self,
        question: "Question",
        sae: str,
        zeroed: Sequence[Sequence[int]],
        settings: Settings = DEFAULT,
        cancelled: Callable[[], bool] = _never,
    ) -> "tuple[Answer, ...]":
        """The greedy answer with the SAE in place (`keep_error`, `bos` of `settings`), once for each set of latents,
        which are zeroed at every counted position, those of the answer too. An empty set: the SAE alone."""
        ...

    def latent_lens(self, sae: str, index: int) -> LatentLens:
        """See LatentLens. Raises UnknownName for a latent that the SAE does not have."""
        ...

    def seen_latents(
        self,
        sae: str,
        indices: Sequence[int],
        questions: "Sequence[Question]",
        top: int = 8,
        on_progress: OnProgress | None = None,
        cancelled: Callable[[], bool] = _never,
    ) -> tuple[tuple[SeenLatent, ...], ...]:
        """For each latent those of `questions` (prompts only) in which it is most active, by falling peak. Questions
        that the model cannot be asked are passed over."""
        ...

    def latent_survey(
        self,
        sae: str,
        questions: "Sequence[Question]",
        on_progress: OnProgress | None = None,
        cancelled: Callable[[], bool] = _never,
    ) -> Survey:
        """What every latent does over these prompts, as `NeuronEngine.survey` does of neurons: `neurons` (n_latents,)
        of RECORD. Questions in which a latent is nowhere active are none of its strongest. Raises Cancelled, and
        RequestError where not one question can be asked."""
        ...

    def neuron_readers(self, sae: str, layer: int, index: int, top: int = 5) -> tuple[tuple[int, float], ...]:
        """(latent, cosine) of the latents whose encoder columns read a neuron's write vector most; () where the neuron
        writes nothing that the SAE reads: see LatentLens.written_by. Raises UnknownName."""
        ...

    def experiment_items(self, n: int, seed: int = 0) -> tuple[Item, ...]:
        """`n` questions of the little world with their answers, two a picture, that no training has seen; other ones
        for another seed; () for other models than the built-in one."""
        ...

    def latent_experiment(
        self,
        items: Sequence[Item],
        sae: str,
        settings: Settings = DEFAULT,
        ablated: int = 10,
        on_progress: OnProgress | None = None,
        cancelled: Callable[[], bool] = _never,
        swapped: int = 40,
        done: Mapping[int, Any] | None = None,
        on_item: Callable[[int, Any], None] | None = None,
    ) -> Report:
        """Mask latents by influence, by mean activation, the least influential, and random ones, and answer again; swap
        latents of `swapped` pairs of items; see `engine.sae.masking`. `ablated`: on how many items the rankings are
        compared with exact ablation. Each step's plain data goes to `on_item` with its number, and is not done again
        where it is in `done`: the report is the same. `items` are opened one at a time, by number. `on_progress` counts
        steps, with nothing left on the model. Raises RequestError where no item is answered right, Cancelled."""
        ...

    def train_sae(
        self,
        recipe: Recipe,
        out: str,
        folder: str = "",
        resume: bool = False,
        on_point: OnPoint | None = None,
        cancelled: Callable[[], bool] = _never,
    ) -> SaeInfo:
        """Train an SAE on the loaded model, write it with its card into the folder `out`, and attach it. `folder`: own
        pictures with questions.csv, .jsonl or .json (columns question, picture, answer); '' = the little world, for the
        built-in model. `on_point` comes between two steps, with nothing on the model. Raises Cancelled, unless
        positions were still gathered with a CHECKPOINT in `out` from which `resume` goes on to the bit."""
        ...


def check_settings(settings: Settings) -> None:
    """Raises UnknownName for a variant that does not exist."""
    for name, values in (("of", OF), ("quantity", QUANTITIES), ("positive", POSITIVE)):
        given = getattr(settings, name)
        if given not in values:
            raise UnknownName(f"There is no {name} “{given}” of an influence. Choose {' or '.join(values)}.")


def listed(influence: Floats, mean: Floats, top: int) -> list[int]:
    """Indices of the first `top` of either that are above 0, each once, by falling influence, ties by index."""
    chosen: set[int] = set()
    for values in (influence, mean):
        chosen |= {int(c) for c in np.argsort(-values, kind="stable")[:top] if values[c] > 0}
    return sorted(chosen, key=lambda c: (-influence[c], c))


def parse_latent(name: str) -> tuple[str, int]:
    """(SAE, index) of `sae.SAE.INDEX`. Raises UnknownName."""
    kind, _, rest = name.partition(".")
    sae, _, index = rest.rpartition(".")
    if kind != "sae" or not sae or not (index.isascii() and index.isdigit()) or len(index) > 7:
        raise UnknownName(f"“{name[:80]}” is not a latent. Latents are written sae.SAE.INDEX.")
    return sae, int(index)
