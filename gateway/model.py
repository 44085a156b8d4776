"""The one model that a gateway serves: its text side, and its identity as the first worker tells it."""

from dataclasses import dataclass
from pathlib import Path

import jinja2

from engine.vocab import Vocab
from engine.wire import engine_pb2 as engine
from gateway.chat import ChatTemplate
from gateway.tokenise import Tokeniser, make_tokeniser
from kvstore.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ModelText:
    """What turns a conversation into tokens."""

    vocab: Vocab
    template: ChatTemplate | None
    """None for a model without one: it serves completions only."""
    tokeniser: Tokeniser

    @classmethod
    def load(cls, path: Path, cache_bytes_max: int) -> "ModelText":
        """Vocabulary and template of the GGUF at `path`; takes a fraction of a second: not for the event loop.

        Raises: ConfigError when the file is no model, or its chat template no template."""
        vocab = Vocab.load(path)
        template = None
        if vocab.chat_template is not None:
            try:
                template = ChatTemplate(vocab.chat_template, bos_text=vocab.bos_text, eos_text=vocab.eos_text)
            except jinja2.TemplateSyntaxError as error:
                raise ConfigError(f"the chat template in {path} cannot be compiled: {error}") from error
        return cls(vocab, template, make_tokeniser(vocab, cache_bytes_max))


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The text side with the name and the weights that workers serve under it."""

    name: str
    digest: bytes
    text: ModelText
    created: int
    """When it was first seen, in seconds since 1970."""

    def check_same(self, described: engine.DescribeResponse) -> None:
        """Raises: ConfigError when a worker serves another model: its answers would be another's."""
        if described.model_digest != self.digest:
            raise ConfigError(
                f"this gateway serves {self.name!r} with digest {self.digest.hex()[:16]}, the worker has "
                f"{described.model_name!r} with {described.model_digest.hex()[:16]}: give it a gateway of its own"
            )


def check_vocabulary(text: ModelText, described: engine.DescribeResponse) -> None:
    """Raises: ConfigError when `text` cannot be of the model that the worker serves."""
    if text.vocab.size != described.vocab_size:
        raise ConfigError(
            f"the vocabulary has {text.vocab.size} tokens, the worker's {described.vocab_size}: "
            "model_path must name the GGUF file that the workers serve"
        )
