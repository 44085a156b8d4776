"""Settings of a process: defaults, then a TOML file, then environment, then flags; later wins.

Each process declares one frozen `msgspec.Struct`, whose fields carry their descriptions, and reads it once,
in its `__main__`. A field `arena_bytes` is the key `arena_bytes` of the file, the variable
`<PREFIX>ARENA_BYTES`, and the flag `--arena-bytes`; lists are written with commas in the latter two.
"""

import argparse
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kvstore.core.errors import ConfigError

Settings = TypeVar("Settings", bound=msgspec.Struct)


def read_settings(
    kind: type[Settings],
    *,
    program: str,
    description: str,
    env_prefix: str,
    arguments: Sequence[str],
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """One `kind` from the command line's `arguments`, `environ` and the file that `--config` names.

    Raises: ConfigError for a file that cannot be read, an unknown key or a value of another type. (argparse
    ends the process by itself for unknown flags, with status 2.)"""
    fields = _fields(kind)
    flags = vars(_parser(program, description, fields).parse_args(arguments))
    merged = _read_file(flags.pop("config"))
    for name, field in fields.items():
        text = flags[name] if flags[name] is not None else environ.get(env_prefix + name.upper())
        if text is not None:
            merged[name] = _split(text) if field.get("type") == "array" else text
    if unknown := sorted(set(merged) - set(fields)):
        raise ConfigError(f"unknown setting {', '.join(unknown)}; known are {', '.join(sorted(fields))}")
    try:
        return msgspec.convert(merged, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"bad setting: {error}") from error


def _fields(kind: type[msgspec.Struct]) -> dict[str, dict[str, Any]]:
    """Each field's JSON schema, by name."""
    fields: dict[str, dict[str, Any]] = msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"]
    return fields


def _parser(program: str, description: str, fields: Mapping[str, dict[str, Any]]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(program, description=description, allow_abbrev=False)
    parser.add_argument("--config", type=Path, help="TOML file with any of the settings below")
    for name, field in fields.items():
        flag, default = "--" + name.replace("_", "-"), field.get("default")
        notes = "required" if "default" not in field else f"default: {default}" if default not in ("", None, []) else ""
        text = field["description"].replace("%", "%%") + (f" ({notes})" if notes else "")
        if field.get("type") == "boolean":
            parser.add_argument(flag, default=None, action=argparse.BooleanOptionalAction, help=text)
        else:
            parser.add_argument(flag, default=None, metavar=name.rpartition("_")[2].upper(), help=text)
    return parser


def _read_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read the config file {file}: {error}") from error


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
