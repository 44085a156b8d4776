"""Log lines of every process: an event with a constant name, and its keys and values.

    log.info("block_corrupt key=%s size=%d", key, size)

As text that is `time=... level=... logger=... event=block_corrupt key=... size=...`, as JSON one object with
the same names. Never prompt text, never secrets. Lines of libraries have the event `message`.
"""

import json
import logging
import re
import sys
import time
from typing import Literal

LogFormat = Literal["text", "json"]

_PACKAGES = ("kvstore", "engine", "gateway", "stockpot")
_ARGUMENT = re.compile(r"(?:(\w+)=)?%[^a-zA-Z%]*[a-zA-Z]")


def start_logging(log_format: LogFormat = "text", **constant: str) -> None:
    """Lines on stderr, each with the fields `constant`: ours from INFO on, those of libraries from WARNING on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines(constant) if log_format == "json" else _TextLines(constant))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    for name in _PACKAGES:
        logging.getLogger(name).setLevel(logging.INFO)


class KeyValues(dict[str, object]):
    """Fields that are given to a log line as one argument: `log.info("node_start %s", KeyValues(...))`."""

    def __str__(self) -> str:
        return " ".join(f"{name}={value!r}" for name, value in self.items())


class _TextLines(logging.Formatter):
    """`name=value` after `name=value`; a traceback follows on lines of its own."""

    def __init__(self, constant: dict[str, str]) -> None:
        super().__init__()
        self._constant = "".join(f" {name}={value}" for name, value in constant.items())

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        event = text if _is_ours(record) else f"message text={text!r}"
        head = f"time={_time(record)} level={record.levelname} logger={record.name}"
        traceback = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{head}{self._constant} event={event}{traceback}"


class _JsonLines(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, constant: dict[str, str]) -> None:
        super().__init__()
        self._constant = constant

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._constant,
        }
        line |= _fields(record) if _is_ours(record) else {"event": "message", "text": record.getMessage()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _time(record: logging.LogRecord) -> str:
    """When it happened, in UTC to the millisecond."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] in _PACKAGES


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """Event and values of a line, as its template names them."""
    template = str(record.msg)
    arguments = record.args if isinstance(record.args, tuple) else (record.args,)
    fields: dict[str, object] = {"event": template.split(" ", 1)[0]}
    found = _ARGUMENT.findall(template)
    if len(found) != len(arguments) or (not found and " " in template):
        return fields | {"text": record.getMessage()}
    for name, value in zip(found, arguments, strict=True):
        if name:
            fields[name] = value
        elif isinstance(value, KeyValues):
            fields |= value
    return fields
