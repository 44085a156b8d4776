"""What a worker's KV is: the fingerprint that its namespaces are made from."""

import hashlib
import json
import os
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from engine.llama.library import C
from kvstore.core.errors import ConfigError
from kvstore.core.namespace import Fingerprint

_CHUNK_BYTES = 8 << 20
# Metadata of the GGUF is part of its digest; this is what the same file can still be run with.
_STATE_FORMAT = "llama.cpp-seq"


def fingerprint(path: Path, *, kv_type: str, block_tokens: int) -> Fingerprint:
    """Fingerprint of KV that this build computes from the GGUF at `path`, without a salt."""
    return Fingerprint(
        model_digest=model_digest(path),
        block_tokens=block_tokens,
        properties={
            "engine": f"llama.cpp via llama-cpp-python {C.__version__}",
            "state_format": f"{_STATE_FORMAT}-{C.LLAMA_STATE_SEQ_VERSION}",
            "kv_type_k": kv_type,
            "kv_type_v": kv_type,
            "flash_attention": "on",
            "rope": "model",
            "adapters": "none",
        },
    )


def model_digest(path: Path) -> bytes:
    """SHA-256 of the file, remembered by size and modification time below the user's cache folder.

    Raises: ConfigError when the file cannot be read."""
    try:
        stat = path.stat()
    except OSError as error:
        raise ConfigError(f"cannot read the model {path}: {error.strerror}") from error
    identity = {"path": str(path.resolve()), "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stockpot" / "digests"
    try:
        digest = bytes.fromhex((cache / name).read_text())
    except (OSError, ValueError):
        digest = b""
    if len(digest) == hashlib.sha256().digest_size:
        return digest
    digest = _hash_file(path, stat.st_size)  # never hashed, or a crash tore the note of it
    try:
        cache.mkdir(parents=True, exist_ok=True)
        part = cache / f"{name}.{os.getpid()}"
        part.write_text(digest.hex())
        part.replace(cache / name)
    except OSError:
        pass  # a read-only home only means hashing again at the next start
    return digest


def _hash_file(path: Path, size: int) -> bytes:
    digest = hashlib.sha256()
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"hashing {path.name}", total=size)
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                progress.advance(task, len(chunk))
    return digest.digest()
