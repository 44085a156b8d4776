"""What a turn is: what was asked for, and what has come of it so far."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.wire import engine_pb2 as pb
from gateway.model import ServedModel
from gateway.route import Estimate
from kvstore.core.keys import Tokens


@dataclass(frozen=True, slots=True)
class Turn:
    """What a client asked for, ready for a worker."""

    turn_id: str
    model: ServedModel
    salt: bytes
    """Whose KV may be used: the tenant's, and the request's own."""
    tenant_salt: bytes
    """Whose remembered tokens may be used: a `cache_salt` chooses KV, never which tokens a text becomes."""
    tokens: Tokens
    """`(n,) uint32`, the prompt."""
    tokens_max: int
    sampling: pb.Sampling
    stop: Sequence[str]
    is_streamed: bool
    """The client is sent text as it comes: a turn that has begun cannot be tried again."""
    prompt_text: str | None
    """The rendered chat, for remembering the answer's ids; None for completions."""
    arrived_s: float
    """By the clock of the runner."""

    def request(self) -> pb.GenerateRequest:
        return pb.GenerateRequest(
            turn_id=self.turn_id,
            tokens=self.tokens.tolist(),
            tokens_max=self.tokens_max,
            sampling=self.sampling,
            stop=self.stop,
            salt=self.salt,
        )


@dataclass(slots=True)
class Answer:
    """What has come of a turn so far; filled by `TurnRunner.run`."""

    worker: str = ""
    prompt: pb.PromptDone = field(default_factory=pb.PromptDone)
    estimate: Estimate | None = None
    """What the router expected of the worker."""
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    tokens: int = 0
    """Of the answer, end-of-generation token included; set at its end."""
    finish_reason: str = ""
    """Empty until the end: `stop` or `length`."""
    ttft_s: float = 0.0
    retries: int = 0

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def begin_on(self, worker: str, estimate: Estimate) -> None:
        """Forget an earlier attempt: the turn starts at `worker`."""
        self.worker = worker
        self.estimate = estimate
        self.prompt = pb.PromptDone()
        self.pieces.clear()
        self.token_ids.clear()
        self.ttft_s = 0.0
