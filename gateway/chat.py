"""From messages to the text of a prompt: the model's own chat template, rendered as transformers does.

Templates without a word about tools (`tools` is not in them) get tools, calls and results as text in the
manner of the Hermes models, so that every model can be given tools.
"""

import contextlib
import datetime
import json
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.sandbox

from gateway.errors import ApiError
from gateway.schema import Message, ToolCall

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
# What a template raises on messages it was not made for: None + str, a missing field, a text where it wants a list.
_TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
_HERMES_TOOLS = (
    "You may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{tools}\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n"
    '<tool_call>\n{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)


class ChatTemplate:
    """One model's compiled template; `now` is the clock that templates with a date read.

    Raises: ApiError (400) from `render`; jinja2.TemplateSyntaxError from the constructor."""

    def __init__(
        self,
        source: str,
        *,
        bos_text: str,
        eos_text: str,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
    ) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
        self._template = environment.from_string(source)
        self._texts = {"bos_token": bos_text, "eos_token": eos_text}
        self.has_tools = "tools" in jinja2.meta.find_undeclared_variables(environment.parse(source))
        """Whether the template itself renders tools."""

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> str:
        """The prompt's text, up to where the assistant's next answer begins."""
        plain = [_plain_message(message, as_text=not self.has_tools) for message in messages]
        if tools and not self.has_tools:
            plain = _with_tools_in_system(plain, tools)
        try:
            return self._template.render(
                messages=plain,
                tools=list(tools) or None,
                add_generation_prompt=True,
                **self._texts,
            )
        except _TEMPLATE_ERRORS as error:
            raise ApiError(f"the model's chat template refuses these messages: {error}", param="messages") from error


def _plain_message(message: Message, *, as_text: bool) -> dict[str, Any]:
    """A message as templates expect it: content is one string, roles are the classic ones.

    `as_text` writes tool calls and results into the content."""
    if message.role not in _ROLES:
        raise ApiError(f"unknown role, expected one of {', '.join(sorted(_ROLES))}", param="messages")
    role = {"developer": "system", "function": "tool"}.get(message.role, message.role)
    plain: dict[str, Any] = {"role": role, "content": _text_of(message)}
    calls = message.tool_calls or []
    if as_text:
        written = [f"<tool_call>\n{_to_json(_call(call))}\n</tool_call>" for call in calls]
        plain["content"] = "\n".join([plain["content"], *written] if plain["content"] else written)
        if role == "tool":
            # Templates that know no tools know no tool role either; Hermes models read results from the user.
            plain = {"role": "user", "content": f"<tool_response>\n{plain['content']}\n</tool_response>"}
        return plain
    if calls:
        plain["tool_calls"] = [{"id": call.id, "type": "function", "function": _call(call)} for call in calls]
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _text_of(message: Message) -> str:
    """The content as one string: text parts are joined by line ends."""
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    for part in message.content:
        if part.type not in ("text", "input_text", "output_text", "refusal") or (part.text is None):
            raise ApiError("only text can be read: a message has a part of another type", param="messages")
    return "\n".join(part.text or "" for part in message.content)


def _call(call: ToolCall) -> dict[str, Any]:
    """A tool call's function, its arguments as an object where they are JSON."""
    arguments: Any = call.function.arguments
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):  # what is no JSON is shown again as the model wrote it
            arguments = json.loads(arguments or "{}")
    return {"name": call.function.name, "arguments": arguments}


def _with_tools_in_system(messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the tools described at the end of the (or a new) leading system message."""
    text = _HERMES_TOOLS.format(tools="\n".join(_to_json(tool) for tool in tools))
    if messages and messages[0]["role"] == "system":
        first = {"role": "system", "content": f"{messages[0]['content']}\n\n{text}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers' filter writes it: jinja2's own would escape <, > and & for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
