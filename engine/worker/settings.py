"""Settings of a worker process; see kvstore/core/config.py for where they come from."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from engine.llama.context import KV_TYPES, SLOTS_MAX
from kvstore.core import config
from kvstore.core.errors import ConfigError
from kvstore.core.namespace import BLOCK_TOKENS_MAX


class WorkerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One worker. Sizes in tokens."""

    model: Annotated[str, Meta(description="GGUF file to serve")]
    listen: Annotated[str, Meta(description="address of the gRPC server; port 0 takes a free one")] = "127.0.0.1:0"
    store: Annotated[str, Meta(description="address of the storage node; none serves without a store")] = ""
    worker_id: Annotated[str, Meta(description="name in logs and answers; the listening address by default")] = ""
    model_name: Annotated[str, Meta(description="name that clients ask for; the file's by default")] = ""
    context_tokens: Annotated[
        int, Meta(description="largest prompt plus answer; 0 takes the model's, at most 32,768")
    ] = 0
    cells: Annotated[
        int, Meta(description="tokens of KV in the hot tier, for all turns together; 0 takes twice the context")
    ] = 0
    # Attention pays for every used cell, and a restore is cheap.
    idle_cells_max: Annotated[
        int, Meta(description="cells that finished turns keep hot; 0 takes half of all, or all without a store")
    ] = 0
    slots: Annotated[int, Meta(description="turns that run at once or stay hot")] = 16
    queue_max: Annotated[int, Meta(description="turns that may wait for a slot; more are refused")] = 64
    threads: Annotated[int, Meta(description="threads that compute; 0 takes all cores")] = 0
    kv_type: Annotated[str, Meta(description="type of K and V: q8_0, bf16 or f16")] = "q8_0"
    block_tokens: Annotated[int, Meta(description="tokens of one block")] = 32
    # Larger batches are no faster on a CPU: 115 to 125 tokens/s for 32 to 512 on SmolLM2-135M.
    batch_tokens: Annotated[
        int, Meta(description="tokens of one batch; restores, new turns and cancels wait for its end")
    ] = 128
    chunk_beside_decodes: Annotated[int, Meta(description="prompt tokens of one batch while answers run")] = 64
    metrics_port: Annotated[
        Annotated[int, Meta(ge=0, le=65535)] | None, Meta(description="Prometheus port; 0 takes a free one")
    ] = None
    ready_file: Annotated[str, Meta(description="written with the address once the worker serves")] = ""

    def check(self) -> None:
        """Raises: ConfigError for a value that cannot work, with what to set instead."""
        cores = os.cpu_count() or 1
        if self.kv_type not in KV_TYPES:
            raise ConfigError(f"kv_type is {self.kv_type!r}, expected one of {', '.join(KV_TYPES)}")
        if not 0 <= self.threads <= cores:
            raise ConfigError(
                f"threads is {self.threads}, this machine has {cores} cores: more threads than cores wait for "
                "each other and are many times slower"
            )
        for name, low, high in (
            ("slots", 1, SLOTS_MAX),
            ("queue_max", 1, 1 << 16),
            ("block_tokens", 1, BLOCK_TOKENS_MAX),
            ("batch_tokens", 32, 1 << 14),
            ("chunk_beside_decodes", 1, self.batch_tokens),
        ):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected {low} to {high}")
        _check_address("listen", self.listen)
        if self.store:
            _check_address("store", self.store)
        if self.slots > self.batch_tokens:
            raise ConfigError(f"slots is {self.slots}, above batch_tokens {self.batch_tokens}: some would never decode")
        if min(self.context_tokens, self.cells, self.idle_cells_max) < 0:
            raise ConfigError("context_tokens, cells and idle_cells_max must not be negative; 0 takes the default")

    @property
    def model_path(self) -> Path:
        return Path(self.model)


def read_settings(arguments: Sequence[str]) -> WorkerSettings:
    """The settings from command line, environment and file. Raises: ConfigError."""
    return config.read_settings(
        WorkerSettings,
        program="stockpot worker",
        description="A llama.cpp worker that restores KV from a store instead of prefilling.",
        env_prefix="STOCKPOT_WORKER_",
        arguments=arguments,
    )


def _check_address(name: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{name} is {address!r}, expected HOST:PORT")
