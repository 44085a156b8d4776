"""kill -9 at random moments of a node under load, with real files: what it serves afterwards is right, and no more.

The arena and the disk are so small that blocks are evicted, demoted, promoted and their segments recycled
all the time. STOCKPOT_KILLS says how often (`make test-crash`: some hundred times), STOCKPOT_SEED where to begin.
"""

import asyncio
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvstore.client import StoreClient
from kvstore.core.namespace import Fingerprint
from tests.store_checks import assert_arena_can_be_emptied, assert_folder_is_tidy
from tests.store_model import NamespaceModel, RandomWork, check_everything, run_until_gone
from tests.store_node import MIB, PATHS, NodeProcess, NodeProcesses, connect_by

KILLS = int(os.environ.get("STOCKPOT_KILLS", "25"))
SEED = int(os.environ.get("STOCKPOT_SEED", "1"))
DISK_BYTES_MAX = 6 * MIB
FINGERPRINTS = [Fingerprint(model_digest=bytes([number]) * 32, block_tokens=32) for number in range(3)]
RUN_S_MAX = 0.4
START_S_MAX = 0.7


def start(nodes: NodeProcesses) -> NodeProcess:
    return nodes.start(
        arena_bytes=2 * MIB,
        value_bytes_max=MIB,
        data_dir=nodes.folder / "data",
        segment_bytes=MIB,
        disk_bytes_max=DISK_BYTES_MAX,
        lease_ttl_ms=60_000,
    )


async def load(node: NodeProcess, models: Sequence[NamespaceModel], rng: random.Random) -> None:
    """Work on all namespaces at once, by every path, until the node is killed in the midst of it."""
    clients = [await connect_by(PATHS[number % len(PATHS)], node.address) for number in range(len(models))]
    try:
        async with asyncio.TaskGroup() as tasks:
            for client, model in zip(clients, models, strict=True):
                work = RandomWork(client, model, random.Random(rng.random()))
                tasks.create_task(run_until_gone(work))
            await asyncio.sleep(rng.uniform(0, RUN_S_MAX))
            node.kill()
    finally:
        for client in clients:
            await client.close()


async def check(node: NodeProcess, models: Sequence[NamespaceModel], data_dir: Path) -> int:
    """All that must hold of a node that has started again; returns how many blocks it has."""
    async with await StoreClient.connect(node.address) as client:
        assert (await client.stats()).leases == 0
        n_served = sum([await check_everything(client, model) for model in models])
        assert (await client.stats()).blocks_corrupt == 0
        [_, disk] = (await client.stats()).tiers
        assert disk.is_on, disk.reason
        await assert_arena_can_be_emptied(client)
    assert_folder_is_tidy(data_dir, DISK_BYTES_MAX)
    assert "Traceback" not in node.log.read_text()
    return n_served


@pytest.mark.timeout(60 + 4 * KILLS)
async def test_killed_at_random_moments(nodes: NodeProcesses) -> None:
    data_dir = nodes.folder / "data"
    models = [NamespaceModel(each.namespace_id(), random.Random(SEED)) for each in FINGERPRINTS]
    n_served = 0
    node = start(nodes).wait_ready()
    async with await StoreClient.connect(node.address) as client:
        for fingerprint in FINGERPRINTS:
            await client.open_namespace(fingerprint)
    for kill in range(KILLS):
        rng = random.Random(f"{SEED} {kill}")
        try:
            await load(node, models, rng)
            if rng.random() < 0.2:  # and again while it starts
                node = start(nodes)
                await asyncio.sleep(rng.uniform(0, START_S_MAX))
                node.kill()
            node = start(nodes).wait_ready()
            n_served += await check(node, models, data_dir)
        except BaseException as error:
            error.add_note(f"kill {kill} of STOCKPOT_SEED={SEED}")
            raise
    assert node.stop() == 0
    newest = max(int(file.stem, 16) for file in (data_dir / "segments").iterdir())
    assert newest > 2 * DISK_BYTES_MAX // MIB, "too little was written for a segment to be recycled"
    assert n_served > KILLS, "nearly nothing survived: the test shows little"
    print(f"{KILLS} kills, {n_served} blocks served right, {newest} segments written")  # noqa: T201  # with pytest -s
