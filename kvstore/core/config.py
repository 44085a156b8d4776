"""Settings of a process: defaults, then a TOML file, then environment, then flags; later wins.

Each process declares one frozen `msgspec.Struct` and reads it once, in its `__main__`.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kvstore.core.errors import ConfigError

Settings = TypeVar("Settings", bound=msgspec.Struct)


def load_settings(
    kind: type[Settings],
    *,
    file: Path | None,
    env_prefix: str,
    flags: Mapping[str, Any],
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """One `kind` from `file`, the variables `<env_prefix><FIELD>` and `flags` (None: not given).

    Raises: ConfigError for a file that cannot be read, an unknown key or a value of another type."""
    merged: dict[str, Any] = {}
    if file is not None:
        try:
            merged.update(tomllib.loads(file.read_text()))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"cannot read the config file {file}: {error}") from error
    known = {field.name for field in msgspec.structs.fields(kind)}
    for name in known:
        if (value := environ.get(env_prefix + name.upper())) is not None:
            merged[name] = value
    merged.update({name: value for name, value in flags.items() if value is not None})
    if unknown := sorted(set(merged) - known):
        raise ConfigError(f"unknown setting {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    try:
        return msgspec.convert(merged, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"bad setting: {error}") from error
