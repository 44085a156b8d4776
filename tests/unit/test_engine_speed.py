"""The size of a batch follows the measured speed."""

from engine.worker.speed import PrefillSpeed


def test_a_slow_machine_gets_small_batches_and_a_fast_one_whole_ones() -> None:
    speed = PrefillSpeed()
    assert speed.batch_tokens(32, 128) == 128, "nothing is known yet"
    speed.observe(128, 12.8)
    assert speed.batch_tokens(32, 128) == 32
    speed = PrefillSpeed()
    speed.observe(128, 2.56)
    assert speed.batch_tokens(32, 128) == 100
    speed.observe(128, 0.1)
    assert speed.batch_tokens(32, 128) == 128


def test_small_chunks_are_not_measured_and_others_are_smoothed() -> None:
    speed = PrefillSpeed()
    speed.observe(3, 100.0)
    assert speed.tokens_per_s == 0
    speed.observe(100, 1.0)
    speed.observe(100, 0.5)
    assert speed.tokens_per_s == 120
