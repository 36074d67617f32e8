"""What an engine raises on purpose. Torch-free; `engine.contract` offers all of it.

The tree of errors (every one carries a sentence for a person: limit, value, remedy)::

    EngineError
    ├── RequestError            the request cannot be answered as asked; nothing was changed   (HTTP 422)
    │   ├── UnknownName         a concept, neuron, method or layer that does not exist (with near misses)
    │   ├── PictureTooSmall     the picture gives the model no patch to look at
    │   ├── PromptTooLong       more positions than the model has
    │   └── BadTarget           a span that is empty or outside the answer
    ├── Cancelled               the caller's `cancelled()` said so; nothing is left behind
    ├── NonFinite               a NaN or infinity, with the place where it began               (HTTP 500)
    └── ModelRefused            the model fails its self-check or cannot be loaded             (HTTP 503)
"""


class EngineError(Exception):
    """Base of all errors that an engine raises on purpose."""


class RequestError(EngineError):
    """The request cannot be answered as asked."""


class UnknownName(RequestError):
    """A name that does not exist; the message lists near misses."""


class PictureTooSmall(RequestError):
    """The picture is too small to give the model a patch."""


class PromptTooLong(RequestError):
    """Prompt and answer do not fit into the model's positions."""


class BadTarget(RequestError):
    """The target's token span is empty or outside the answer."""


class Cancelled(EngineError):
    """Stopped because the caller asked for it."""


class NonFinite(EngineError):
    """A score, logit or activation is not finite; the message names the first place."""


class ModelRefused(EngineError):
    """The model cannot be used; the message names the first reason."""
