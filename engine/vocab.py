"""A model's vocabulary without its weights, for the gateway: text to token ids, and the chat template."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.llama.model import LlamaModel


@dataclass(frozen=True)
class Vocab:
    """Everything needed to turn a conversation into tokens exactly as the worker's model expects.

    Thread-safe: llama.cpp's vocabulary is never written after loading."""

    model: LlamaModel
    size: int
    chat_template: str | None
    """The GGUF's Jinja template."""
    bos_text: str
    eos_text: str
    add_bos: bool
    """True when a prompt begins with the begin-of-text token."""
    special_tokens: Mapping[str, int]
    """Text to id of every control and user-defined token."""
    end_of_generation: frozenset[int]

    @classmethod
    def load(cls, path: Path) -> "Vocab":
        """Read the vocabulary of the GGUF at `path`; a fraction of a second.

        Raises: ConfigError when the file is no GGUF or cannot be loaded."""
        model = LlamaModel(path, vocab_only=True)
        tokens = range(model.vocab_size)
        special = {
            model.piece(token, show_special=True).decode("utf-8", "replace"): token
            for token in tokens
            if model.is_special(token)
        }
        return cls(
            model=model,
            size=model.vocab_size,
            chat_template=model.chat_template,
            bos_text=_text_of(model, model.bos),
            eos_text=_text_of(model, model.eos),
            add_bos=model.adds_bos,
            special_tokens={text: token for text, token in special.items() if text},
            end_of_generation=frozenset(token for token in tokens if model.is_end_of_generation(token)),
        )

    def tokenize(self, text: str, *, parse_special: bool, add_bos: bool = False) -> list[int]:
        """Token ids of `text`; special tokens written out in it are parsed only with `parse_special`."""
        ids: list[int] = self.model.tokenize(text, parse_special=parse_special, add_bos=add_bos).tolist()
        return ids

    def piece(self, token: int) -> bytes:
        """The bytes of one token; not always whole UTF-8 characters."""
        return self.model.piece(token)


def _text_of(model: LlamaModel, token: int) -> str:
    return model.piece(token, show_special=True).decode("utf-8", "replace") if token >= 0 else ""
