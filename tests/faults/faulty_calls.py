"""The disk tier's system calls, numbered as they come, one of which goes wrong."""

import enum
import errno
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kvstore.node.disk_io import SystemCalls


class Fault(enum.Enum):
    """How a call goes wrong."""

    NO_SPACE = "fails with ENOSPC, and nothing is done"
    IO_ERROR = "fails with EIO, and nothing is done"
    LATE_ERROR = "is done, but fails with EIO all the same"
    SHORT = "moves half of the bytes, and says so"


class FaultyCalls(SystemCalls):
    """Real calls, of which number `fault_at` (from 0) has the `fault`. `made` has the names of all, in order."""

    def __init__(self, fault_at: int = -1, fault: Fault = Fault.IO_ERROR) -> None:
        self.made: list[str] = []
        self.failed = ""
        """Name of the call that went wrong; empty before."""
        self._fault_at = fault_at
        self._fault = fault
        self._lock = threading.Lock()

    def call(self, name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        with self._lock:
            is_faulty = len(self.made) == self._fault_at
            self.made.append(name)
        if not is_faulty:
            return real(self, *arguments)
        self.failed = name
        if self._fault is Fault.SHORT:
            fd, buffers, offset = arguments
            return real(self, fd, _half(buffers), offset)
        # Linux closes a descriptor even if it reports an error; a lock file's would stay locked otherwise.
        if self._fault is Fault.LATE_ERROR or name == "close":
            done = real(self, *arguments)
            if name in ("open", "open_index"):
                _undo(done)
        number = errno.ENOSPC if self._fault is Fault.NO_SPACE else errno.EIO
        raise OSError(number, os.strerror(number))


def faults_of(name: str) -> Sequence[Fault]:
    """The ways in which the call `name` can go wrong."""
    if name in ("pwritev", "preadv"):
        return (Fault.NO_SPACE, Fault.IO_ERROR, Fault.SHORT)
    return (Fault.NO_SPACE, Fault.LATE_ERROR)


def _half(buffers: Sequence[memoryview]) -> list[memoryview]:
    """The first half of the bytes, cut at a multiple of 512 as O_DIRECT needs it."""
    left = sum(len(buffer) for buffer in buffers) // 1024 * 512
    cut = []
    for buffer in buffers:
        cut.append(buffer[:left])
        left -= len(cut[-1])
    return [buffer for buffer in cut if len(buffer)]


def _undo(opened: Any) -> None:
    """Close what the caller will never know of."""
    if isinstance(opened, int):
        os.close(opened)
    else:
        opened.close()


def _numbered(name: str) -> Callable[..., Any]:
    real = getattr(SystemCalls, name)
    return lambda self, *arguments: self.call(name, real, arguments)


for _name in [name for name in vars(SystemCalls) if not name.startswith("_")]:
    setattr(FaultyCalls, _name, _numbered(_name))
