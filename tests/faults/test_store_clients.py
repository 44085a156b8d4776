"""Nodes that hang, clients that die, leases that run out."""

import asyncio
import signal
import sys
import time

import pytest

from kvstore.client import FillItem, Path, StoreClient
from kvstore.core.errors import LeaseExpiredError, UnavailableError
from tests.store_node import (
    FINGERPRINT,
    MIB,
    PATHS,
    NodeProcesses,
    connect_by,
    get_values,
    put_chain,
    random_keys,
    until,
    value_of,
)

DEADLINE_S = 0.5
HOLD_EVERYTHING = """
import asyncio, sys
from kvstore.client import FillItem, Path, StoreClient
from kvstore.core.namespace import Fingerprint
from tests.store_node import FINGERPRINT, random_keys, put_chain

async def main():
    client = await StoreClient.connect(sys.argv[1])
    assert client.path == "shm"
    namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
    keys = random_keys(8)
    await put_chain(client, namespace, keys[:4], 1 << 20)
    items = [FillItem(key, 1 << 20) for key in keys[4:]]
    async with client.read(namespace, keys[:4]) as blocks, client.fill(namespace, items) as fill:
        assert None not in [*blocks.values, *fill.views]
        print("holding", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("path", PATHS)
async def test_a_stopped_node_costs_one_deadline_and_then_nothing(nodes: NodeProcesses, path: Path) -> None:
    node = nodes.start().wait_ready()
    client = await connect_by(path, node.address, DEADLINE_S)
    async with client:
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
        keys = random_keys(2)
        await put_chain(client, namespace, keys, 1000)
        node.signal(signal.SIGSTOP)
        try:
            start = time.monotonic()
            with pytest.raises(UnavailableError, match="did not answer within"):
                await get_values(client, namespace, keys)
            # Wide, as the machine may be busy; without a deadline it would be for ever.
            assert time.monotonic() - start < DEADLINE_S + 5
            with pytest.raises(UnavailableError, match="next try in"):
                await client.match(namespace, keys)
            with pytest.raises(UnavailableError):
                async with client.fill(namespace, [FillItem(keys[0], 10)]):
                    pass
        finally:
            node.signal(signal.SIGCONT)

        async def is_back() -> bool:
            try:
                return (await client.match(namespace, keys)).blocks == 2
            except UnavailableError:
                return False

        await until(is_back)
        assert await get_values(client, namespace, keys) == [value_of(key, 1000) for key in keys]

        async def is_free() -> bool:
            return (await client.stats()).leases == 0

        await until(is_free)  # answers that came too late were given back


async def test_connect_to_nobody(nodes: NodeProcesses) -> None:
    node = nodes.start().wait_ready()
    node.kill()
    with pytest.raises(UnavailableError):
        await StoreClient.connect(node.address, call_deadline_s=DEADLINE_S)


async def test_what_a_killed_client_leased_is_given_back(nodes: NodeProcesses) -> None:
    node = nodes.start(arena_bytes=8 * MIB, value_bytes_max=8 * MIB, lease_ttl_ms=60_000).wait_ready()
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD_EVERYTHING, node.address, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert await holder.stdout.readline() == b"holding\n"
        async with await StoreClient.connect(node.address) as client:
            namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
            [key] = random_keys(1)
            async with client.fill(namespace, [FillItem(key, 8 * MIB)]) as fill:
                assert fill.views == [None]
            holder.kill()
            await holder.wait()

            async def is_free() -> bool:
                return (await client.stats()).leases == 0

            await until(is_free)
            assert await put_chain(client, namespace, [key], 8 * MIB) == [6]
    finally:
        if holder.returncode is None:
            holder.kill()
            await holder.wait()


async def test_a_reader_slower_than_its_lease_is_told(nodes: NodeProcesses) -> None:
    node = nodes.start(lease_ttl_ms=50).wait_ready()
    async with await StoreClient.connect(node.address) as client:
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
        keys = random_keys(1)
        await put_chain(client, namespace, keys, 1000)
        with pytest.raises(LeaseExpiredError):
            async with client.read(namespace, keys) as blocks:
                assert blocks.path == "shm"
                await asyncio.sleep(0.1)
                assert not blocks.is_valid()


async def test_a_writer_slower_than_its_lease_stores_nothing_and_harms_nobody(nodes: NodeProcesses) -> None:
    node = nodes.start(arena_bytes=MIB, value_bytes_max=MIB, lease_ttl_ms=50).wait_ready()
    async with await StoreClient.connect(node.address) as slow, await StoreClient.connect(node.address) as other:
        namespace = (await slow.open_namespace(FINGERPRINT)).namespace_id
        keys = random_keys(2)
        async with slow.fill(namespace, [FillItem(keys[0], MIB)]) as fill:
            await asyncio.sleep(0.1)
            # Its memory is not another's while it can write there.
            async with other.fill(namespace, [FillItem(keys[1], MIB)]) as refused:
                assert refused.views == [None]
            with pytest.raises(LeaseExpiredError):
                await fill.commit()
        assert (await other.match(namespace, keys[:1])).blocks == 0
        await slow.close()

        async def has_room() -> bool:
            return await put_chain(other, namespace, keys[1:], MIB) == [6]

        await until(has_room)


async def test_views_outlive_the_node_without_harm(nodes: NodeProcesses) -> None:
    node = nodes.start().wait_ready()
    client = await StoreClient.connect(node.address)
    namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
    keys = random_keys(1)
    await put_chain(client, namespace, keys, MIB)
    with pytest.raises(LeaseExpiredError):
        async with client.read(namespace, keys) as blocks:
            [value] = blocks.values
            assert value is not None
            node.kill()

            async def is_noticed() -> bool:
                return not blocks.is_valid()

            await until(is_noticed)
            await client.close()
            assert bytes(value) == value_of(keys[0], MIB)
    with pytest.raises(ValueError, match="released"):
        bytes(value)


async def test_without_commit_everything_is_given_back(nodes: NodeProcesses) -> None:
    node = nodes.start().wait_ready()
    for path in PATHS:
        async with await connect_by(path, node.address) as client:
            namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
            keys = random_keys(3)
            async with client.fill(namespace, [FillItem(key, MIB) for key in keys]) as fill:
                assert None not in fill.views

            async def is_free(client: StoreClient = client) -> bool:
                stats = await client.stats()
                return stats.leases == 0 and stats.tiers[0].bytes_used == 0

            await until(is_free)
            assert (await client.match(namespace, keys)).blocks == 0


async def test_calls_cancelled_at_any_moment_leave_no_lease(nodes: NodeProcesses) -> None:
    node = nodes.start(lease_ttl_ms=60_000).wait_ready()
    async with await StoreClient.connect(node.address) as client:
        assert client.path == "shm"
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
        stored, new = random_keys(2), random_keys(2)
        await put_chain(client, namespace, stored, 1000)

        async def read() -> None:
            async with client.read(namespace, stored):
                await asyncio.sleep(0)

        async def fill() -> None:
            async with client.fill(namespace, [FillItem(key, 1000) for key in new]):
                await asyncio.sleep(0)

        for ticks in range(60):
            for work in (read, fill):
                task = asyncio.create_task(work())
                for _ in range(ticks):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])

        async def none_is_left() -> bool:
            return (await client.stats()).leases == 0

        await until(none_is_left)
