"""The OpenAI API as the `openai` package sees it, against scripted workers."""

from pathlib import Path
from typing import Any

from gateway_rig import API_KEY, Rig, running_rig
from scripted_engine import Script, ScriptedEngine

from engine.vocab import Vocab
from engine.wire import engine_pb2 as pb

pytest_plugins = ("gateway_fixtures",)

WORKERS = ("worker-1", "worker-2")
MESSAGES = [{"role": "user", "content": "Say hello."}]
PROMPT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n"
)


def only_request(rig: Rig) -> pb.GenerateRequest:
    [request] = [request for engine in rig.engines for request in engine.requests]
    return request


async def test_a_chat_is_answered_whole(rig: Rig, vocab: Vocab) -> None:
    for engine in rig.engines:
        engine.scripts.append(Script(tokens_hot=3, tokens_restored=4))
    answer = await rig.openai.chat.completions.create(model="smollm2", messages=MESSAGES)
    request = only_request(rig)
    assert list(request.tokens) == vocab.tokenize(PROMPT, parse_special=True)
    assert answer.choices[0].message.content == "Hello, world!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.id == f"chatcmpl-{request.turn_id}"
    usage = answer.usage
    assert usage is not None and usage.prompt_tokens_details is not None
    assert usage.prompt_tokens == len(request.tokens)
    assert usage.completion_tokens == 6  # "Hello", ", " (two), "world", "!" and the end
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens == 7
    assert answer.model_extra is not None
    facts = answer.model_extra["stockpot"]
    assert facts.pop("worker") in WORKERS
    assert facts == {
        "tokens_hot": 3,
        "tokens_restored": 4,
        "tokens_computed": len(request.tokens) - 7,
        "queue_ms": 0.0,
        "restore_ms": 0.0,
        "prefill_ms": 1.5,
    }


async def test_a_chat_is_streamed(rig: Rig) -> None:
    stream = await rig.openai.chat.completions.create(
        model="smollm2", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].delta.content for chunk in chunks[1:-2]] == ["Hello", ", ", "world", "!"]
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    last = chunks[-1]
    assert last.choices == [] and last.usage is not None and last.usage.prompt_tokens > 0
    assert last.model_extra is not None and last.model_extra["stockpot"]["worker"] in WORKERS
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_stream_without_include_usage_says_nothing_of_usage(rig: Rig) -> None:
    body = {"model": "smollm2", "messages": MESSAGES, "stream": True}
    answer = await rig.http.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert "usage" not in answer.text and "stockpot" not in answer.text


async def test_an_answer_without_text_is_an_empty_one(rig: Rig) -> None:
    for engine in rig.engines:
        engine.scripts.extend([Script(pieces=[]), Script(pieces=[])])
    whole = await rig.openai.chat.completions.create(model="smollm2", messages=MESSAGES)
    assert whole.choices[0].message.content == ""
    stream = await rig.openai.chat.completions.create(model="smollm2", messages=MESSAGES, stream=True)
    assert [chunk.choices[0].finish_reason async for chunk in stream] == [None, "stop"]


async def test_parameters_travel_to_the_worker(rig: Rig) -> None:
    await rig.openai.chat.completions.create(
        model="smollm2",
        messages=MESSAGES,
        temperature=0.5,
        top_p=0.25,
        seed=-1,
        stop=["END", "STOP"],
        max_tokens=3,
        max_completion_tokens=7,
        extra_body={"top_k": 5, "min_p": 0.125, "an_unknown_field": [1]},
    )
    request = only_request(rig)
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.25, 5, 0.125)
    assert sampling.seed == 2**64 - 1
    assert list(request.stop) == ["END", "STOP"]
    assert request.tokens_max == 7


async def test_defaults_are_openais_and_the_rest_of_the_context(rig: Rig) -> None:
    await rig.openai.chat.completions.create(model="smollm2", messages=MESSAGES)
    request = only_request(rig)
    assert (request.sampling.temperature, request.sampling.top_p) == (1.0, 1.0)
    assert not request.sampling.HasField("seed")
    assert request.tokens_max == 2048 - len(request.tokens)


async def test_an_answer_cut_by_length_says_so(rig: Rig) -> None:
    for engine in rig.engines:
        engine.scripts.append(Script(finish=pb.Finished.REASON_LENGTH))
    answer = await rig.openai.chat.completions.create(model="smollm2", messages=MESSAGES)
    assert answer.choices[0].finish_reason == "length"


async def test_completions_take_text_or_ids(rig: Rig, vocab: Vocab) -> None:
    ids = vocab.tokenize("def f(x):", parse_special=True)
    prompts: list[Any] = ["def f(x):", ["def f(x):"], ids, [ids]]
    for prompt in prompts:
        answer = await rig.openai.completions.create(model="smollm2", prompt=prompt)
        assert answer.choices[0].text == "Hello, world!"
        assert answer.id.startswith("cmpl-") and answer.object == "text_completion"
    requests = [request for engine in rig.engines for request in engine.requests]
    assert [list(request.tokens) for request in requests] == [ids] * 4


async def test_completions_are_streamed(rig: Rig) -> None:
    stream = await rig.openai.completions.create(model="smollm2", prompt="Say", stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello, world!"
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_models_health_and_metrics(rig: Rig) -> None:
    assert [model.id async for model in rig.openai.models.list()] == ["smollm2"]
    assert (await rig.openai.models.retrieve("smollm2")).id == "smollm2"
    await rig.openai.chat.completions.create(model="smollm2", messages=MESSAGES)
    assert (await rig.http.get("/health", headers={"authorization": ""})).json() == {"status": "ok"}
    metrics = (await rig.http.get("/metrics", headers={"authorization": ""})).text
    assert 'stockpot_gateway_turns_total{outcome="stop"} 1.0' in metrics
    assert "stockpot_gateway_workers_ready 2.0" in metrics
    names = [line.split()[2] for line in metrics.splitlines() if line.startswith("# TYPE")]
    assert names and all(name.startswith("stockpot_gateway_") for name in names)


async def test_salts_keep_tenants_and_salted_turns_apart(vocab: Vocab, smollm2_path: Path, tmp_path: Path) -> None:
    engine = ScriptedEngine(vocab, smollm2_path)
    async with running_rig([engine], tmp_path, api_keys=[API_KEY, "other"]) as rig:
        for key, salt in [
            (API_KEY, None),
            (API_KEY, None),
            ("other", None),
            (API_KEY, "a"),
            (API_KEY, "b"),
            ("other", "a"),
        ]:
            body = {"cache_salt": salt} if salt else {}
            await rig.key(key).chat.completions.create(model="smollm2", messages=MESSAGES, extra_body=body)
    salts = [request.salt for request in engine.requests]
    assert salts[0] == salts[1]
    assert len(set(salts)) == 5
    assert all(len(salt) == 32 for salt in salts)


async def test_a_shared_prefix_is_one_namespace_for_all(vocab: Vocab, smollm2_path: Path, tmp_path: Path) -> None:
    engine = ScriptedEngine(vocab, smollm2_path)
    async with running_rig([engine], tmp_path, api_keys=[API_KEY, "other"], shared_prefix=True) as rig:
        for key in (API_KEY, "other"):
            await rig.key(key).chat.completions.create(model="smollm2", messages=MESSAGES)
    assert [request.salt for request in engine.requests] == [b"", b""]


async def test_the_next_turn_has_the_tokens_that_the_model_generated(rig: Rig, vocab: Vocab) -> None:
    # "Hello" spelt letter by letter: the text alone would tokenise to one id.
    letters = [vocab.tokenize(letter, parse_special=False) for letter in "Hello"]
    assert [token for ids in letters for token in ids] != vocab.tokenize("Hello", parse_special=False)
    for engine in rig.engines:
        engine.scripts.append(Script(pieces=list("Hello"), ids=letters))
    first = await rig.openai.chat.completions.create(model="smollm2", messages=MESSAGES)
    answer = first.choices[0].message.content
    messages = [*MESSAGES, {"role": "assistant", "content": answer}, {"role": "user", "content": "Again."}]
    await rig.openai.chat.completions.create(model="smollm2", messages=messages)
    before, after = [request.tokens for engine in rig.engines for request in engine.requests]
    history = [*before, *(token for ids in letters for token in ids)]
    assert list(after)[: len(history)] == history
    assert vocab.special_tokens["<|im_end|>"] == after[len(history)]
