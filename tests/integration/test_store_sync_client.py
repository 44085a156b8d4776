"""The blocking client: the same answers as the async one, from any thread, and a clear end."""

import inspect
import os
import signal
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvstore.client import FillItem, Path, Status, StoreClient, SyncStoreClient
from kvstore.core.errors import CallerError, UnavailableError
from kvstore.core.keys import BlockKey, NamespaceId
from tests.store_node import FINGERPRINT, PATHS, NodeProcesses, random_keys, value_of

SIZE = 100_000


@pytest.fixture
def address(nodes: NodeProcesses) -> str:
    return nodes.start().wait_ready().address


def put(client: SyncStoreClient, namespace: NamespaceId, keys: list[BlockKey]) -> list[Status]:
    with client.fill(namespace, [FillItem(key, SIZE) for key in keys]) as fill:
        for key, view in zip(keys, fill.views, strict=True):
            assert view is not None
            view[:] = value_of(key, SIZE)
        return fill.commit()


@pytest.mark.parametrize("path", PATHS)
def test_values_come_back(address: str, path: Path) -> None:
    keys = random_keys(3)
    preferences = {"prefer_local": path == "shm", "prefer_bulk": path == "bulk"}
    with SyncStoreClient.connect(address, **preferences, call_deadline_s=10) as client:
        assert client.path == path
        namespace = client.open_namespace(FINGERPRINT).namespace_id
        assert put(client, namespace, keys) == [Status.STATUS_STORED] * 3
        assert client.match(namespace, [*keys, *random_keys(1)]).blocks == 3
        with client.read(namespace, keys) as blocks:
            assert [bytes(value or b"") for value in blocks.values] == [value_of(key, SIZE) for key in keys]
            assert blocks.is_valid()
        assert client.stats().blocks_stored == 3
        events = next(client.watch(namespace)).events
        assert {event.key for event in events} == set(keys)


def test_a_fill_that_raises_stores_nothing(address: str) -> None:
    [key] = random_keys(1)
    with SyncStoreClient.connect(address, call_deadline_s=10) as client:
        namespace = client.open_namespace(FINGERPRINT).namespace_id
        with pytest.raises(ZeroDivisionError):
            with client.fill(namespace, [FillItem(key, SIZE)]):
                raise ZeroDivisionError
        assert client.match(namespace, [key]).blocks == 0


def test_threads_share_one_client(address: str) -> None:
    with SyncStoreClient.connect(address, call_deadline_s=10) as client, ThreadPoolExecutor(8) as pool:
        namespace = client.open_namespace(FINGERPRINT).namespace_id

        def store_and_read(_: int) -> bool:
            keys = random_keys(2)
            put(client, namespace, keys)
            with client.read(namespace, keys) as blocks:
                return [bytes(value or b"") for value in blocks.values] == [value_of(key, SIZE) for key in keys]

        assert all(pool.map(store_and_read, range(32)))


def test_after_close_calls_say_so_and_the_thread_is_gone(address: str) -> None:
    client = SyncStoreClient.connect(address, call_deadline_s=10)
    namespace = client.open_namespace(FINGERPRINT).namespace_id
    before = threading.active_count()
    client.close()
    client.close()
    assert threading.active_count() == before - 1
    with pytest.raises(CallerError, match="closed"):
        client.stats()
    with pytest.raises(CallerError, match="closed"):
        with client.read(namespace, random_keys(1)):
            pass


def test_close_ends_a_waiting_watch(address: str) -> None:
    client = SyncStoreClient.connect(address, call_deadline_s=10)
    is_reset = threading.Event()
    said: list[str] = []

    def watch() -> None:
        try:
            for response in client.watch():
                assert response.is_reset
                is_reset.set()
        except CallerError as error:
            said.append(str(error))

    watching = threading.Thread(target=watch)
    watching.start()
    assert is_reset.wait(20)
    client.close()
    watching.join(20)
    assert len(said) == 1 and "closed" in said[0]


def test_a_watch_that_is_left_ends_on_the_node(nodes: NodeProcesses) -> None:
    node = nodes.start(metrics_port=0).wait_ready()
    url = f"http://{node.addresses['metrics_address']}/metrics"
    ended = 'stockpot_node_call_seconds_count{call="Watch",transport="grpc"} 1.0'
    with SyncStoreClient.connect(node.address, call_deadline_s=10) as client:
        for response in client.watch():
            assert response.is_reset
            break
        deadline = time.monotonic() + 20
        while ended not in urllib.request.urlopen(url, timeout=10).read().decode():
            assert time.monotonic() < deadline, "the node still serves the watch"
            time.sleep(0.01)


def test_keys_come_page_by_page(address: str) -> None:
    keys = random_keys(5)
    with SyncStoreClient.connect(address, call_deadline_s=10) as client:
        namespace = client.open_namespace(FINGERPRINT).namespace_id
        put(client, namespace, keys)
        assert [listed.key for listed in client.list_keys(namespace, page_keys=2)] == sorted(keys)
        page = client.run(lambda each: each.list_page(namespace, sorted(keys)[2], 1))
        assert [listed.key for listed in page.keys] == sorted(keys)[3:4] and page.has_more


def test_every_call_of_the_async_client_is_there() -> None:
    def calls(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert calls(StoreClient) - {"list_page"} <= calls(SyncStoreClient)
    for name in calls(StoreClient) & calls(SyncStoreClient) - {"path", "counts"}:
        ours, theirs = (
            list(inspect.signature(getattr(kind, name)).parameters) for kind in (SyncStoreClient, StoreClient)
        )
        assert ours == theirs, name


def test_deadline_is_kept_by_a_node_that_hangs(nodes: NodeProcesses) -> None:
    node = nodes.start().wait_ready()
    with SyncStoreClient.connect(node.address, call_deadline_s=0.5) as client:
        node.signal(signal.SIGSTOP)
        try:
            with pytest.raises(UnavailableError):
                client.stats()
        finally:
            node.signal(signal.SIGCONT)


def test_nobody_answers() -> None:
    before = threading.active_count()
    with pytest.raises(UnavailableError):
        SyncStoreClient.connect("127.0.0.1:1", call_deadline_s=0.5)
    assert threading.active_count() <= before + 1  # the thread may need a moment to end


def test_a_forked_child_is_told_to_connect_itself(address: str) -> None:
    with SyncStoreClient.connect(address, call_deadline_s=10) as client:
        child = os.fork()
        if child == 0:  # whatever happens, pytest does not run on in the child
            status = 1
            try:
                client.stats()
            except CallerError as error:
                client.close()
                status = 0 if "connect after the fork" in str(error) else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert client.stats().incarnation
