"""One turn on its way through the worker: what was asked, where it stands, what it has produced.

    QUEUED -> RESTORING -> PREFILL -> DECODE -> DONE
       ^__________________________|      a preempted turn starts over with the tokens it has by then

The model thread owns every turn; other threads only set `is_cancelled` and read events.
"""

import enum
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.worker.sampling import Sampler
from engine.worker.text import TextStream
from kvstore.core.block import BlockHeader
from kvstore.core.keys import BlockKey, NamespaceId, Tokens


class TurnState(enum.Enum):
    QUEUED = "queued"
    RESTORING = "restoring"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"


class FinishReason(enum.Enum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Admitted:
    """The turn has a slot, with its first `tokens_hot` tokens in it. The store may now add blocks.

    `admission` must come back with whatever is done for this admission: a turn that was preempted meanwhile
    has another one, and what was meant for the old slot is ignored."""

    admission: int
    tokens_hot: int
    blocks: int
    """Full blocks of the turn's tokens: what the store could have at most."""


@dataclass(frozen=True, slots=True)
class PromptDone:
    """The prompt is computed; `blocks` full blocks can be exported."""

    blocks: int
    tokens_hot: int
    tokens_restored: int
    queue_ms: float
    restore_ms: float
    prefill_ms: float


@dataclass(frozen=True, slots=True)
class Delta:
    """The answer's next tokens; `blocks` full blocks of prompt and answer are in the slot."""

    blocks: int
    tokens: Sequence[int]
    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    reason: FinishReason
    answer_tokens: int
    stop: str = ""
    message: str = ""


TurnEvent = Admitted | PromptDone | Delta | Finished


@dataclass(eq=False, slots=True)
class Turn:
    """Mutable; see the module for who may touch it."""

    turn_id: str
    namespace: NamespaceId
    prompt: Tokens
    tokens_max: int
    sampler: Sampler
    text: TextStream
    end_tokens: frozenset[int]
    """Tokens that end the answer."""
    emit: Callable[[TurnEvent], None]
    """Called on the model thread; must not block."""
    keys: list[BlockKey] = field(default_factory=list)
    """Keys of the full blocks of `tokens`, kept up to date as blocks fill."""
    state: TurnState = TurnState.QUEUED
    slot: int = 0
    admission: int = 0
    """How often the turn was given a slot; see `Admitted`."""
    answer: list[int] = field(default_factory=list)
    computed: int = 0
    """Tokens whose KV is in the slot."""
    tokens_hot: int = 0
    tokens_restored: int = 0
    is_cancelled: bool = False
    is_prompt_reported: bool = False
    arrived_s: float = field(default_factory=time.monotonic)
    admitted_s: float = 0.0
    restored_s: float = 0.0

    @property
    def length(self) -> int:
        """Tokens of prompt and answer so far."""
        return len(self.prompt) + len(self.answer)

    @property
    def missing(self) -> int:
        """Tokens yet to be computed before the next one can be sampled."""
        return self.length - self.computed

    def header(self, index: int, block_tokens: int) -> BlockHeader:
        """Header of the turn's full block `index`."""
        return BlockHeader(
            key=self.keys[index],
            parent=self.keys[index - 1] if index else BlockKey(self.namespace),
            tokens=self.tokens(index * block_tokens, (index + 1) * block_tokens),
        )

    def tokens(self, start: int, end: int) -> Tokens:
        """Tokens `[start, end)` of prompt and answer, `(end - start,) uint32`."""
        prompt = len(self.prompt)
        if end <= prompt:
            return self.prompt[start:end]
        answer = np.asarray(self.answer[max(0, start - prompt) : end - prompt], dtype=np.uint32)
        return np.concatenate([self.prompt[start:prompt], answer]) if start < prompt else answer
