"""GGUF files, as far as they can be judged without llama.cpp."""

from pathlib import Path

from kvstore.core.errors import ConfigError

_GGUF_MAGIC = b"GGUF"


def check_is_gguf(path: Path) -> None:
    """Raises: ConfigError in words unless `path` is a readable file that begins like a GGUF."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except OSError as error:
        raise ConfigError(f"cannot read the model {path}: {error.strerror}; give the path of a GGUF file") from error
    if magic != _GGUF_MAGIC:
        raise ConfigError(f"{path} is no GGUF file: it begins with {magic!r}, expected {_GGUF_MAGIC!r}")
