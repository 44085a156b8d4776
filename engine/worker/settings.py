"""Settings of a worker process; each is a key of the TOML file, STOCKPOT_WORKER_<NAME>, or --name."""

import os
from pathlib import Path

import msgspec

from engine.llama.context import KV_TYPES, SLOTS_MAX
from kvstore.core.errors import ConfigError
from kvstore.core.namespace import BLOCK_TOKENS_MAX


class WorkerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: str
    """Path of the GGUF file."""
    listen: str = "127.0.0.1:0"
    """Address of the gRPC server; port 0 takes a free one."""
    store: str = ""
    """Address of the storage node; empty serves without a store."""
    worker_id: str = ""
    """Name in logs and answers; the listening address when empty."""
    model_name: str = ""
    """Name that clients ask for; the file's name without its ending when empty."""
    context_tokens: int = 0
    """Largest prompt plus answer; 0 takes the model's, at most 32,768."""
    cells: int = 0
    """Tokens of KV in the hot tier, for all turns together; 0 takes twice the context."""
    idle_cells_max: int = 0
    """Cells that finished turns may keep hot: attention pays for every used cell, and a restore is cheap. 0 takes
    half of the cells, or all of them without a store."""
    slots: int = 16
    """Turns that run at once or stay hot."""
    queue_max: int = 64
    """Turns that may wait for a slot; more are refused."""
    threads: int = 0
    """Threads that compute; 0 takes all cores."""
    kv_type: str = "q8_0"
    """Type of K and V: q8_0, bf16 or f16."""
    block_tokens: int = 32
    batch_tokens: int = 128
    """Tokens of one batch at most: restores, new turns and cancels wait for the end of a batch. Larger ones
    are no faster on a CPU (measured on SmolLM2-135M: 115 to 125 tokens/s for 32 to 512)."""
    chunk_beside_decodes: int = 64
    """Prompt tokens of one batch at most while answers run."""
    ready_file: str = ""
    """Written as JSON (address, pid) once the worker serves."""

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


def _check_address(name: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{name} is {address!r}, expected HOST:PORT")
