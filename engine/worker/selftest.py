"""At start, a worker proves that KV of its model survives the store: prefill, export, restore, compare.

llama.cpp accepts some wrong state without a word, so a model that fails here is served without the store.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.llama.context import Batch, DecodeResult, LlamaContext
from engine.llama.model import LlamaModel
from engine.worker.blocks import BlockMover
from engine.worker.slots import SlotTable
from kvstore.core.block import BlockHeader
from kvstore.core.errors import BlockCorruptError
from kvstore.core.keys import BlockKey, NamespaceId, chain_keys

_NAMESPACE = NamespaceId(b"stockpot worker self-test".ljust(32, b"\0"))
_BLOCKS = 2
_TAIL_TOKENS = 3
# f16 attention takes other kernels for other batch shapes; design.md measured up to 1.7 of a logit.
_LOGIT_TOLERANCE = {"f16": 2.0}


@dataclass(frozen=True, slots=True)
class SelfTestResult:
    value_bytes: int
    """Size of one stored block; 0 when the store cannot be used."""
    reason: str
    """Why the store cannot be used; empty when it can."""


def run_self_test(
    model: LlamaModel, context: LlamaContext, table: SlotTable, mover: BlockMover, block_tokens: int
) -> SelfTestResult:
    """Use an empty context and table, and leave them empty."""
    if model.is_recurrent:
        return SelfTestResult(0, "the model has recurrent state, which cannot be cut into blocks")
    if model.sliding_window:
        return SelfTestResult(0, "the model has sliding-window layers, whose blocks are not supported yet")
    tokens = (np.arange(_BLOCKS * block_tokens + _TAIL_TOKENS, dtype=np.uint32) * 7919 + 11) % model.vocab_size
    keys = chain_keys(_NAMESPACE, tokens, block_tokens)
    slot = _claim(table, tokens)
    cold = _compute(context, table, slot, tokens, keys)
    value_bytes = mover.measure(slot)
    values = [np.empty(value_bytes, np.uint8) for _ in keys]
    headers = [
        BlockHeader(key, keys[i - 1] if i else BlockKey(_NAMESPACE), tokens[i * block_tokens : (i + 1) * block_tokens])
        for i, key in enumerate(keys)
    ]
    try:
        for i, header in enumerate(headers):
            is_there = mover.export(slot, i, header, values[i].data)
            assert is_there
        _empty(context, table, slot)
        slot = _claim(table, tokens)
        for i, header in enumerate(headers):
            mover.restore(slot, header, mover.prove(header, values[i].data))
        again = np.empty(value_bytes, np.uint8)
        for i, header in enumerate(headers):
            is_there = mover.export(slot, i, header, again.data)
            assert is_there
            if not np.array_equal(again, values[i]):
                return SelfTestResult(0, "a block exported again after a restore had other bytes")
        warm = _compute(context, table, slot, tokens, keys)
    except BlockCorruptError as error:
        return SelfTestResult(0, str(error))
    finally:
        _empty(context, table, slot)
    tolerance = _LOGIT_TOLERANCE.get(context.settings.kv_type, 0.0)
    difference = float(np.abs(cold - warm).max())
    if not difference <= tolerance:  # also when it is no number
        return SelfTestResult(0, f"logits after a restore differ by {difference:.3g}, allowed are {tolerance:.3g}")
    return SelfTestResult(value_bytes, "")


def _claim(table: SlotTable, tokens: npt.NDArray[np.uint32]) -> int:
    claim = table.claim(_NAMESPACE, tokens)
    assert claim is not None and claim.hot_tokens == 0
    return claim.slot


def _empty(context: LlamaContext, table: SlotTable, slot: int) -> None:
    table.release(slot)
    table.empty(slot)
    context.remove(slot)


def _compute(
    context: LlamaContext, table: SlotTable, slot: int, tokens: npt.NDArray[np.uint32], keys: list[BlockKey]
) -> npt.NDArray[np.float32]:
    """Compute what the slot lacks of `tokens`; the last token's logits, `(vocab_size,)`."""
    start, end = table.slot(slot).length, len(tokens)
    for at in range(start, end, context.batch_tokens):
        part = tokens[at : min(end, at + context.batch_tokens)]
        wanted = np.zeros(len(part), np.int8)
        wanted[-1] = 1
        result = context.decode(
            Batch(
                tokens=part.astype(np.int32),
                positions=np.arange(at, at + len(part), dtype=np.int32),
                slots=np.full(len(part), slot, np.int32),
                logits=wanted,
            )
        )
        assert result is DecodeResult.OK
        table.append(slot, part, keys)
    return context.logits(len(part) - 1).copy()
