"""A name or folder becomes a model, a processor and their anatomy.

Only safetensors weights are read and no code from a model's folder is run. The image processor is asked for by its
PIL backend, so that torchvision is not needed and results do not depend on whether it is installed.
"""

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Any

import torch

from engine.anatomy import Anatomy, find_anatomy
from engine.contract import ModelRefused
from engine.processors import load_processor

BUILTIN = "builtin"
BUILTIN_FOLDER = Path(__file__).parent / "builtin" / "model"
_BLOCK = 1 << 20
PROSE = frozenset({".md", ".png", ".jpg", ".webp"})
FIGURES = "figures.json"


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A model ready for use: in evaluation mode, with no parameter that requires a gradient."""

    name: str
    folder: Path | None
    revision: str
    model: Any
    processor: Any
    anatomy: Anatomy

    @property
    def device(self) -> torch.device:
        return torch.device(self.model.device)

    @property
    def sees(self) -> bool:
        """Whether the model takes pictures."""
        return getattr(self.processor, "image_processor", None) is not None

    @property
    def builtin(self) -> bool:
        return self.name == BUILTIN


def load(name: str = BUILTIN, device: str | None = None, dtype: torch.dtype | None = None) -> Loaded:
    """Load `builtin`, a folder, or a hub name. `device` defaults to CUDA where there is one; `dtype` to float32 on
    the CPU and the checkpoint's own type elsewhere. Raises ModelRefused with the reason and the remedy."""
    from transformers import GenerationConfig

    folder = BUILTIN_FOLDER if name == BUILTIN else Path(name).expanduser()
    local = folder.is_dir()
    if name == BUILTIN and not local:
        raise ModelRefused("The built-in model's folder is missing from this installation; run from a clone.")
    if not local and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise ModelRefused(f"There is no folder {name}; give a folder with a model, or a hub name like owner/model.")
    source = str(folder) if local else name
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    wanted: Any = dtype or (torch.float32 if device == "cpu" else "auto")
    try:
        processor = load_processor(source, local)
        model: Any = _model_class(source, local).from_pretrained(
            source, dtype=wanted, use_safetensors=True, trust_remote_code=False, local_files_only=local
        )
    except (OSError, ValueError, TypeError, KeyError, ImportError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelRefused(
            f"{name} could not be loaded as a vision-language or language model: {first} "
            "It needs a config.json, a processor and safetensors weights."
        ) from error
    model = model.to(device).eval().requires_grad_(False)
    # A checkpoint's own settings (penalties, suppressed tokens, sampling) would bend answers and probabilities unseen,
    # for transformers mixes them into every generation. Only the tokens that end an answer are kept.
    own = model.generation_config
    model.generation_config = GenerationConfig(
        do_sample=False, bos_token_id=own.bos_token_id, eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id
    )
    anatomy = find_anatomy(model)
    revision = _folder_revision(folder) if local else _hub_revision(model)
    return Loaded(name, folder if local else None, revision, model, processor, anatomy)


def _model_class(source: str, local: bool) -> Any:
    """The class of models that answer about pictures where the configuration belongs to one, else that of decoders."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    config = AutoConfig.from_pretrained(source, trust_remote_code=False, local_files_only=local)
    return AutoModelForImageTextToText if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING else AutoModelForCausalLM


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
    """Silence the model library's progress bars; a local folder never needs the network."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from transformers.utils import logging

    logging.disable_progress_bar()
