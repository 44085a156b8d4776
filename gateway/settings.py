"""Settings of a gateway process. Order: defaults, TOML file, `STOCKPOT_GATEWAY_*`, flags; later wins.

Lists are written with commas in the environment and in flags. See docs/api.md for what clients notice.
"""

import argparse
import ipaddress
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvstore.core.config import load_settings
from kvstore.core.errors import ConfigError

ENV_PREFIX = "STOCKPOT_GATEWAY_"
_LISTS = ("workers", "nodes", "api_keys")


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free one; `ready_file` says which."""
    workers: list[str]
    """Addresses of engine workers, `host:port`. They may come later, and come back."""
    nodes: list[str] = []
    """Addresses of storage nodes, whose block events feed the prefix index."""
    model_path: str | None = None
    """GGUF file for vocabulary and chat template; by default where the first worker says its model is."""
    api_keys: list[str] = []
    """Each is a tenant. Empty: no key is asked for, which is allowed on loopback addresses only."""
    shared_prefix: bool = False
    """True: all tenants share stored prefixes, and could time whether another one has sent a text."""
    body_bytes_max: int = 16 << 20
    messages_max: int = 10_000
    queue_per_worker_max: int = 64
    """Turns beyond its slots that this gateway lets wait at one worker."""
    turn_deadline_s: float = 1800.0
    turn_retries: int = 2
    """On how many other workers a turn is tried when one fails before the answer began."""
    drain_deadline_s: float = 30.0
    """After SIGTERM: how long streams may take to end."""
    tokenise_cache_bytes: int = 256 << 20
    index_blocks_max: int = 2_000_000
    ready_file: str | None = None
    """Where `{"url": ..., "pid": ...}` is written once the gateway listens; removed at its end."""

    def check(self) -> None:
        """Raises: ConfigError naming the first setting that cannot be."""
        if not self.workers:
            raise ConfigError("no workers: give at least one address, e.g. --workers 127.0.0.1:7001")
        for address in [*self.workers, *self.nodes]:
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65536:
                raise ConfigError(f"bad address {address!r}, expected host:port")
        if len(set(self.workers)) != len(self.workers) or len(set(self.nodes)) != len(self.nodes):
            raise ConfigError("an address is given twice")
        if not 0 <= self.port < 65536:
            raise ConfigError(f"port is {self.port}, expected 0 to 65535")
        for name in ("body_bytes_max", "messages_max", "turn_deadline_s", "drain_deadline_s", "index_blocks_max"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected more than 0")
        for name in ("queue_per_worker_max", "turn_retries", "tokenise_cache_bytes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected 0 or more")
        if not all(self.api_keys):
            raise ConfigError("an API key is empty")
        if not self.api_keys and not _is_loopback(self.host):
            raise ConfigError(f"host {self.host} can be reached from outside: give api_keys, or listen on 127.0.0.1")

    def for_log(self) -> dict[str, Any]:
        """Every setting but the keys, of which only the number is told."""
        return {**msgspec.structs.asdict(self), "api_keys": len(self.api_keys)}


def read_settings(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> GatewaySettings:
    """The settings from command line, environment and file, checked.

    Raises: ConfigError. (argparse ends the process by itself for unknown flags, with status 2.)"""
    parser = argparse.ArgumentParser(prog="python -m gateway", description="Stockpot's gateway")
    parser.add_argument("--config", type=Path, help="TOML file")
    for field in msgspec.structs.fields(GatewaySettings):
        parser.add_argument(f"--{field.name.replace('_', '-')}")
    flags = vars(parser.parse_args(arguments))
    file = flags.pop("config")
    plain_environ = dict(environ)
    for name in _LISTS:
        text = plain_environ.pop(ENV_PREFIX + name.upper(), None) if flags[name] is None else flags[name]
        plain_environ.pop(ENV_PREFIX + name.upper(), None)
        flags[name] = None if text is None else [part.strip() for part in text.split(",") if part.strip()]
    settings = load_settings(GatewaySettings, file=file, env_prefix=ENV_PREFIX, flags=flags, environ=plain_environ)
    settings.check()
    return settings


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
