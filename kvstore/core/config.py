"""Settings of a process: defaults, then a TOML file, then environment, then flags; later wins.

Each process declares one frozen `msgspec.Struct`, whose fields carry their descriptions, and reads it once,
in its `__main__`. A field `arena_bytes` is the key `arena_bytes` of the file, the variable
`<PREFIX>ARENA_BYTES`, and the flag `--arena-bytes`; lists are written with commas in the latter two, and
sizes may have a unit (`64GiB`). The file is named by `--config` or by `<PREFIX>CONFIG`.
"""

import argparse
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from kvstore.core.errors import ConfigError

Settings = TypeVar("Settings", bound=msgspec.Struct)

SECRET = {"writeOnly": True}
"""`extra_json_schema` of a setting that is neither logged nor shown."""

_FILE_FLAG = "config"
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}  # smallest first
_SIZE = re.compile(r"\s*(\d+)\s*(\w*)\s*")


@dataclass(frozen=True, slots=True)
class Program:
    """What the command line says about itself."""

    name: str
    description: str
    env_prefix: str
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of settings by heading of the help; those of no group come last."""
    switches: Mapping[str, str] = field(default_factory=dict)
    """Flags beside the settings, with their help."""
    notes: str = ""
    """Shown below the flags, as it stands."""


@dataclass(frozen=True, slots=True)
class Reading(Generic[Settings]):
    """Settings and how they came to be."""

    settings: Settings
    origins: Mapping[str, str]
    """Where each value is from, for a person."""
    switches: frozenset[str]
    """Those that were given."""
    variables_unknown: Sequence[str]
    """Set in the environment under our prefix, but no setting of ours. Not refused: Kubernetes sets such
    variables for a service of the same name."""

    def shown(self) -> dict[str, object]:
        """The settings without secrets."""
        return without_secrets(self.settings)


def read_settings(
    kind: type[Settings],
    *,
    program: str,
    description: str,
    env_prefix: str,
    arguments: Sequence[str],
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """As `read_command_line`, for a process without flags of its own."""
    return read_command_line(kind, Program(program, description, env_prefix), arguments, environ).settings


def read_command_line(
    kind: type[Settings], program: Program, arguments: Sequence[str], environ: Mapping[str, str] = os.environ
) -> Reading[Settings]:
    """One `kind` from the command line's `arguments`, `environ` and the config file.

    Raises: ConfigError for a file that cannot be read, an unknown key or a value of another type. (argparse
    ends the process by itself for unknown flags, with status 2.)"""
    fields = _fields(kind)
    flags = vars(_parser(program, fields).parse_args(arguments))
    switches = frozenset(name for name in program.switches if flags.pop(name))
    file = flags.pop(_FILE_FLAG) or _environ_file(environ, program.env_prefix)
    merged = _read_file(file)
    origins = dict.fromkeys(fields, "default") | dict.fromkeys(merged, f"file {file}")
    for name in fields:
        variable = program.env_prefix + name.upper()
        if flags[name] is not None:
            merged[name], origins[name] = flags[name], "flag " + _flag(name)
        elif variable in environ:
            merged[name], origins[name] = environ[variable], "environment " + variable
    if unknown := sorted(set(merged) - set(fields)):
        raise ConfigError(f"unknown setting {', '.join(unknown)}; known are {', '.join(sorted(fields))} ({file})")
    for name, value in merged.items():
        if isinstance(value, str):
            merged[name] = _parsed(name, value, fields[name], origins[name])
    try:
        settings = msgspec.convert(merged, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"bad setting: {_with_origin(str(error), origins)}") from error
    known = {program.env_prefix + name.upper() for name in (*fields, _FILE_FLAG)}
    foreign = sorted(name for name in environ if name.startswith(program.env_prefix) and name not in known)
    return Reading(settings, origins, switches, foreign)


def without_secrets(settings: msgspec.Struct) -> dict[str, object]:
    """All values by name, those of secret settings hidden."""
    fields = _fields(type(settings))
    values = msgspec.structs.asdict(settings)
    return {name: "(hidden)" if fields[name].get("writeOnly") and values[name] else values[name] for name in values}


def is_size(name: str) -> bool:
    """Whether the setting `name` is a number of bytes."""
    return "bytes" in name.split("_")


def readable_size(n_bytes: int) -> str:
    """`n_bytes` in the largest unit of which it has one, as in `1.5 GiB`."""
    unit = next((unit for unit, size in reversed(_UNITS.items()) if n_bytes >= size), "")
    return f"{n_bytes / _UNITS[unit]:.4g} {unit}" if unit else str(n_bytes)


def _fields(kind: type[msgspec.Struct]) -> dict[str, dict[str, Any]]:
    """Each field's JSON schema, by name."""
    fields: dict[str, dict[str, Any]] = msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"]
    return fields


def _parser(program: Program, fields: Mapping[str, dict[str, Any]]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        program.name,
        usage=f"{program.name} [--config FILE] [--SETTING VALUE ...]",
        description=program.description,
        epilog=program.notes,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    variable = f"{program.env_prefix}{_FILE_FLAG.upper()}"
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help=f"TOML file with any of the settings below (default: ${variable})"
    )
    for name, text in program.switches.items():
        parser.add_argument(_flag(name), action="store_true", help=text)
    grouped = {name for names in program.groups.values() for name in names}
    groups = {**program.groups, "other settings" if grouped else "settings": [n for n in fields if n not in grouped]}
    for heading, names in groups.items():
        section = parser.add_argument_group(heading)
        for name in names:
            _add_setting(section, name, fields[name])
    return parser


def _add_setting(section: "argparse._ArgumentGroup", name: str, field: Mapping[str, Any]) -> None:
    default = field.get("default")
    shown = readable_size(default) if isinstance(default, int) and is_size(name) else default
    notes = "required" if "default" not in field else f"default: {shown}" if default not in ("", None, []) else ""
    text = field["description"].replace("%", "%%") + (f" ({notes})" if notes else "")
    if field.get("type") == "boolean":
        section.add_argument(_flag(name), default=None, action=argparse.BooleanOptionalAction, help=text)
    else:
        metavar = "BYTES" if is_size(name) else name.rpartition("_")[2].upper()
        section.add_argument(_flag(name), default=None, metavar=metavar, help=text)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _environ_file(environ: Mapping[str, str], env_prefix: str) -> Path | None:
    named = environ.get(f"{env_prefix}{_FILE_FLAG.upper()}")
    return Path(named) if named else None


def _read_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read the config file {file}: {error}") from error


def _parsed(name: str, text: str, field: Mapping[str, Any], origin: str) -> object:
    """What `text` means, as far as msgspec does not know: lists and sizes."""
    if field.get("type") == "array":
        return [part.strip() for part in text.split(",") if part.strip()]
    if not is_size(name):
        return text
    size = _SIZE.fullmatch(text)
    if size is None or size[2] not in _UNITS:
        raise ConfigError(f"bad setting: {name} is {text!r} ({origin}), expected bytes as in 1073741824 or 1GiB")
    return int(size[1]) * _UNITS[size[2]]


def _with_origin(message: str, origins: Mapping[str, str]) -> str:
    """msgspec's `message`, which ends in "at `$.name`", and where that value is from."""
    found = re.search(r"at `\$\.(\w+)", message)
    return f"{message} ({origins[found[1]]})" if found and found[1] in origins else message
