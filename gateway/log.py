"""The gateway's log lines: an event and its keys and values.

Never prompt text, never keys: events are constant names, and of an error only its class and place are
logged, since its message may quote what a client sent.
"""

import logging
import traceback

_logger = logging.getLogger("gateway")


def log_event(event: str, *, level: int = logging.INFO, **fields: object) -> None:
    """One line; values with spaces are quoted."""
    _logger.log(level, " ".join([event, *(f"{name}={_value(value)}" for name, value in fields.items())]))


def log_bug(event: str, error: BaseException, **fields: object) -> None:
    """An error that is our bug: its class and where it was raised, innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    place = ">".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames[-8:])
    log_event(event, level=logging.ERROR, error=type(error).__name__, place=place, **fields)


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    text = str(value)
    return repr(text) if not text or any(char.isspace() or char in "='\"" for char in text) else text
