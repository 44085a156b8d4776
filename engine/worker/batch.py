"""From planned chunks to the arrays that llama.cpp computes. Pure."""

from collections.abc import Sequence

import numpy as np

from engine.llama.context import Batch
from engine.worker.schedule import Chunk
from kvstore.core.keys import as_tokens


def batch_of(chunks: Sequence[Chunk]) -> Batch:
    """One batch of all chunks, in order; logits only for the last token of those that sample."""
    logits = np.zeros(sum(chunk.count for chunk in chunks), np.int8)
    for chunk, row in last_rows(chunks):
        logits[row] = chunk.samples
    spans = [(chunk.turn, chunk.turn.computed, chunk.turn.computed + chunk.count) for chunk in chunks]
    return Batch(
        tokens=np.concatenate([as_tokens(turn.tokens(start, end)) for turn, start, end in spans]).astype(np.int32),
        positions=np.concatenate([np.arange(start, end, dtype=np.int32) for _, start, end in spans]),
        slots=np.concatenate([np.full(end - start, turn.slot, np.int32) for turn, start, end in spans]),
        logits=logits,
    )


def last_rows(chunks: Sequence[Chunk]) -> list[tuple[Chunk, int]]:
    """Each chunk with the batch row of its last token."""
    rows = np.cumsum([chunk.count for chunk in chunks]) - 1
    return list(zip(chunks, rows.tolist(), strict=True))
