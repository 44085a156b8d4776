"""Every request that is refused: its status, and words that say what to do."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest
from gateway_rig import API_KEY, Rig, running_gateway, running_rig
from scripted_engine import Script, ScriptedEngine

from engine.vocab import Vocab

pytest_plugins = ("gateway_fixtures",)

MESSAGES = [{"role": "user", "content": "Say hello."}]
CHAT = {"model": "smollm2", "messages": MESSAGES}
COMPLETION = {"model": "smollm2", "prompt": "Say"}

UNSUPPORTED_IN_CHAT: list[dict[str, Any]] = [
    {"n": 2},
    {"logprobs": True},
    {"logit_bias": {"5": 1.0}},
    {"presence_penalty": 0.5},
    {"frequency_penalty": -0.5},
    {"response_format": {"type": "json_object"}},
    {"tool_choice": "required"},
    {"tool_choice": {"type": "function", "function": {"name": "f"}}},
    {"functions": [{"name": "f"}]},
    {"modalities": ["text", "audio"]},
]
UNSUPPORTED_IN_COMPLETIONS: list[dict[str, Any]] = [{"best_of": 2}, {"echo": True}, {"suffix": "x"}, {"logprobs": 1}]
BAD_VALUES: list[dict[str, Any]] = [
    {"temperature": 2.5},
    {"temperature": -1},
    {"top_p": 1.5},
    {"min_p": -0.5},
    {"top_k": -2},
    {"max_tokens": 0},
    {"stop": [""]},
    {"stop": ["x"] * 17},
    {"stop": "x" * 257},
    {"messages": []},
    {"messages": [{"role": "wizard", "content": "x"}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
]
TYPE_ERRORS: list[dict[str, Any]] = [{"messages": "hi"}, {"temperature": "hot"}, {"stream": 1}, {"model": None}]


def check_error(answer: httpx.Response, status: int, *, param: str | None = None, code: str | None = None) -> str:
    """The message of an error that has OpenAI's shape."""
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert len(error["message"]) > 10
    assert param is None or error["param"] == param
    assert code is None or error["code"] == code
    message = error["message"]
    assert isinstance(message, str)
    return message


async def test_what_cannot_be_served_is_refused(rig: Rig) -> None:
    for path, body, fields in [
        *(("/v1/chat/completions", CHAT, fields) for fields in UNSUPPORTED_IN_CHAT),
        *(("/v1/completions", COMPLETION, fields) for fields in UNSUPPORTED_IN_COMPLETIONS),
    ]:
        answer = await rig.http.post(path, json={**body, **fields})
        [param] = fields
        message = check_error(answer, 400, param=param, code="unsupported_value")
        assert param in message
    assert not any(engine.requests for engine in rig.engines)


async def test_bad_values_are_refused(rig: Rig) -> None:
    for fields in BAD_VALUES:
        answer = await rig.http.post("/v1/chat/completions", json={**CHAT, **fields})
        [param] = fields
        check_error(answer, 400, param=param)
    for prompt in (["a", "b"], [], "", [[1], [2]], [1, "a"], [-1], [10**6]):
        answer = await rig.http.post("/v1/completions", json={**COMPLETION, "prompt": prompt})
        check_error(answer, 400, param="prompt")
    assert not any(engine.requests for engine in rig.engines)


async def test_values_that_ask_for_nothing_special_are_taken(rig: Rig) -> None:
    fields = {
        "n": 1,
        "logprobs": False,
        "logit_bias": {},
        "presence_penalty": 0,
        "response_format": {"type": "text"},
        "tool_choice": "auto",
        "top_k": -1,
        "seed": None,
        "stop": None,
        "store": True,
        "reasoning_effort": "low",
    }
    assert (await rig.http.post("/v1/chat/completions", json={**CHAT, **fields})).status_code == 200


async def test_bodies_that_are_no_requests(rig: Rig) -> None:
    for content in (b"", b"{", b"[]", b"nonsense", b'{"model": "smollm2"}', b"\xff\xfe", b"[" * 100_000):
        check_error(await rig.http.post("/v1/chat/completions", content=content), 400)
    deep = b'{"model": "smollm2", "messages": [], "x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    check_error(await rig.http.post("/v1/chat/completions", content=deep), 400)
    for fields in TYPE_ERRORS:
        check_error(await rig.http.post("/v1/chat/completions", json={**CHAT, **fields}), 400)


async def test_wrong_keys(rig: Rig) -> None:
    for header in ("", "Bearer", "Bearer wrong", f"Basic {API_KEY}", API_KEY, f"Bearer {API_KEY}x"):
        for path, method in (("/v1/chat/completions", "POST"), ("/v1/completions", "POST"), ("/v1/models", "GET")):
            answer = await rig.http.request(method, path, headers={"authorization": header})
            check_error(answer, 401, code="invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
    with pytest.raises(openai.AuthenticationError):
        await rig.key("wrong").chat.completions.create(model="smollm2", messages=MESSAGES)  # type: ignore[arg-type]


async def test_unknown_models_paths_and_methods(rig: Rig) -> None:
    answer = await rig.http.post("/v1/chat/completions", json={**CHAT, "model": "gpt-4"})
    assert "smollm2" in check_error(answer, 404, param="model", code="model_not_found")
    check_error(await rig.http.get("/v1/models/gpt-4"), 404, code="model_not_found")
    check_error(await rig.http.get("/v1/nothing"), 404)
    check_error(await rig.http.get("/v1/chat/completions"), 405)
    with pytest.raises(openai.NotFoundError):
        await rig.openai.chat.completions.create(model="gpt-4", messages=MESSAGES)  # type: ignore[arg-type]


async def test_a_prompt_longer_than_the_context_names_both_numbers(rig: Rig) -> None:
    answer = await rig.http.post("/v1/completions", json={**COMPLETION, "prompt": [5] * 2048})
    message = check_error(answer, 400, param="prompt", code="context_length_exceeded")
    assert "2048 tokens" in message
    chat = {**CHAT, "messages": [{"role": "user", "content": "word " * 3000}]}
    message = check_error(await rig.http.post("/v1/chat/completions", json=chat), 400, code="context_length_exceeded")
    assert "3031" in message and "2048" in message
    assert (await rig.http.post("/v1/completions", json={**COMPLETION, "prompt": [5] * 2047})).status_code == 200
    assert [request.tokens_max for engine in rig.engines for request in engine.requests] == [1]


async def test_limits_on_bodies_and_messages(vocab: Vocab, smollm2_path: Path, tmp_path: Path) -> None:
    engine = ScriptedEngine(vocab, smollm2_path)
    async with running_rig([engine], tmp_path, body_bytes_max=1000, messages_max=3) as rig:
        answer = await rig.http.post("/v1/chat/completions", json={**CHAT, "messages": MESSAGES * 4})
        assert "4 messages" in check_error(answer, 400, param="messages")
        answer = await rig.http.post("/v1/chat/completions", content=b" " * 1001)
        assert "1000 bytes" in check_error(answer, 413)


async def test_without_a_worker_turns_are_503(tmp_path: Path) -> None:
    # Port 1 of loopback: nothing listens there.
    async with running_gateway(["127.0.0.1:1"], tmp_path) as url:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
            key = {"authorization": f"Bearer {API_KEY}"}
            answer = await http.post("/v1/chat/completions", json=CHAT, headers=key)
            check_error(answer, 503)
            assert int(answer.headers["retry-after"]) >= 1
            assert (await http.get("/ready")).status_code == 503
            assert (await http.get("/health")).status_code == 200
            assert (await http.get("/v1/models", headers=key)).json()["data"] == []


async def test_full_queues_are_429(vocab: Vocab, smollm2_path: Path, tmp_path: Path) -> None:
    engine = ScriptedEngine(vocab, smollm2_path, slots=1)
    script = Script(hold_at=0)
    engine.scripts.append(script)
    async with running_rig([engine], tmp_path, queue_per_worker_max=0) as rig:
        waiting = asyncio.create_task(rig.http.post("/v1/chat/completions", json=CHAT))
        await engine.begun.get()
        answer = await rig.http.post("/v1/chat/completions", json=CHAT)
        check_error(answer, 429, code="rate_limit_exceeded")
        assert int(answer.headers["retry-after"]) >= 1
        script.release.set()
        assert (await waiting).status_code == 200
        engine.scripts.append(Script(fail_at=0, fail_code=grpc.StatusCode.RESOURCE_EXHAUSTED))
        check_error(await rig.http.post("/v1/chat/completions", json=CHAT), 429)


async def test_what_the_worker_refuses_is_a_400(rig: Rig) -> None:
    for engine in rig.engines:
        engine.scripts.append(Script(fail_at=0, fail_code=grpc.StatusCode.INVALID_ARGUMENT))
    check_error(await rig.http.post("/v1/chat/completions", json=CHAT), 400)
    assert len([request for engine in rig.engines for request in engine.requests]) == 1
