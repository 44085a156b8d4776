"""Publishing what the data folders hold: each value that index and segments agree on, a million in seconds.

Runs before any client connects, so it may take the loop. Says how far it is.
"""

import gc
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvstore.node.blocks import StoredValue
from kvstore.node.checking import fingerprint_of
from kvstore.node.disk_folder import DataFolder, padded_on_disk
from kvstore.node.disk_index import IndexChange
from kvstore.node.store import BlockStore
from kvstore.wire import kvstore_pb2 as pb

_LOG_PERIOD_S = 2.0

log = logging.getLogger(__name__)


def restore_folders(folders: Sequence[DataFolder], store: BlockStore) -> None:
    """Open the namespaces that `folders` name and publish their values in `store`; fills the folders' segments.

    What no segment can hold any more leaves its folder's index."""
    start_s = time.monotonic()
    for folder in folders:
        for namespace, raw in folder.index.namespaces().items():
            fingerprint = fingerprint_of(pb.Fingerprint.FromString(raw))
            store.open_namespace(namespace, fingerprint, folder.index.epoch(namespace))
    total = sum(folder.index.n_values for folder in folders)
    with _no_garbage_collection():
        lost = _restore_values(folders, store, total)
    for device, folder in enumerate(folders):
        if removed := [value.id for value in lost if value.place.device == device]:
            folder.index.apply(IndexChange(removed=removed))
    log.info(
        "disk_tier_open blocks=%d lost=%d segments=%d seconds=%.1f",
        total - len(lost),
        len(lost),
        sum(len(folder.segments) for folder in folders),
        time.monotonic() - start_s,
    )


def _restore_values(folders: Sequence[DataFolder], store: BlockStore, total: int) -> list[StoredValue]:
    """Publish all values; returns those that cannot be."""
    lost: list[StoredValue] = []
    batches = chain.from_iterable(folder.index.values(device) for device, folder in enumerate(folders))
    for batch in _shown(batches, total):
        segments = folders[batch[0].place.device].segments
        n_lost = len(lost)
        for value in batch:
            _, (segment_number, offset, _), size, _, _ = value
            segment = segments.get(segment_number)
            end = offset + padded_on_disk(size)
            if segment is None or end > segment.bytes:
                lost.append(value)
                continue
            segment.values[offset] = value.id
            if end > segment.tail:
                segment.tail = end
        if len(lost) > n_lost:
            gone = {value.id for value in lost[n_lost:]}
            batch = [value for value in batch if value.id not in gone]
        store.restore(batch)
    return lost


def _shown(batches: Iterator[list[StoredValue]], total: int) -> Iterator[list[StoredValue]]:
    """`batches`, while a bar on a terminal, or now and then a line in the log, says how far they are."""
    console = Console(stderr=True)
    columns = (TextColumn("reading the disk's index"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("index", total=total)
        logged_s = time.monotonic()
        done = 0
        for batch in batches:
            yield batch
            done += len(batch)
            progress.update(task, completed=done)
            if not console.is_terminal and time.monotonic() - logged_s > _LOG_PERIOD_S:
                logged_s = time.monotonic()
                log.info("disk_tier_opening blocks=%d of=%d", done, total)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Collect nothing in the body, and never look again at what it leaves: it is as many objects as there are
    blocks, none of them part of a cycle. (A million blocks: 20 s with the collector, 7 without.)"""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
