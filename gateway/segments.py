"""Token ids of texts seen before, for the tokeniser: bounded by bytes, least recently used first out."""

from collections import OrderedDict

from kvstore.core.keys import Tokens

# A segment's key, its array and its place in the dict, beside their bytes.
_ENTRY_BYTES = 400


class SegmentCache:
    """Token ids by (salt, segment); `bytes_used` never exceeds `bytes_max`.

    The salt keeps tenants apart: neither speed nor ids tell one what another has said."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self._entries: OrderedDict[tuple[bytes, str], Tokens] = OrderedDict()

    def get(self, salt: bytes, segment: str) -> Tokens | None:
        """The ids, now the most recently used; None when they are not here."""
        ids = self._entries.get((salt, segment))
        if ids is not None:
            self._entries.move_to_end((salt, segment))
        return ids

    def put(self, salt: bytes, segment: str, ids: Tokens) -> None:
        """Keep `ids`, in place of older ones of the same segment; drops others to stay within the bound."""
        self._discard((salt, segment))
        size = _entry_bytes(segment, ids)
        if size > self.bytes_max:
            return
        self._entries[salt, segment] = ids
        self.bytes_used += size
        while self.bytes_used > self.bytes_max:
            self._discard(next(iter(self._entries)))

    def check_invariants(self) -> None:
        assert self.bytes_used == sum(_entry_bytes(key[1], ids) for key, ids in self._entries.items())
        assert self.bytes_used <= self.bytes_max

    def _discard(self, key: tuple[bytes, str]) -> None:
        if (ids := self._entries.pop(key, None)) is not None:
            self.bytes_used -= _entry_bytes(key[1], ids)


def _entry_bytes(segment: str, ids: Tokens) -> int:
    """What an entry takes at most, in bytes."""
    return len(segment) * (1 if segment.isascii() else 4) + ids.nbytes + _ENTRY_BYTES
