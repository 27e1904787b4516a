"""The official client of the API works against the server, and sees faults as its own exceptions."""

import hashlib
import json
from collections.abc import Iterator

import openai
import pytest

from fnx_jax.serve.settings import ServerSettings
from tests.fnx_jax.serve.support import CALL, WEATHER, TestServer, ids, running, tokenizer

CONTEXT = 320
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def keyed() -> Iterator[TestServer]:
    settings = ServerSettings(
        port=0, quiet=True, served_names=("served", "alias/two"), api_keys=("one", "two"), protect_metrics=True
    )
    with running(settings, context=CONTEXT) as server:
        yield server


@pytest.fixture
def client(keyed: TestServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="two", max_retries=0, timeout=20) as client:
        yield client


@pytest.fixture
def say(keyed: TestServer):
    return keyed.script.say


def test_chat(client, say):
    say("Let me think.\n</think>\n\nHello!")
    reply = client.chat.completions.create(model="served", messages=HELLO)
    assert reply.choices[0].message.content == "Hello!"
    assert reply.choices[0].message.reasoning_content == "Let me think."
    assert reply.choices[0].finish_reason == "stop"
    tokens = [*ids("Let me think.\n</think>\n\nHello!"), *ids("<|im_end|>")]
    assert reply.usage.completion_tokens == len(tokens)
    sha = hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()[:12]
    assert reply.choices[0].token_sha == sha


def test_chat_stream(client, say):
    say("</think>Hello, how are you?", draft=2)
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(model="served", messages=HELLO, stream=True, stream_options=options))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "Hello, how are you?"
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens > 0


def test_tools(client, say):
    say(f"</think>{CALL}")
    reply = client.chat.completions.create(model="served", messages=HELLO, tools=[WEATHER], tool_choice="auto")
    call = reply.choices[0].message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Bern"})
    assert reply.choices[0].finish_reason == "tool_calls"
    history = [*HELLO, reply.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "fine"}]
    say("</think>It is fine.")
    again = client.chat.completions.create(model="served", messages=history, tools=[WEATHER])
    assert again.choices[0].message.content == "It is fine."


def test_tools_stream(client, say):
    say(f"</think>{CALL}", draft=5)
    with client.chat.completions.stream(model="served", messages=HELLO, tools=[WEATHER]) as stream:
        call = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Bern"}')


def test_chat_logprobs(client, say):
    say("</think>né")
    reply = client.chat.completions.create(model="served", messages=HELLO, logprobs=True, top_logprobs=2)
    entries = reply.choices[0].logprobs.content
    assert len(entries) == reply.usage.completion_tokens
    joined = b"".join(bytes(entry.bytes) for entry in entries)
    assert joined == "</think>né<|im_end|>".encode()
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in entries)


def test_completions_with_echo_and_logprobs(client, say):
    say("fine", ends=False)
    reply = client.completions.create(model="served", prompt="The weather is ", echo=True, logprobs=1, max_tokens=1)
    logprobs = reply.choices[0].logprobs
    prompt = ids("The weather is ")
    assert reply.choices[0].text == "The weather is " + tokenizer().decode(ids("fine")[:1])
    assert len(logprobs.tokens) == len(prompt) + 1
    assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert logprobs.text_offset[:2] == [0, len(logprobs.tokens[0])]


def test_completions_can_score_a_prompt_alone(client, say):
    reply = client.completions.create(model="served", prompt=[[5, 6, 7], [8, 9]], echo=True, logprobs=0, max_tokens=0)
    assert [len(choice.logprobs.tokens) for choice in reply.choices] == [3, 2]
    assert reply.usage.completion_tokens == 0 and reply.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "count"), [("a b", 1), (["a", "b"], 2), ([5, 6], 1), ([[5, 6], [7]], 2), (["a", [5]], 2)]
)
def test_completions_takes_every_form_of_prompt(client, say, prompt, count):
    say("yes")
    reply = client.completions.create(model="served", prompt=prompt, max_tokens=8)
    assert [choice.text for choice in reply.choices] == ["yes"] * count
    assert [choice.index for choice in reply.choices] == list(range(count))


def test_completions_stream(client, say):
    say("one two three")
    chunks = list(client.completions.create(model="served", prompt="x", stream=True, echo=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "xone two three"
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"


def test_models(client):
    assert [model.id for model in client.models.list()] == ["served", "alias/two"]
    assert client.models.retrieve("alias/two").max_model_len == CONTEXT
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_wrong_key(keyed):
    with openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="three", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as fault:
            client.models.list()
    assert fault.value.code == "invalid_api_key"
    assert fault.value.response.headers["www-authenticate"] == "Bearer"


def test_wrong_model(client):
    with pytest.raises(openai.NotFoundError) as fault:
        client.chat.completions.create(model="gpt", messages=HELLO)
    assert (fault.value.code, fault.value.param) == ("model_not_found", "model")


def test_over_long_prompt(client, say):
    say(None)
    more = {"extra_body": {"ignore_eos": True}}
    reply = client.completions.create(model="served", prompt=[5] * (CONTEXT - 1), **more)
    assert (reply.usage.completion_tokens, reply.choices[0].finish_reason) == (1, "length")
    for size in (CONTEXT, CONTEXT + 1):
        with pytest.raises(openai.BadRequestError) as fault:
            client.completions.create(model="served", prompt=[5] * size)
        assert (fault.value.code, fault.value.param) == ("context_length_exceeded", "prompt")
        assert str(CONTEXT) in fault.value.message and str(size) in fault.value.message
    with pytest.raises(openai.BadRequestError) as fault:
        client.completions.create(model="served", prompt=[5] * 8, max_tokens=CONTEXT - 7)
    assert (fault.value.code, fault.value.param) == ("context_length_exceeded", "max_tokens")
    reply = client.completions.create(model="served", prompt=[5] * (CONTEXT - 9), max_tokens=9, **more)
    assert reply.usage.total_tokens == CONTEXT


def test_open_and_protected_paths(keyed):
    for path, status in (("/health", 200), ("/ping", 200), ("/version", 200), ("/metrics", 401), ("/tokenize", 401)):
        assert keyed.http.get(path, headers={"Authorization": ""}).status_code == status
