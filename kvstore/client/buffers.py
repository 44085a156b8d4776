"""Reusable memory for values that come or go by gRPC.

Fresh memory costs a page fault for every 4 KiB, more than the copy into it. Aligned to 64 bytes, since
some CPUs copy unaligned ranges several times slower.
"""

import threading

import numpy as np

_ALIGNMENT = 64
_SIZE_STEP = 64 << 10
_IDLE_BYTES_MAX = 256 << 20


class BufferPool:
    """Buffers by size, rounded up to 64 KiB; keeps at most 256 MiB that nobody uses. For any thread."""

    def __init__(self) -> None:
        self._idle: dict[int, list[memoryview]] = {}
        self._idle_bytes = 0
        self._taking = threading.Lock()

    def take(self, size: int) -> memoryview:
        """A writable buffer of at least `size` bytes, with whatever is in it."""
        rounded = -(-size // _SIZE_STEP) * _SIZE_STEP
        with self._taking:
            if idle := self._idle.get(rounded):
                self._idle_bytes -= rounded
                return idle.pop()
        raw = np.empty(rounded + _ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % _ALIGNMENT
        return raw.data[start : start + rounded]

    def give_back(self, buffer: memoryview) -> None:
        """Make a buffer from `take` available again; nothing may use it any more."""
        with self._taking:
            if self._idle_bytes + len(buffer) <= _IDLE_BYTES_MAX:
                self._idle.setdefault(len(buffer), []).append(buffer)
                self._idle_bytes += len(buffer)
