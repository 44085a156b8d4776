"""What every Stockpot process does alike: the ready file and the end by a user's mistake."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvstore.core.errors import ConfigError


def write_ready_file(path: str | None, **content: object) -> None:
    """Write `content` and our pid as JSON, atomically: a reader sees all of it or nothing. No-op without a path.

    Raises: ConfigError when it cannot be written."""
    if not path:
        return
    part = Path(f"{path}.{os.getpid()}.tmp")
    try:
        part.write_text(json.dumps({**content, "pid": os.getpid()}))
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write the ready file {path}: {error.strerror}") from error


@contextmanager
def exit_by_mistake(program: str) -> Iterator[None]:
    """End the process with status 2, and a line for each, when the user's mistakes come out of the block.

    Raises: SystemExit; anything else as it is."""
    try:
        yield
    except Exception as error:
        if not (mistakes := _mistakes_of(error)):
            raise
        for mistake in mistakes:
            sys.stderr.write(f"{program}: {mistake}\n")
        raise SystemExit(2) from None


def _mistakes_of(error: BaseException) -> list[ConfigError]:
    """The user's mistakes in `error`, which may be a group of groups; none when it is something else."""
    if isinstance(error, ConfigError):
        return [error]
    if isinstance(error, BaseExceptionGroup):
        return [mistake for inner in error.exceptions for mistake in _mistakes_of(inner)]
    return []
