"""Loads llama.cpp's library once and keeps its last words for our error messages.

The OpenMP workers of llama.cpp spin between graph nodes by default; on a machine with as many threads
as cores that cost a factor of ten in decode speed (measured: 41 tokens/s fell to 3.5). The policy is
read when the library is loaded, so it is set here, before the import.
"""

import collections
import ctypes
import functools
import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import llama_cpp as C  # noqa: N812

__all__ = ["C", "LlamaLog", "llama_log"]

_LEVEL_ERROR = 4
_KEPT_LINES = 20


class LlamaLog:
    """Receives llama.cpp's log; keeps its last error lines, prints nothing."""

    def __init__(self) -> None:
        self._errors: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        # ctypes does not keep the callback alive, llama.cpp calls it for ever.
        self._callback = C.llama_log_callback(self._on_line)
        C.llama_log_set(self._callback, ctypes.c_void_p(0))

    def _on_line(self, level: int, text: bytes, _user_data: ctypes.c_void_p) -> None:
        if level == _LEVEL_ERROR and (line := text.decode("utf-8", "replace").strip()):
            self._errors.append(line)

    def take_errors(self) -> str:
        """The error lines since the last call, joined; empties the buffer."""
        lines = "; ".join(self._errors)
        self._errors.clear()
        return lines or "llama.cpp gave no reason"


@functools.cache
def llama_log() -> LlamaLog:
    """The one log of this process, since llama.cpp has one log callback."""
    C.llama_backend_init()
    return LlamaLog()
