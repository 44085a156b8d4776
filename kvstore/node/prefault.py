"""Touching all pages of a mapping, so that memory which is not there is missed at start and not in a turn.

Several threads do it, as the kernel clears each page on the CPU that touches it. A bar tells on a
terminal how far it is; elsewhere a log line does, every few seconds.
"""

import ctypes
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

_MADV_POPULATE_WRITE = 23  # linux/mman.h, since 5.14
_CHUNK_BYTES = 64 << 20
_THREADS_MAX = 16  # clearing is bound by memory bandwidth well before that
_LOG_PERIOD_S = 5.0

log = logging.getLogger(__name__)


def populate(address: int, size: int, pages: str) -> None:
    """Make `size` bytes at `address` present and writable. Raises: OSError when the memory is not there."""
    started_s = time.monotonic()
    chunks = range(0, size, _CHUNK_BYTES)
    n_threads = max(1, min(_THREADS_MAX, len(os.sched_getaffinity(0)), len(chunks)))
    console = Console(stderr=True)
    columns = (
        TextColumn("touching the arena ({task.fields[pages]})"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("touch", total=size, pages=pages)
        tell = _log_progress(size) if not console.is_terminal else None
        with ThreadPoolExecutor(n_threads, "prefault") as threads:
            try:
                for n_bytes in threads.map(lambda start: _touch(address, start, size), chunks):
                    progress.advance(task, n_bytes)
                    if tell is not None:
                        tell(n_bytes)
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise
    log.info(
        "arena_touched bytes=%d pages=%s threads=%d seconds=%.2f",
        size,
        pages,
        n_threads,
        time.monotonic() - started_s,
    )


def _touch(address: int, start: int, size: int) -> int:
    """One chunk; returns its bytes. ctypes lets other threads run meanwhile."""
    n_bytes = min(_CHUNK_BYTES, size - start)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(address + start), ctypes.c_size_t(n_bytes), _MADV_POPULATE_WRITE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return n_bytes


def _log_progress(size: int) -> Callable[[int], None]:
    """Called with the bytes of each chunk; logs when some seconds have gone by."""
    done, next_at_s = 0, time.monotonic() + _LOG_PERIOD_S

    def tell(n_bytes: int) -> None:
        nonlocal done, next_at_s
        done += n_bytes
        if time.monotonic() >= next_at_s:
            log.info("arena_touching bytes=%d of=%d", done, size)
            next_at_s = time.monotonic() + _LOG_PERIOD_S

    return tell
