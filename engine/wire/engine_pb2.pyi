from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("incarnation", "worker_id", "model_name", "model_digest", "kv_properties", "block_tokens", "context_tokens", "vocab_size", "slots", "kv_bytes_per_token", "model_path", "has_store", "store_reason")
    class KvPropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    KV_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    HAS_STORE_FIELD_NUMBER: _ClassVar[int]
    STORE_REASON_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    worker_id: str
    model_name: str
    model_digest: bytes
    kv_properties: _containers.ScalarMap[str, str]
    block_tokens: int
    context_tokens: int
    vocab_size: int
    slots: int
    kv_bytes_per_token: int
    model_path: str
    has_store: bool
    store_reason: str
    def __init__(self, incarnation: _Optional[int] = ..., worker_id: _Optional[str] = ..., model_name: _Optional[str] = ..., model_digest: _Optional[bytes] = ..., kv_properties: _Optional[_Mapping[str, str]] = ..., block_tokens: _Optional[int] = ..., context_tokens: _Optional[int] = ..., vocab_size: _Optional[int] = ..., slots: _Optional[int] = ..., kv_bytes_per_token: _Optional[int] = ..., model_path: _Optional[str] = ..., has_store: _Optional[bool] = ..., store_reason: _Optional[str] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "seed")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("turn_id", "tokens", "tokens_max", "sampling", "stop", "salt", "stop_tokens", "ignore_end_of_generation")
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_MAX_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_END_OF_GENERATION_FIELD_NUMBER: _ClassVar[int]
    turn_id: str
    tokens: _containers.RepeatedScalarFieldContainer[int]
    tokens_max: int
    sampling: Sampling
    stop: _containers.RepeatedScalarFieldContainer[str]
    salt: bytes
    stop_tokens: _containers.RepeatedScalarFieldContainer[int]
    ignore_end_of_generation: bool
    def __init__(self, turn_id: _Optional[str] = ..., tokens: _Optional[_Iterable[int]] = ..., tokens_max: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., stop: _Optional[_Iterable[str]] = ..., salt: _Optional[bytes] = ..., stop_tokens: _Optional[_Iterable[int]] = ..., ignore_end_of_generation: _Optional[bool] = ...) -> None: ...

class PromptDone(_message.Message):
    __slots__ = ("tokens", "tokens_hot", "tokens_restored", "tokens_computed", "queue_ms", "restore_ms", "prefill_ms")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_HOT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_RESTORED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_COMPUTED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    RESTORE_MS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_MS_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    tokens_hot: int
    tokens_restored: int
    tokens_computed: int
    queue_ms: float
    restore_ms: float
    prefill_ms: float
    def __init__(self, tokens: _Optional[int] = ..., tokens_hot: _Optional[int] = ..., tokens_restored: _Optional[int] = ..., tokens_computed: _Optional[int] = ..., queue_ms: _Optional[float] = ..., restore_ms: _Optional[float] = ..., prefill_ms: _Optional[float] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("prompt_done", "delta", "finished")
    PROMPT_DONE_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    prompt_done: PromptDone
    delta: Delta
    finished: Finished
    def __init__(self, prompt_done: _Optional[_Union[PromptDone, _Mapping]] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("tokens", "text")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    text: str
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("reason", "tokens", "stop")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[Finished.Reason]
        REASON_STOP: _ClassVar[Finished.Reason]
        REASON_LENGTH: _ClassVar[Finished.Reason]
    REASON_UNSPECIFIED: Finished.Reason
    REASON_STOP: Finished.Reason
    REASON_LENGTH: Finished.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    reason: Finished.Reason
    tokens: int
    stop: str
    def __init__(self, reason: _Optional[_Union[Finished.Reason, str]] = ..., tokens: _Optional[int] = ..., stop: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("incarnation", "is_reset", "hot_added", "hot_removed", "load")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    IS_RESET_FIELD_NUMBER: _ClassVar[int]
    HOT_ADDED_FIELD_NUMBER: _ClassVar[int]
    HOT_REMOVED_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    is_reset: bool
    hot_added: _containers.RepeatedScalarFieldContainer[bytes]
    hot_removed: _containers.RepeatedScalarFieldContainer[bytes]
    load: Load
    def __init__(self, incarnation: _Optional[int] = ..., is_reset: _Optional[bool] = ..., hot_added: _Optional[_Iterable[bytes]] = ..., hot_removed: _Optional[_Iterable[bytes]] = ..., load: _Optional[_Union[Load, _Mapping]] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("running", "queued", "prefill_tokens_waiting", "prefill_tokens_per_s", "restore_bytes_per_s", "cells_used", "cells", "is_draining")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_WAITING_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    RESTORE_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    CELLS_USED_FIELD_NUMBER: _ClassVar[int]
    CELLS_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    running: int
    queued: int
    prefill_tokens_waiting: int
    prefill_tokens_per_s: float
    restore_bytes_per_s: float
    cells_used: int
    cells: int
    is_draining: bool
    def __init__(self, running: _Optional[int] = ..., queued: _Optional[int] = ..., prefill_tokens_waiting: _Optional[int] = ..., prefill_tokens_per_s: _Optional[float] = ..., restore_bytes_per_s: _Optional[float] = ..., cells_used: _Optional[int] = ..., cells: _Optional[int] = ..., is_draining: _Optional[bool] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("deadline_ms",)
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    deadline_ms: int
    def __init__(self, deadline_ms: _Optional[int] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("turns_cut",)
    TURNS_CUT_FIELD_NUMBER: _ClassVar[int]
    turns_cut: int
    def __init__(self, turns_cut: _Optional[int] = ...) -> None: ...
