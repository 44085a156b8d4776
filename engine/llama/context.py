"""A llama.cpp context with a unified KV cache, every call checked before it is made.

llama.cpp aborts the process on misuse (a batch over `n_batch`, a sequence id out of range, `seq_cp` of a
range without a unified cache), so each method asserts its preconditions first. One thread owns a
context: nothing here locks.

Slot 0 is the scratch slot: blocks are exported from it and restored into it, always the same one, since
llama.cpp writes the sequence id into the state and equal blocks must be equal bytes.
"""

import ctypes
import enum
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.llama.library import C, llama_log
from engine.llama.model import LlamaModel
from kvstore.core.errors import ConfigError

SCRATCH_SLOT = 0
SLOTS_MAX = 255  # llama.cpp's LLAMA_MAX_SEQ, less the scratch slot
_NONE = C.LLAMA_STATE_SEQ_FLAGS_NONE

# ggml.h: GGML_TYPE_BF16 is 30; the bindings do not name it.
KV_TYPES = {"f16": C.GGML_TYPE_F16, "bf16": 30, "q8_0": C.GGML_TYPE_Q8_0}


@dataclass(frozen=True, slots=True)
class ContextSettings:
    cells: int
    """Tokens of KV that all sequences share."""
    slots: int
    """Sequences beside the scratch slot."""
    batch_tokens: int
    """Largest batch."""
    threads: int
    kv_type: str = "q8_0"


class DecodeResult(enum.Enum):
    OK = 0
    NO_CELLS = 1
    """The batch did not fit; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens to compute, all arrays `(n,)`: `logits[i]` says whether token i's logits are wanted."""

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    slots: npt.NDArray[np.int32]
    logits: npt.NDArray[np.int8]


class LlamaContext:
    """Owns one `llama_context` on `model`; `close()` frees it.

    Raises: ConfigError when llama.cpp cannot make it (out of memory, unsupported KV type)."""

    def __init__(self, model: LlamaModel, settings: ContextSettings) -> None:
        assert 1 <= settings.slots <= SLOTS_MAX
        params = C.llama_context_default_params()
        params.n_ctx = settings.cells
        params.n_batch = params.n_ubatch = settings.batch_tokens
        params.n_seq_max = settings.slots + 1
        params.n_threads = params.n_threads_batch = settings.threads
        params.type_k = params.type_v = KV_TYPES[settings.kv_type]
        params.flash_attn_type = C.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.kv_unified = True
        params.no_perf = True
        self.handle = C.llama_init_from_model(model.handle, params)
        if not self.handle:
            raise ConfigError(
                f"llama.cpp cannot make a context of {settings.cells} cells of {settings.kv_type} KV: "
                f"{llama_log().take_errors()}; try fewer cells"
            )
        self.settings = settings
        self.vocab_size = model.vocab_size
        self.cells = int(C.llama_n_ctx(self.handle))
        """At least what was asked for: llama.cpp rounds up."""
        self.batch_tokens = int(C.llama_n_batch(self.handle))
        """At most what was asked for: llama.cpp cuts it to the cells."""
        self._memory = C.llama_get_memory(self.handle)
        # One batch for the context's life; its arrays are filled in place.
        self._batch = C.llama_batch_init(self.batch_tokens, 0, 1)

    def close(self) -> None:
        if self.handle:
            C.llama_batch_free(self._batch)
            C.llama_free(self.handle)
            self.handle = None

    def decode(self, batch: Batch) -> DecodeResult:
        """Compute `batch`: its KV is added to its slots, the wanted logits can be read until the next call.

        Raises: RuntimeError when llama.cpp fails (the slots of the batch are then unusable)."""
        count = len(batch.tokens)
        assert 0 < count <= self.batch_tokens
        assert int(batch.slots.min()) > SCRATCH_SLOT and int(batch.slots.max()) <= self.settings.slots
        assert int(batch.tokens.min()) >= 0 and int(batch.tokens.max()) < self.vocab_size
        raw = self._batch
        raw.n_tokens = count
        ctypes.memmove(raw.token, batch.tokens.ctypes.data, 4 * count)
        ctypes.memmove(raw.pos, batch.positions.ctypes.data, 4 * count)
        ctypes.memmove(raw.logits, batch.logits.ctypes.data, count)
        for i, slot in enumerate(batch.slots.tolist()):
            raw.n_seq_id[i] = 1
            raw.seq_id[i][0] = slot
        code = C.llama_decode(self.handle, raw)
        if code == 1:
            return DecodeResult.NO_CELLS
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}: {llama_log().take_errors()}")
        return DecodeResult.OK

    def logits(self, index: int) -> npt.NDArray[np.float32]:
        """Logits of the batch's token `index`, `(vocab_size,) float32`; a view, valid until the next decode."""
        pointer = C.llama_get_logits_ith(self.handle, index)
        assert pointer, f"token {index} of the batch has no logits"
        return np.ctypeslib.as_array(pointer, shape=(self.vocab_size,))

    def remove(self, slot: int, start: int = 0, end: int = -1) -> None:
        """Forget positions `[start, end)` of `slot`; -1 means to the end."""
        assert 0 <= slot <= self.settings.slots
        C.llama_memory_seq_rm(self._memory, slot, start, end)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Let `target` share positions `[start, end)` of `source`: cells are tagged, no bytes move."""
        assert 0 <= source <= self.settings.slots and 0 <= target <= self.settings.slots
        assert source != target and 0 <= start <= end
        C.llama_memory_seq_cp(self._memory, source, target, start, end)

    def state_bytes(self, slot: int) -> int:
        """Size of the state of `slot` now."""
        return int(C.llama_state_seq_get_size_ext(self.handle, slot, _NONE))

    def read_state(self, slot: int, out: npt.NDArray[np.uint8]) -> None:
        """Write the state of `slot` into `out`, whose size must be `state_bytes(slot)`."""
        pointer = out.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        written = C.llama_state_seq_get_data_ext(self.handle, pointer, len(out), slot, _NONE)
        assert written == len(out), f"state has {written} bytes, expected {len(out)}"

    def write_state(self, slot: int, state: npt.NDArray[np.uint8]) -> bool:
        """Replace all of `slot` by `state`; False when llama.cpp refused it (no cells left, another layout)."""
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        read = C.llama_state_seq_set_data_ext(self.handle, pointer, len(state), slot, _NONE)
        return bool(read == len(state))

    def positions(self, slot: int) -> tuple[int, int]:
        """Smallest and largest position held by `slot`; (-1, -1) when it is empty."""
        low = C.llama_memory_seq_pos_min(self._memory, slot)
        high = C.llama_memory_seq_pos_max(self._memory, slot)
        return int(low), int(high)
