"""Small parts of node and client: leases, events, segments, breaker, buffers, codes."""

import asyncio

import grpc
import pytest

from kvstore.client.breaker import CircuitBreaker
from kvstore.client.buffers import BufferPool
from kvstore.core.errors import (
    CallerError,
    LeaseExpiredError,
    LimitError,
    NamespaceUnknownError,
    StockpotError,
    UnavailableError,
)
from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.node.blocks import BlockId
from kvstore.node.events import EventLog
from kvstore.node.leases import LeaseKind, LeaseTable
from kvstore.node.segments import Segment, SegmentTable
from kvstore.rpc_codes import error_of, status_code
from kvstore.wire import kvstore_pb2 as pb


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def block_id(number: int) -> BlockId:
    return BlockId(NamespaceId(b"n" * 32), BlockKey(number.to_bytes(16, "big")), 0)


def test_leases_end_by_release_time_and_owner() -> None:
    clock = Clock()
    table = LeaseTable(clock)
    short = table.grant(LeaseKind.READ, [], 1, None)
    owned = [table.grant(LeaseKind.READ, [], 60, "owner"), table.grant(LeaseKind.FILL, [], 60, "owner")]
    other = table.grant(LeaseKind.READ, [], 60, "other")
    table.check_invariants()
    assert table.end(short.id, LeaseKind.FILL) is None, "a lease of another kind"
    clock.now += 1
    assert table.end_expired() == [short]
    assert table.end(short.id, LeaseKind.READ) is None
    assert set(table.end_owned("owner")) == set(owned)
    assert table.end(other.id, LeaseKind.READ) is other
    assert len(table) == 0
    table.check_invariants()


def test_many_released_leases_leave_nothing_behind() -> None:
    table = LeaseTable(Clock())
    for _ in range(10_000):
        table.end(table.grant(LeaseKind.READ, [], 60, None).id, LeaseKind.READ)
    assert len(table._expiry) < 100
    table.check_invariants()


async def test_events_are_numbered_and_bounded() -> None:
    log = EventLog(3)
    assert log.is_known(0)
    for number in range(5):
        log.append(pb.BlockEvent(size=number))
    assert not log.is_known(1)
    assert log.is_known(2)
    assert [event.size for event in log.after(2, 2)] == [2, 3]
    waiting = asyncio.create_task(log.wait_after(5))
    await asyncio.sleep(0)
    assert not waiting.done()
    log.append(pb.BlockEvent())
    await waiting


def test_segments_fill_then_the_oldest_is_reclaimed() -> None:
    table = SegmentTable(0, [], segment_bytes=100, bytes_max=250)
    places = [table.place(block_id(number), 60) for number in range(3)]
    assert [placed and (placed.place, placed.is_new) for placed in places[:2]] == [((1, 0, 0), True), ((2, 0, 0), True)]
    assert places[2] is not None
    assert places[2].place == (3, 0, 0)
    assert places[2].reclaimed is not None
    assert list(places[2].reclaimed.values.values()) == [block_id(0)]
    table.check_invariants()


def test_a_segment_in_use_is_not_reclaimed() -> None:
    table = SegmentTable(0, [Segment(1, 100, 100), Segment(2, 100, 100), Segment(3, 100, 100)], 100, 300)
    table.segments[1].in_use = 1
    placed = table.place(block_id(1), 50)
    assert placed is not None
    assert placed.reclaimed is not None
    assert placed.reclaimed.number == 2
    table.segments[3].in_use = 1
    assert table.place(block_id(2), 60) is None
    table.check_invariants()


def test_the_breaker_lets_one_caller_try() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock, trial_s=1)
    breaker.check()
    breaker.failed()
    with pytest.raises(UnavailableError) as refused:
        breaker.check()
    assert refused.value.retry_after_s == pytest.approx(0.5)
    clock.now += 0.6
    breaker.check()
    with pytest.raises(UnavailableError):
        breaker.check()
    breaker.succeeded()
    breaker.check()
    for _ in range(10):
        breaker.failed()
    clock.now += 4.1
    breaker.check()


def test_buffers_are_aligned_and_used_again() -> None:
    pool = BufferPool()
    buffer = pool.take(100_000)
    assert len(buffer) >= 100_000
    buffer[0] = 7
    pool.give_back(buffer)
    assert pool.take(100_001)[0] == 7


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (CallerError, grpc.StatusCode.INVALID_ARGUMENT),
        (NamespaceUnknownError, grpc.StatusCode.NOT_FOUND),
        (LimitError, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (UnavailableError, grpc.StatusCode.UNAVAILABLE),
        (LeaseExpiredError, grpc.StatusCode.ABORTED),
    ],
)
def test_errors_cross_the_wire_as_themselves(kind: type[StockpotError], code: grpc.StatusCode) -> None:
    assert status_code(kind("why")) is code
    error = error_of(code.value[0], "why")
    assert type(error) is kind
    assert str(error) == "why"


def test_codes_that_no_node_sends_mean_unavailable() -> None:
    assert type(error_of(grpc.StatusCode.UNKNOWN.value[0], "?")) is UnavailableError
