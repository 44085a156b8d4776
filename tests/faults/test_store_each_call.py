"""Each system call of the disk tier goes wrong once, in turn: nothing wrong is served, nothing hangs, it is said.

One run records the calls of a script of work over two lives of a node; then the script runs again for each
of them, with that call failing or doing half. A node that starts afterwards has all it should and nothing more.
One way to fail for each call; all ways with STOCKPOT_ALL_FAULTS=1 (`make test-crash`).
"""

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from kvstore.client import StoreClient
from kvstore.core.errors import CacheDegradedError, ConfigError
from kvstore.node.disk_io import SystemCalls, SystemDiskIO
from kvstore.node.node import Node
from kvstore.node.settings import NodeSettings
from kvstore.wire import kvstore_pb2 as pb
from tests.faults.faulty_calls import FaultyCalls, faults_of
from tests.store_checks import assert_arena_can_be_emptied, assert_folder_is_tidy
from tests.store_model import VALUE_BYTES_MAX, NamespaceModel, RandomWork, check_everything
from tests.store_node import FINGERPRINT, MIB, get_values, put_chain, random_keys, running_node, until, value_of

STEPS = 12  # of each life: enough to recycle segments
RUN_S_MAX = 60  # far more than a run takes: ends one that hangs
DISK_BYTES_MAX = 3 * 2 * VALUE_BYTES_MAX


def settings_for(folder: Path) -> NodeSettings:
    return NodeSettings(
        arena_bytes=MIB,
        value_bytes_max=VALUE_BYTES_MAX,
        data_dir=str(folder / "data"),
        segment_bytes=2 * VALUE_BYTES_MAX,
        disk_bytes_max=DISK_BYTES_MAX,
        local_socket=str(folder / "s"),
        stop_deadline_ms=1_000,
    )


@asynccontextmanager
async def node_with(folder: Path, calls: SystemCalls) -> AsyncIterator[tuple[Node, StoreClient]]:
    async with running_node(settings_for(folder), SystemDiskIO(calls)) as (node, addresses):
        async with await StoreClient.connect(addresses.grpc, call_deadline_s=10) as client:
            yield node, client


async def live(folder: Path, calls: SystemCalls, model: NamespaceModel, seed: int) -> None:
    """One life of a node: random work, one call after the other, and memory works to the end of it."""
    async with node_with(folder, calls) as (node, client):
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
        work = RandomWork(client, model, random.Random(seed))
        for _ in range(STEPS):
            with suppress(CacheDegradedError):  # a removal that the disk may not remember says so
                await work.run(1)

            async def is_written() -> bool:
                return (await client.stats()).blocks_to_demote == 0

            await until(is_written)
        keys = random_keys(2)
        assert await put_chain(client, namespace, keys, 1000) == [pb.STATUS_STORED] * 2
        assert await get_values(client, namespace, keys) == [value_of(key, 1000) for key in keys]
        await assert_arena_can_be_emptied(client)
        node.store.check_invariants()


async def run_script(folder: Path, calls: SystemCalls) -> None:
    """Two lives with `calls`, and one with good ones, in which all must be well."""
    model = NamespaceModel(FINGERPRINT.namespace_id(), random.Random(1))
    for seed in (1, 2):
        try:
            await live(folder, calls, model, seed)
        except* ConfigError as refused:
            logging.getLogger("kvstore").error("refused to start: %s", refused.exceptions)
        assert not open_files(folder / "data")
    async with node_with(folder, SystemCalls()) as (_, client):
        await client.open_namespace(FINGERPRINT)
        await check_everything(client, model)
        stats = await client.stats()
        assert stats.blocks_corrupt == 0
        assert stats.tiers[1].is_on
    await live(folder, SystemCalls(), model, 3)
    assert_folder_is_tidy(folder / "data", DISK_BYTES_MAX)


def open_files(folder: Path) -> list[str]:
    """Files below `folder` that this process has open."""
    links = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return [target for link in links if link.is_symlink() and (target := os.readlink(link)).startswith(str(folder))]


@pytest.mark.timeout(600)
async def test_each_call_goes_wrong_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorded = FaultyCalls()
    (tmp_path / "recorded").mkdir()
    await run_script(tmp_path / "recorded", recorded)
    assert {"mkdir", "fallocate", "rename", "fsync", "fdatasync", "pwritev", "preadv", "commit"} <= set(recorded.made)
    runs = [(at, fault) for at, name in enumerate(recorded.made) for fault in faults_of(name)]
    if not os.environ.get("STOCKPOT_ALL_FAULTS"):
        runs = [(at, faults_of(name)[at % len(faults_of(name))]) for at, name in enumerate(recorded.made)]
    for at, fault in runs:
        folder = tmp_path / f"{at}-{fault.name}"
        folder.mkdir()
        await run_with_fault(folder, FaultyCalls(at, fault), caplog)
    print(f"{len(recorded.made)} calls, {len(runs)} runs with one of them going wrong")  # noqa: T201  # with pytest -s


async def run_with_fault(folder: Path, calls: FaultyCalls, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    try:
        async with asyncio.timeout(RUN_S_MAX):
            await run_script(folder, calls)
        assert calls.failed, "the call was not made: the script does not always do the same"
        said = [record for record in caplog.records if record.name.startswith("kvstore")]
        assert any("arena" not in record.msg and record.levelno >= logging.WARNING for record in said)
    except BaseException as error:
        error.add_note(f"the call that went wrong: {calls.failed}, {folder.name}")
        raise
