"""Rendering of chat templates: SmolLM2's to the letter, tools with and without the template's help."""

import datetime
from typing import Any

import msgspec
import pytest

from engine.vocab import Vocab
from gateway.chat import ChatTemplate
from gateway.errors import ApiError
from gateway.schema import Message

pytest_plugins = ("gateway_fixtures",)

TOOL = {"type": "function", "function": {"name": "read", "description": "Reads <a> file", "parameters": {}}}
WITH_TOOLS = (
    "{{ bos_token }}{% for tool in tools or [] %}[{{ tool | tojson }}]{% endfor %}\n"
    "{% for m in messages %}\n"
    "    {% if m.tool_calls is defined %}\n"
    "{{ m.role }} calls {{ m.tool_calls[0].function | tojson }};\n"
    "    {% else %}\n"
    "{{ m.role }}{{ ' ' + m.tool_call_id if m.tool_call_id is defined }}: {{ m.content }};\n"
    "    {% endif %}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def template(source: str) -> ChatTemplate:
    return ChatTemplate(
        source, bos_text="<s>", eos_text="</s>", now=lambda: datetime.datetime(2026, 7, 4, tzinfo=datetime.UTC)
    )


def messages(*plain: dict[str, Any]) -> list[Message]:
    return msgspec.convert(plain, list[Message])


@pytest.fixture(scope="module")
def smollm2(vocab: Vocab) -> ChatTemplate:
    assert vocab.chat_template is not None
    return ChatTemplate(vocab.chat_template, bos_text=vocab.bos_text, eos_text=vocab.eos_text)


def test_smollm2_with_its_own_system_message(smollm2: ChatTemplate) -> None:
    assert smollm2.render(messages({"role": "user", "content": "Hi <b> & 'c'\n"})) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi <b> & 'c'\n<|im_end|>\n<|im_start|>assistant\n"
    )


def test_smollm2_with_history_parts_and_roles(smollm2: ChatTemplate) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    text = smollm2.render(
        messages(
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": parts},
            {"role": "assistant", "content": "three"},
            {"role": "user", "content": ""},
        )
    )
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\none\ntwo<|im_end|>\n"
        "<|im_start|>assistant\nthree<|im_end|>\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_without_tools_gets_them_as_hermes_text(smollm2: ChatTemplate) -> None:
    assert not smollm2.has_tools
    call = {"id": "1", "type": "function", "function": {"name": "read", "arguments": '{"path":"é"}'}}
    conversation = messages(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Read it."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "a file"},
    )
    text = smollm2.render(conversation, [TOOL])
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou may call one or more functions")
    assert '<tools>\n{"type": "function", "function": {"name": "read", "description": "Reads <a> file"' in text
    assert '<|im_start|>assistant\n<tool_call>\n{"name": "read", "arguments": {"path": "é"}}\n</tool_call>' in text
    assert "<|im_start|>user\n<tool_response>\na file\n</tool_response><|im_end|>" in text
    assert smollm2.render(conversation[1:2], [TOOL]).startswith("<|im_start|>system\nYou may call")


def test_a_template_with_tools_gets_them_as_data() -> None:
    both = template(WITH_TOOLS)
    assert both.has_tools
    call = {"id": "1", "function": {"name": "read", "arguments": '{"path": "<x>"}'}}
    text = both.render(
        messages(
            {"role": "user", "content": "go"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "a file"},
        ),
        [{"name": "read <x>"}],
    )
    assert text == (
        '<s>[{"name": "read <x>"}]user: go;\nassistant calls {"name": "read", "arguments": {"path": "<x>"}};\n'
        "tool 1: a file;\nassistant:"
    )


def test_arguments_that_are_no_json_are_shown_as_they_are() -> None:
    call = {"function": {"name": "f", "arguments": "{broken"}}
    text = template(WITH_TOOLS).render(messages({"role": "assistant", "tool_calls": [call]}))
    assert '"arguments": "{broken"' in text


def test_templates_have_the_clock() -> None:
    dated = template("{{ strftime_now('%d %b %Y') }}{{ eos_token }}")
    assert dated.render(messages({"role": "user", "content": "x"})) == "04 Jul 2026</s>"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].content }}{{ messages[7].content.x }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_that_fails_is_the_callers_error(source: str) -> None:
    with pytest.raises(ApiError, match="chat template refuses") as caught:
        template(source).render(messages({"role": "user", "content": "x"}))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "bad",
    [
        {"role": "wizard", "content": "x"},
        {"role": "user", "content": [{"type": "image_url"}]},
        {"role": "user", "content": [{"type": "text"}]},
    ],
)
def test_messages_that_cannot_be_read_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ApiError):
        template(WITH_TOOLS).render(messages(bad))
