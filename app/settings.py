"""Configuration: environment variables with the prefix SFUMATO_, or the options of `sfumato serve`."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Every value can be set as SFUMATO_NAME. Sizes are in bytes, sides in pixels."""

    model_config = SettingsConfigDict(env_prefix="SFUMATO_", extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    allowed_hosts: tuple[str, ...] = ()
    """Further names under which this server may be asked for (localhost and `host` are always allowed)."""
    model: str = "builtin"
    """`builtin`, a folder, the name of a model on a hub — or `fake` for the engine without a model."""
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
    fake_delay: float = 0.0
    """Seconds that the fake engine takes for each token."""
    log_level: str = "info"

    @property
    def url(self) -> str:
        """The database to use, with the default filled in."""
        return self.database_url or f"sqlite:///{self.data_dir / 'sfumato.db'}"
