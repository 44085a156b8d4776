"""Values made of files, made anew when the files change: certificates, tokens.

A change is seen by the files' stamps (time, size, inode), looked at once a second at most. What cannot
be read is told once in the log, and the value from before stays: a bad edit never takes a process down.
"""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from kvstore.core.errors import ConfigError

_LOOK_PERIOD_S = 1.0

Value = TypeVar("Value")
Stamp = tuple[int, int, int] | None

log = logging.getLogger(__name__)


class Reloading(Generic[Value]):
    """What `load` makes of `paths`. Raises (on creation): what `load` raises, a ConfigError that names the file."""

    def __init__(
        self,
        paths: Sequence[Path],
        load: Callable[[], Value],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = paths
        self._load = load
        self._clock = clock
        self._look_at_s = clock() + _LOOK_PERIOD_S
        self._stamps = self._read_stamps()
        self._value = load()

    def current(self) -> Value:
        """The value of the files as they are, or were a second ago."""
        if self._clock() >= self._look_at_s:
            self.look()
        return self._value

    def look(self) -> None:
        """Look at the files now; read them if they changed."""
        self._look_at_s = self._clock() + _LOOK_PERIOD_S
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return
        # Taken before the files are read: a change in between is seen the next time.
        self._stamps = stamps
        names = ",".join(map(str, self._paths))
        try:
            self._value = self._load()
        except ConfigError as error:
            log.error("files_not_reloaded files=%s reason=%r", names, str(error))
        else:
            log.info("files_reloaded files=%s", names)

    def _read_stamps(self) -> list[Stamp]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> Stamp:
    """What changes with the file's content; None when there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
