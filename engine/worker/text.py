"""An answer's text: whole UTF-8 characters, cut at stop strings. Pure."""

import codecs
from collections.abc import Sequence

from kvstore.core.errors import CallerError

STOPS_MAX = 16
STOP_BYTES_MAX = 256


class TextStream:
    """Turns token bytes into text that may be sent; holds back what could be the start of a stop string.

    Invariant: what `feed` and `flush` have returned, joined, is the answer without its stop string."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        """Raises: CallerError for more than 16 stop strings, an empty or a too long one."""
        if len(stops) > STOPS_MAX:
            raise CallerError(f"{len(stops)} stop strings, expected at most {STOPS_MAX}")
        for stop in stops:
            if not 1 <= len(stop.encode()) <= STOP_BYTES_MAX:
                raise CallerError(f"a stop string has {len(stop.encode())} bytes, expected 1 to {STOP_BYTES_MAX}")
        self._stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped_by = ""
        """The stop string that was found; empty until then."""

    def feed(self, piece: bytes) -> str:
        """Text that can be sent after `piece`; once a stop string is found, the last there is."""
        assert not self.stopped_by
        return self._take(self._decoder.decode(piece))

    def flush(self) -> str:
        """What is still held, at the end of an answer that no stop string ended."""
        text = self._take(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        return text if self.stopped_by else text + held

    def _take(self, text: str) -> str:
        text = self._held + text
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, self.stopped_by = min(found)
            self._held = ""
            return text[:at]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
