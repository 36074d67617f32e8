"""A folder's or hub's tokenizer and image processor, with or without a processor class around them.

Some processor classes of transformers also hold a video half, which needs torchvision; Sfumato asks about pictures, so
it then builds the same class around the image half alone: its image processor (PIL backend), its tokenizer, its chat
template, and its own rule for expanding a picture's placeholder. Text-only models bring a tokenizer only.
"""

import dataclasses
import inspect
import sys
from typing import Any

from engine.contract import ModelRefused


@dataclasses.dataclass(eq=False)
class Rows:
    """Stands in for a processor whose class cannot be imported without torchvision, though its pictures need none: one
    image token a patch, a break token after each row, an end token after the last (Pixtral's rule)."""

    image_processor: Any
    tokenizer: Any
    chat_template: Any
    patch: int
    image_token: str
    image_break_token: str
    image_end_token: str

    def apply_chat_template(self, messages: list[dict[str, Any]], **options: Any) -> str:
        return str(self.tokenizer.apply_chat_template(messages, chat_template=self.chat_template, **options))

    def __call__(self, images: Any, text: str, return_tensors: str, add_special_tokens: bool) -> dict[str, Any]:
        side = {"height": self.patch, "width": self.patch}
        seen = self.image_processor(images, patch_size=side, return_tensors=return_tensors)
        height, width = (int(length) for length in seen["image_sizes"][0])
        row = self.image_token * (width // self.patch) + self.image_break_token
        rows = (row * (height // self.patch)).removesuffix(self.image_break_token) + self.image_end_token
        expanded = text.replace(self.image_token, rows, 1)
        written = self.tokenizer(expanded, return_tensors=return_tensors, add_special_tokens=add_special_tokens)
        return {**written, **seen}


@dataclasses.dataclass
class TextOnly:
    """What stands in for a processor where a model has no eyes."""

    tokenizer: Any
    image_processor: Any = None
    image_token: str | None = None

    @property
    def chat_template(self) -> Any:
        return getattr(self.tokenizer, "chat_template", None)

    def apply_chat_template(self, messages: list[dict[str, Any]], **options: Any) -> str:
        """Templates of text models take one string a message."""
        plain = [
            {"role": m["role"], "content": "".join(part["text"] for part in m["content"] if part["type"] == "text")}
            for m in messages
        ]
        return str(self.tokenizer.apply_chat_template(plain, **options))


def load_processor(source: str, local: bool) -> Any:
    """The processor of a folder or hub name, or `TextOnly`. Raises what transformers raises where neither loads."""
    from transformers import AutoProcessor, PreTrainedTokenizerBase

    try:
        processor = AutoProcessor.from_pretrained(
            source, backend="pil", trust_remote_code=False, local_files_only=local
        )
    except (ImportError, TypeError, ValueError, OSError, AttributeError):
        return _image_half(source, local)
    return TextOnly(processor) if isinstance(processor, PreTrainedTokenizerBase) else processor


def _image_half(source: str, local: bool) -> Any:
    """The processor class named in the folder, around everything but its video half."""
    from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING, processor_class_from_name
    from transformers.processing_utils import ProcessorMixin

    options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": local}
    try:
        settings = dict(ProcessorMixin.get_processor_dict(source, local_files_only=local)[0])
    except OSError:
        settings = {}
    known: Any = None
    try:
        named = settings.get("processor_class")
        known = processor_class_from_name(named) if named else None
        if known is None:
            known = PROCESSOR_MAPPING.get(type(AutoConfig.from_pretrained(source, **options)), None)
    except ImportError:
        named = named or "its processor"
    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    if known is None and named is None:
        return TextOnly(tokenizer)
    image_processor = AutoImageProcessor.from_pretrained(source, backend="pil", **options)
    template = settings.get("chat_template") or getattr(tokenizer, "chat_template", None)
    if known is None or type(known).__name__ == "DummyObject":
        return _rows(settings, image_processor, tokenizer, template)
    if "video_processor" not in known.get_attributes():
        raise ModelRefused(f"The processor {known.__name__} cannot be loaded.")
    return image_half(known, settings, image_processor, tokenizer, template)


def _rows(settings: dict[str, Any], image_processor: Any, tokenizer: Any, template: Any) -> Rows:
    tokens = {
        name: settings.get(name, default)
        for name, default in (
            ("image_token", "[IMG]"),
            ("image_break_token", "[IMG_BREAK]"),
            ("image_end_token", "[IMG_END]"),
        )
    }
    if "patch_size" not in settings or any(token not in tokenizer.get_vocab() for token in tokens.values()):
        raise ModelRefused(f"The processor {settings.get('processor_class')} cannot be loaded without torchvision.")
    patch = int(settings["patch_size"]) * int(settings.get("spatial_merge_size", 1))
    return Rows(image_processor, tokenizer, template, patch, **tokens)


def image_half(known: Any, settings: dict[str, Any], image_processor: Any, tokenizer: Any, template: Any) -> Any:
    """An instance of the processor class `known` that never asks for its video half; `settings` = its own options."""
    from transformers.processing_utils import ProcessorMixin

    class ImageHalf(known):  # type: ignore[misc]
        def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
            return None if name == "video_processor" else super().check_argument_for_proper_class(name, argument)

        def apply_chat_template(self, *given: Any, **options: Any) -> Any:
            return ProcessorMixin.apply_chat_template(self, *given, **options)

    takes = set(inspect.signature(known.__init__).parameters) - {"chat_template", "self", "kwargs"}
    given = {name: value for name, value in settings.items() if name in takes and not isinstance(value, dict)}
    ImageHalf.__name__ = known.__name__
    module = vars(sys.modules[known.__module__])
    missing = [name for name, value in module.items() if value is None and not name.startswith("__")]
    try:
        module.update(dict.fromkeys(missing, _only_for_videos))
        return ImageHalf(
            image_processor=image_processor, tokenizer=tokenizer, video_processor=None, chat_template=template, **given
        )
    finally:
        module.update(dict.fromkeys(missing))


def _only_for_videos(*_given: Any) -> None:
    """Stands in, while a processor is built, for an optional package that its video half asks for."""
    raise ModelRefused("This model's videos need another package; Sfumato asks about pictures.")
