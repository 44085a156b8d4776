"""Settings of a gateway process; see kvstore/core/config.py for where they come from, docs/api.md for what
clients notice of them."""

import ipaddress
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kvstore.core import config
from kvstore.core.errors import ConfigError


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway. Sizes in bytes, times in seconds."""

    host: Annotated[str, Meta(description="address to serve on")] = "127.0.0.1"
    port: Annotated[int, Meta(description="0 takes a free one; the ready file says which")] = 8000
    workers: Annotated[list[str], Meta(description="addresses of engine workers; they may come later, and come back")]
    nodes: Annotated[list[str], Meta(description="addresses of storage nodes, whose events feed the prefix index")] = []
    model_path: Annotated[
        str | None, Meta(description="GGUF file for vocabulary and chat template; by default the first worker's")
    ] = None
    api_keys: Annotated[
        list[str], Meta(description="each is a tenant; none: no key is asked for, on loopback addresses only")
    ] = []
    shared_prefix: Annotated[
        bool, Meta(description="tenants share stored prefixes, and could time whether another one has sent a text")
    ] = False
    body_bytes_max: Annotated[int, Meta(description="largest request body")] = 16 << 20
    messages_max: Annotated[int, Meta(description="most messages of a chat")] = 10_000
    queue_per_worker_max: Annotated[int, Meta(description="turns beyond its slots that wait at one worker")] = 64
    turn_deadline_s: Annotated[float, Meta(description="for a whole turn")] = 1800.0
    turn_retries: Annotated[int, Meta(description="other workers to try when one fails before the answer began")] = 2
    drain_deadline_s: Annotated[float, Meta(description="after SIGTERM: how long streams may take to end")] = 30.0
    tokenise_cache_bytes: Annotated[int, Meta(description="memory for tokens of text seen before")] = 256 << 20
    index_blocks_max: Annotated[int, Meta(description="blocks that the prefix index holds")] = 2_000_000
    ready_file: Annotated[str | None, Meta(description="written with the URL once the gateway listens")] = None

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
    """The settings from command line, environment and file, checked. Raises: ConfigError."""
    settings = config.read_settings(
        GatewaySettings,
        program="stockpot gateway",
        description="OpenAI's API in front of workers: each turn goes where it is answered first.",
        env_prefix="STOCKPOT_GATEWAY_",
        arguments=arguments,
        environ=environ,
    )
    settings.check()
    return settings


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
