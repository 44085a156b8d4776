"""What the router is told of a worker's load, between its reports."""

from collections.abc import AsyncGenerator

from engine.wire import engine_pb2 as pb
from gateway.worker import Worker


class NoLink:
    """A link that no test here uses."""

    async def describe(self) -> pb.DescribeResponse:
        raise NotImplementedError

    def generate(self, request: pb.GenerateRequest) -> AsyncGenerator[pb.GenerateResponse, None]:
        raise NotImplementedError

    def watch(self) -> AsyncGenerator[pb.WatchResponse, None]:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def worker(clock: Clock) -> Worker:
    found = Worker("127.0.0.1:1", NoLink(), clock)
    found.described_as(pb.DescribeResponse(slots=2, block_tokens=32, model_digest=b"d" * 32, has_store=True))
    return found


def test_a_turn_counts_at_once() -> None:
    one = worker(Clock())
    with one.running("t1", 500), one.running("t2", 70):
        state = one.state(queue_max=3)
        assert (state.turns, state.prefill_tokens_waiting) == (2, 570)
        assert (state.slots, state.turns_max) == (2, 5)
        one.prompt_done("t1")
        assert one.state(3).prefill_tokens_waiting == 70
        assert one.state(3).turns == 2
    assert (one.state(3).turns, one.state(3).prefill_tokens_waiting) == (0, 0)


def test_a_report_takes_over_what_was_sent_well_before_it() -> None:
    clock = Clock()
    one = worker(clock)
    with one.running("old", 500):
        clock.now_s += 1
        with one.running("new", 70):
            one.reported(pb.Load(running=1, prefill_tokens_waiting=450))
            assert one.state(3).prefill_tokens_waiting == 450 + 70
            clock.now_s += 1
            one.reported(pb.Load(running=2, prefill_tokens_waiting=60))
            assert one.state(3).prefill_tokens_waiting == 60


def test_turns_of_other_gateways_count() -> None:
    one = worker(Clock())
    one.reported(pb.Load(running=2, queued=3, prefill_tokens_per_s=90, restore_bytes_per_s=1e9))
    with one.running("mine", 10):
        state = one.state(3)
    assert (state.turns, state.prefill_tokens_per_s, state.restore_bytes_per_s) == (5, 90, 1e9)


def test_a_restarted_worker_has_no_load_of_its_former_life() -> None:
    one = worker(Clock())
    one.is_connected = True
    one.reported(pb.Load(is_draining=True, prefill_tokens_waiting=9))
    assert not one.is_ready
    one.described_as(one.described)
    assert one.is_ready and one.state(3).prefill_tokens_waiting == 0
