"""A GGUF model: weights, vocabulary and metadata. Used by the worker, and vocabulary-only by the gateway."""

import ctypes
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.gguf import check_is_gguf
from engine.llama.library import C, llama_log
from kvstore.core.errors import ConfigError

_ATTR_CONTROL = 1 << 3
_ATTR_USER_DEFINED = 1 << 4


class LlamaModel:
    """Owns one `llama_model`; `close()` frees it, after every context made from it.

    Raises: ConfigError when the file cannot be read, is no GGUF or holds a model llama.cpp cannot load."""

    def __init__(self, path: Path, *, vocab_only: bool = False) -> None:
        check_is_gguf(path)
        log = llama_log()
        params = C.llama_model_default_params()
        params.vocab_only = vocab_only
        params.n_gpu_layers = 0
        self.handle = C.llama_model_load_from_file(os.fsencode(path), params)
        if not self.handle:
            raise ConfigError(f"llama.cpp cannot load {path}: {log.take_errors()}")
        self.path = path
        self._vocab = C.llama_model_get_vocab(self.handle)
        self.vocab_size: int = C.llama_vocab_n_tokens(self._vocab)

    def close(self) -> None:
        if self.handle:
            C.llama_model_free(self.handle)
            self.handle = None

    @property
    def context_tokens_train(self) -> int:
        return int(C.llama_model_n_ctx_train(self.handle))

    @property
    def sliding_window(self) -> int:
        """Tokens of the attention window; 0 for full attention."""
        return int(C.llama_model_n_swa(self.handle))

    @property
    def is_recurrent(self) -> bool:
        """True for recurrent and hybrid models, whose state cannot be cut at a token."""
        return bool(C.llama_model_is_recurrent(self.handle) or C.llama_model_is_hybrid(self.handle))

    @property
    def chat_template(self) -> str | None:
        raw = C.llama_model_chat_template(self.handle, None)
        return raw.decode("utf-8", "replace") if raw else None

    def metadata(self, key: str) -> str | None:
        """A scalar of the GGUF's metadata as text; None when it is not there."""
        buffer = ctypes.create_string_buffer(4096)
        length = C.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if length >= 0 else None

    def tokenize(self, text: str, *, parse_special: bool, add_bos: bool) -> npt.NDArray[np.int32]:
        """Token ids of `text`, `(n,) int32`. A special token in the text is parsed only with `parse_special`."""
        raw = text.encode("utf-8", "surrogatepass" if not text.isascii() else "strict")
        out = np.empty(len(raw) + 8, np.int32)  # a token is at least one byte, plus BOS and EOS
        pointer = out.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        count = C.llama_tokenize(self._vocab, raw, len(raw), pointer, len(out), add_bos, parse_special)
        if count < 0:
            out = np.empty(-count, np.int32)
            pointer = out.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
            count = C.llama_tokenize(self._vocab, raw, len(raw), pointer, len(out), add_bos, parse_special)
        assert count >= 0
        return out[:count].copy()

    def piece(self, token: int, *, show_special: bool = False) -> bytes:
        """The bytes of one token; not always whole UTF-8 characters. Special tokens are empty unless shown."""
        buffer = ctypes.create_string_buffer(64)
        length = C.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, show_special)
        if length < 0:
            buffer = ctypes.create_string_buffer(-length)
            length = C.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, show_special)
        return buffer.raw[:length]

    def is_special(self, token: int) -> bool:
        """True for control and user-defined tokens: those that text is partitioned at."""
        return bool(C.llama_vocab_get_attr(self._vocab, token) & (_ATTR_CONTROL | _ATTR_USER_DEFINED))

    def is_end_of_generation(self, token: int) -> bool:
        return bool(C.llama_vocab_is_eog(self._vocab, token))

    @property
    def adds_bos(self) -> bool:
        return bool(C.llama_vocab_get_add_bos(self._vocab))

    @property
    def bos(self) -> int:
        """Id of the begin-of-text token; -1 when the vocabulary has none."""
        return int(C.llama_vocab_bos(self._vocab))

    @property
    def eos(self) -> int:
        """Id of the end-of-text token; -1 when the vocabulary has none."""
        return int(C.llama_vocab_eos(self._vocab))
