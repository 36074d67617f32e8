"""A name or folder becomes a model, a processor and their anatomy.

Only safetensors weights are read and no code from a model's folder is run. The image processor is asked for by its
PIL backend, so that torchvision is not needed and results do not depend on whether it is installed.

*Device*: one, or all of them (`auto`: accelerate spreads the layers, and what does not fit lies in CPU memory or on
disk). *Number type*: of activations and of all weights that are not packed. *Bits*: bitsandbytes packs linear maps. In
4 bits (NF4) a layer computes with its unpacked weights, so all of the engine holds. In 8 bits (LLM.int8) it also rounds
its *inputs* to 8 bits; the decoder's down projections are left as they are, for their inputs are the activations that
are shown, scored and turned.
"""

import copy
import dataclasses
import hashlib
import importlib.util
import logging
import os
import re
from pathlib import Path
from typing import Any

import torch

from engine.anatomy import Anatomy, down_paths, find_anatomy
from engine.contract import ModelRefused
from engine.processors import load_processor
from engine.weights import bring_together, device_of

BUILTIN = "builtin"
BUILTIN_FOLDER = Path(__file__).parent / "builtin" / "model"
_BLOCK = 1 << 20
PROSE = frozenset({".md", ".png", ".jpg", ".webp"})
FIGURES = "figures.json"
DTYPES = ("auto", "float32", "bfloat16", "float16")
BITS = (8, 4)


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A model ready for use: in evaluation mode, with no parameter that requires a gradient."""

    name: str
    folder: Path | None
    revision: str
    model: Any
    processor: Any
    anatomy: Anatomy

    no_gradient: str = ""
    """Why there are no gradients; '' where there are (found at load by `engine.selfcheck.why_no_gradient`)."""

    @property
    def device(self) -> torch.device:
        """Where the model takes its ids, and where results are brought together: its first parameter's device."""
        return device_of(self.model)

    @property
    def devices(self) -> str:
        """Every place that holds a part of the model, as words: `cpu`, `cuda:0`, `cuda:0, cuda:1, disk`."""
        places = (getattr(self.model, "hf_device_map", None) or {"": self.device}).values()
        return ", ".join(sorted({f"cuda:{place}" if isinstance(place, int) else str(place) for place in places}))

    @property
    def whole(self) -> bool:
        """Whether all of the model lies on one device, unpacked: it can be copied and cast."""
        return self.bits is None and not any(parameter.is_meta for parameter in self.model.parameters())

    @property
    def bits(self) -> int | None:
        """8 or 4 where linear maps are packed by bitsandbytes."""
        return next((bits for bits in BITS if getattr(self.model, f"is_loaded_in_{bits}bit", False)), None)

    @property
    def number_type(self) -> str:
        """Part of every result's identity: `float32`, `bfloat16, 4-bit weights`."""
        dtype = str(self.model.dtype).removeprefix("torch.")
        return dtype if self.bits is None else f"{dtype}, {self.bits}-bit weights"

    @property
    def sees(self) -> bool:
        """Whether the model takes pictures."""
        return getattr(self.processor, "image_processor", None) is not None

    @property
    def builtin(self) -> bool:
        return self.name == BUILTIN


def load(
    name: str = BUILTIN,
    device: str | dict[str, Any] | None = None,
    dtype: str | torch.dtype | None = None,
    quantize: int | None = None,
) -> Loaded:
    """Load `builtin`, a folder, or a hub name. `device`: cpu, cuda, cuda:N, `auto` (spread over all devices) or a map
    of modules to devices as transformers takes it; None = CUDA where there is one. `dtype`: one of DTYPES (`auto` = the
    checkpoint's own); None = float32 on the CPU and the checkpoint's own elsewhere. `quantize`: one of BITS, or None.
    Raises ModelRefused with the reason and the remedy."""
    from transformers import GenerationConfig

    folder = BUILTIN_FOLDER if name == BUILTIN else Path(name).expanduser()
    local = folder.is_dir()
    if name == BUILTIN and not local:
        raise ModelRefused("The built-in model's folder is missing from this installation; run from a clone.")
    if not local and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise ModelRefused(f"There is no folder {name}; give a folder with a model, or a hub name like owner/model.")
    source = str(folder) if local else name
    place = known_device(device)
    number: Any = _known_dtype(dtype) or (torch.float32 if place == "cpu" else "auto")
    options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": local}
    if quantize is not None or isinstance(place, dict) or place == "auto":
        require("accelerate", "to spread or to pack a model" if quantize else "to spread a model over devices")
        options["device_map"] = {"": place} if isinstance(place, str) and place != "auto" else place
    try:
        processor = load_processor(source, local)
        kind, config = _model_class(source, local)
        if quantize is not None:
            options["quantization_config"] = _packing(quantize, number, kind, config)
        model: Any = kind.from_pretrained(source, dtype=number, use_safetensors=True, **options)
    except (OSError, ValueError, TypeError, KeyError, ImportError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelRefused(
            f"{name} could not be loaded as a vision-language or language model: {first} "
            "It needs a config.json, a processor and safetensors weights."
        ) from error
    model = (model if "device_map" in options else model.to(place)).eval().requires_grad_(False)
    bring_together(model)
    # A checkpoint's own settings (penalties, suppressed tokens, sampling) would bend answers and probabilities unseen,
    # for transformers mixes them into every generation. Only the tokens that end an answer are kept.
    own = model.generation_config
    model.generation_config = GenerationConfig(
        do_sample=False, bos_token_id=own.bos_token_id, eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id
    )
    anatomy = find_anatomy(model)
    revision = _folder_revision(folder) if local else _hub_revision(model)
    return Loaded(name, folder if local else None, revision, model, processor, anatomy)


def known_device(device: str | dict[str, Any] | None) -> str | dict[str, Any]:
    """The device to load onto. Raises ModelRefused, with the possible ones, where there is no such device here."""
    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device is None:
        return "cuda" if here else "cpu"
    if isinstance(device, dict) or device in ("cpu", "auto"):
        return device
    found = re.fullmatch(r"cuda(?::(\d+))?", device)
    possible = ", ".join(["cpu", "auto", *(["cuda"] if here else []), *(f"cuda:{n}" for n in range(here))])
    if found is None or int(found[1] or 0) >= here:
        why = "is no device" if found is None else "is not there: torch sees no CUDA device" if not here else "is none"
        raise ModelRefused(f"The device {device} {why}. Choose one of {possible}.")
    return device


def _known_dtype(dtype: str | torch.dtype | None) -> Any:
    if dtype is None or dtype == "auto" or isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in DTYPES:
        raise ModelRefused(f"The dtype {dtype} is not possible. Choose one of {', '.join(DTYPES)}.")
    return getattr(torch, dtype)


def require(package: str, what_for: str) -> None:
    """Raise ModelRefused, with the command that installs it, where an optional package is missing."""
    if importlib.util.find_spec(package) is None:
        raise ModelRefused(f"The package {package} is needed {what_for}. Install it: pip install {package}")


def _packing(bits: int, number: Any, kind: Any, config: Any) -> Any:
    """How bitsandbytes packs the model's linear maps; all but the unembedding, and in 8 bits the down projections."""
    from transformers import BitsAndBytesConfig

    if bits not in BITS:
        raise ModelRefused(f"Weights can be packed in {' or '.join(map(str, BITS))} bits, not in {bits}.")
    require("bitsandbytes", f"to load a model in {bits} bits")
    if bits == 4:
        computes = getattr(config, "dtype", None) if number == "auto" else number
        return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=computes)
    with torch.device("meta"):
        shell = kind.from_config(copy.deepcopy(config), trust_remote_code=False)
    unembedding = [name for name, module in shell.named_modules() if module is shell.get_output_embeddings()]
    return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=[*unembedding, *down_paths(shell)])


def _model_class(source: str, local: bool) -> tuple[Any, Any]:
    """The class of models that answer about pictures where the configuration belongs to one, else that of decoders;
    and the configuration."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    config = AutoConfig.from_pretrained(source, trust_remote_code=False, local_files_only=local)
    sees = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return AutoModelForImageTextToText if sees else AutoModelForCausalLM, config


def _hub_revision(model: Any) -> str:
    commit = getattr(model.config, "_commit_hash", None)
    return str(commit)[:16] if commit else _tensor_revision(model)


def _tensor_revision(model: Any) -> str:
    digest = hashlib.sha256()
    for key, tensor in model.state_dict().items():
        digest.update(key.encode())
        digest.update(tensor.detach().flatten()[:64].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _folder_revision(folder: Path) -> str:
    """A hash of everything that decides the model's numbers: all files of the folder but its prose and pictures."""
    digest = hashlib.sha256()
    for path in sorted(
        path for path in folder.iterdir() if path.is_file() and path.suffix not in PROSE and path.name != FIGURES
    ):
        digest.update(f"{path.name}:{path.stat().st_size}".encode())
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()[:16]


def processor_name(loaded: Loaded) -> str:
    """The processor's class and the library's version, part of every result's identity."""
    import transformers

    image = getattr(loaded.processor, "image_processor", None)
    holder = loaded.processor if loaded.sees else loaded.processor.tokenizer
    names = [type(holder).__name__] + ([type(image).__name__] if image is not None else [])
    return "+".join(names) + f" transformers {transformers.__version__}"


def quiet() -> None:
    """Silence the model library's progress bars, and a line that bitsandbytes writes for every 8-bit product; a local
    folder never needs the network."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from transformers.utils import logging as library

    library.disable_progress_bar()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
