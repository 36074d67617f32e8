"""Configuration: environment variables with the prefix SFUMATO_, or the options of `sfumato serve`."""

import re
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict

CHOICES = {
    "device": (r"|cpu|cuda(:\d+)?|auto", "cpu, cuda, cuda:N (N from 0) or auto (spread over all devices)"),
    "dtype": ("|auto|float32|bfloat16|float16", "float32, bfloat16, float16 or auto (the checkpoint's own)"),
    "quantize": ("|0|8|4", "8 or 4 (bits of a weight)"),
}
"""Settings with few possible values: their pattern ('' or 0 = not chosen), and the values in words."""


class Settings(BaseSettings):
    """Every value can be set as SFUMATO_NAME. Sizes are in bytes, sides in pixels."""

    model_config = SettingsConfigDict(env_prefix="SFUMATO_", extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    allowed_hosts: tuple[str, ...] = ()
    """Further names under which this server may be asked for (localhost and `host` are always allowed)."""
    model: str = "builtin"
    """`builtin`, a folder, the name of a model on a hub — or `fake` for the engine without a model."""
    device: str = ""
    """Where the model runs; empty = CUDA where there is one. `auto` needs the package accelerate."""
    dtype: str = ""
    """Number type; empty = float32 on the CPU, the checkpoint's own elsewhere."""
    quantize: int = 0
    """Bits of packed weights, 8 or 4, by the packages accelerate and bitsandbytes; 0 = not packed."""
    data_dir: Path = Path("var")
    database_url: str = ""
    """SQLAlchemy URL; empty = an SQLite file in `data_dir`."""
    max_upload: int = 20 * 2**20
    max_pixels: int = 64_000_000
    max_side: int = 2048
    """Pictures are scaled down to this side; all later steps see the scaled picture."""
    max_question: int = 1000
    max_new_tokens: int = Field(default=32, ge=1)
    max_queue: int = 100
    """Runs and attributions that may wait at once."""
    ranked: int = Field(default=100, ge=1)
    """Neurons of largest magnitude that are stored with each attribution."""
    sae_dirs: tuple[Path, ...] = ()
    """Folders of this machine from which pages may attach SAEs, and take pictures to train on, beside `saes` in
    `data_dir`: whoever can open the pages can have files there read."""
    sae_hub: bool = False
    """Whether pages may have SAEs fetched from the hub that transformers is configured for."""
    fake_delay: float = 0.0
    """Seconds that the fake engine takes for each token."""
    log_level: str = "info"

    @field_validator(*CHOICES, mode="before")
    @classmethod
    def _possible(cls, value: Any, info: ValidationInfo) -> Any:
        pattern, words = CHOICES[str(info.field_name)]
        if not re.fullmatch(pattern, str(value)):
            raise PydanticCustomError(
                "choice", "“{value}” is not possible; choose {words}", {"value": value, "words": words}
            )
        return value or 0 if info.field_name == "quantize" else value

    @property
    def url(self) -> str:
        """The database to use, with the default filled in."""
        return self.database_url or f"sqlite:///{self.data_dir / 'sfumato.db'}"
