"""The node's memory for values: one memfd, mapped here and, read-write, by local clients.

Made in this order: pages are chosen and mapped (pages), bound to NUMA nodes (numa), then all touched
(prefault), so that a budget which the machine cannot keep fails at start and not in the middle of a turn.
"""

import ctypes
import os
from contextlib import suppress
from dataclasses import dataclass

from kvstore.core.errors import ConfigError
from kvstore.node import numa
from kvstore.node.pages import Pages, PageWish, map_pages
from kvstore.node.prefault import populate


@dataclass(frozen=True, slots=True)
class ArenaOptions:
    """How the arena is made; see the settings of the same names."""

    pages: Pages = "auto"
    require_hugepages: bool = False
    numa_node: str = numa.NONE


class Arena:
    """At most `bytes_max` bytes of shared memory; `bytes` says how many.

    Raises: ConfigError when the machine cannot give them."""

    def __init__(self, bytes_max: int, options: ArenaOptions | None = None) -> None:
        options = options or ArenaOptions()
        nodes = numa.chosen_nodes(options.numa_node, numa.nodes_with_memory())
        mapped = map_pages(PageWish(bytes_max, options.pages, options.require_hugepages, nodes))
        self.fd, self._map = mapped.fd, mapped.map
        self.bytes, self.pages = mapped.bytes, mapped.name
        # The export that from_buffer takes on the mapping ends with this statement.
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        is_bound = bool(nodes) and numa.bind(address, self.bytes, nodes)
        try:
            populate(address, self.bytes, self.pages)
        except OSError as error:
            self._map.close()
            os.close(self.fd)
            where = f" on NUMA node {options.numa_node}" if is_bound else ""
            raise ConfigError(
                f"arena_bytes is {bytes_max}, but the system gave less memory{where}: {error.strerror}"
            ) from error
        if is_bound:
            numa.check_pages(address, self.bytes, mapped.page_bytes, nodes)
        self._view = memoryview(self._map)

    def view(self, offset: int, size: int) -> memoryview:
        """The bytes at `offset`, writable; valid while the arena is open."""
        assert 0 <= offset <= offset + size <= self.bytes
        return self._view[offset : offset + size]

    def close(self) -> None:
        """Unmap; clients that still map it keep the memory until they unmap too."""
        self._view.release()
        with suppress(BufferError):  # a view is still in use: the memory goes with it
            self._map.close()
        os.close(self.fd)
