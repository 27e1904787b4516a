"""A tiny tokenizer, a template in the served form, and a server over an engine whose replies are scripted."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as RawTokenizer

from fnx_jax.engine.fake import FakeSteps
from fnx_jax.engine.lane import Lane
from fnx_jax.engine.limits import EngineConfig
from fnx_jax.engine.loop import Engine
from fnx_jax.engine.prompt_cache.disk import DiskChoice
from fnx_jax.engine.request import Request, Sink
from fnx_jax.serve.assets import TextAssets
from fnx_jax.serve.runner import ServerRun, StartUp
from fnx_jax.serve.service import LoadedModel
from fnx_jax.serve.settings import ServerSettings
from fnx_jax.serve.template import ChatTemplate
from fnx_jax.serve.tokenizer import Tokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
SENTENCES = (
    "The weather in Bern is fine today.",
    "A model reads tokens and writes tokens, one after the other.",
    "<function=get_weather>\n<parameter=city>\nBern\n</parameter>\n</function>",
    "Hello, how are you? I am well, thank you.",
)

TEMPLATE = """\
{%- set thinking = enable_thinking if enable_thinking is defined else true %}
{%- set effort = reasoning_effort | default('xhigh') %}
{%- if effort not in ['low', 'medium', 'xhigh'] %}
    {{- raise_exception('no such effort: ' ~ effort) }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}
        {{- raise_exception('system must come first') }}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' }}
    {%- if loop.first and tools %}
        {%- for tool in tools %}
            {{- tool | tojson ~ '\\n' }}
        {%- endfor %}
    {%- endif %}
    {%- if loop.first and thinking and effort != 'medium' %}
        {{- 'effort ' ~ effort ~ '\\n' }}
    {%- endif %}
    {%- if message.reasoning_content %}
        {{- '<think>\\n' ~ message.reasoning_content ~ '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n<function=' ~ call.function.name ~ '>\\n' }}
        {%- for name, value in call.function.arguments.items() %}
            {{- '<parameter=' ~ name ~ '>\\n' ~ value ~ '\\n</parameter>\\n' }}
        {%- endfor %}
        {{- '</function>\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n<think>\\n' }}
    {%- if not thinking %}
        {{- '\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Says how the weather is.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "units": {"type": "object"}},
        },
    },
}
CALL = "<tool_call>\n<function=get_weather>\n<parameter=city>\nBern\n</parameter>\n</function>\n</tool_call>"


@cache
def tokenizer() -> Tokenizer:
    """Every byte is a token, so any text can be scripted; a few merges make some tokens longer."""
    raw = RawTokenizer(models.BPE())
    raw.normalizer = normalizers.NFC()
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(SENTENCES, trainer)
    raw.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    raw.add_tokens([AddedToken(token, special=False, normalized=False) for token in TAGS])
    return Tokenizer(raw)


def ids(text: str) -> list[int]:
    """Tokens of a text; special tokens may be spelled."""
    return list(tokenizer().encode(text))


def byte_ids(text: str) -> list[int]:
    """One token a byte."""
    by_byte = {tokenizer().bytes_of(token): token for token in range(256)}
    return [by_byte[bytes([byte])] for byte in text.encode()]


@cache
def assets(temperature: float = 0.0) -> TextAssets:
    """The tokenizer, the template, and generation defaults."""
    ends = (tokenizer().id_of("<|im_end|>"), tokenizer().id_of("<|endoftext|>"))
    generation = {"temperature": temperature, "do_sample": True}
    return TextAssets(tokenizer(), ChatTemplate(TEMPLATE), generation, tuple(end for end in ends if end is not None))


class Script:
    """What the model is to say, and how it is paced.

    reply: ids of requests submitted from now on; afterwards the end token, or hashed tokens where `ends` is False.
    draft: how many tokens to propose after `count` reply tokens. gate: rounds wait while it is cleared.
    requests: all that were submitted. begun: rounds begun.
    """

    def __init__(self) -> None:
        self.reply: list[int] | None = []
        self.ends = True
        self.draft: Callable[[int], int] = lambda count: 0
        self.gate = threading.Event()
        self.gate.set()
        self.requests: list[Request] = []
        self.begun = 0
        self._replies: list[tuple[tuple[int, ...], list[int] | None]] = []

    def say(self, text: str | Sequence[int] | None, ends: bool = True, draft: int = 0) -> None:
        """Sets the next replies; None leaves them to the engine's hash."""
        self.reply = ids(text) if isinstance(text, str) else None if text is None else list(text)
        self.ends = ends
        self.draft = lambda count: draft

    def begin(self, number: int) -> None:
        """Waits at the gate before a round."""
        self.begun = number + 1
        self.gate.wait()

    def note(self, request: Request) -> None:
        """Ties a request to the reply of the moment."""
        end = tokenizer().id_of("<|im_end|>")
        reply = None if self.reply is None else self.reply + ([end] if self.ends and end is not None else [])
        self.requests.append(request)
        self._replies.append((request.prompt, reply))

    def next(self, tokens: Sequence[int]) -> int | None:
        """The token after `tokens`, None for the hash."""
        for prompt, reply in reversed(self._replies):
            if tuple(tokens[: len(prompt)]) == prompt:
                at = len(tokens) - len(prompt)
                return reply[at] if reply is not None and at < len(reply) else None
        return None

    def drafts(self, lane: Lane) -> Sequence[int]:
        """Proposes scripted tokens, which are all right."""
        tokens, out = list(lane.tokens), []
        for _ in range(self.draft(lane.replied)):
            token = self.next(tokens)
            if token is None:
                break
            out.append(token)
            tokens.append(token)
        return out


class ScriptedEngine(Engine):
    """The real engine; the script learns of requests before they run."""

    def __init__(self, script: Script, steps: FakeSteps, config: EngineConfig | None = None, **options: Any):
        super().__init__(steps, config, drafts=script.drafts, **options)
        self.script = script

    def submit(self, request: Request, sink: Sink) -> None:
        self.script.note(request)
        super().submit(request, sink)


def fake_model(
    script: Script,
    start: StartUp | None = None,
    *,
    lanes: int = 4,
    context: int = 512,
    max_queue: int = 64,
    disk: DiskChoice | None = None,
    **options,
) -> LoadedModel:
    """A started engine over no device, with the tiny tokenizer."""
    steps = FakeSteps(
        lanes=lanes,
        context=context,
        vocabulary=tokenizer().size,
        script=script.next,
        before=script.begin,
        **options,
    )
    on_record = start.on_round if start else None
    config = EngineConfig(max_queue=max_queue, prompt_cache_min_tokens=8, prompt_cache_disk=disk)
    engine = ScriptedEngine(script, steps, config, on_record=on_record)
    engine.start()
    return LoadedModel("tiny", engine, assets(), context, tokenizer().size, digest="d1", devices=("none",))


class TestServer:
    """A server in this process. http: a client of it. script: what its model says."""

    __test__ = False

    def __init__(self, run: ServerRun, script: Script, http: httpx.Client):
        self.run, self.script, self.http = run, script, http

    @property
    def url(self) -> str:
        return self.run.url

    @property
    def engine(self) -> ScriptedEngine:
        model = self.run.service.model
        assert model is not None and isinstance(model.engine, ScriptedEngine)
        return model.engine

    def chat(self, text: str = "Hello", **fields: Any) -> httpx.Response:
        """A chat request with one user message."""
        body = {"messages": [{"role": "user", "content": text}]} | fields
        return self.http.post("/v1/chat/completions", json=body)

    def complete(self, prompt: Any = "Hello", **fields: Any) -> httpx.Response:
        """A completions request."""
        return self.http.post("/v1/completions", json={"prompt": prompt} | fields)

    def events(self, path: str, **fields: Any) -> list[dict[str, Any]]:
        """Events of a streamed request, without [DONE], which must come last."""
        response = self.http.post(path, json=fields | {"stream": True})
        assert response.status_code == 200, response.text
        return events(response.text)

    def chat_events(self, text: str = "Hello", **fields: Any) -> list[dict[str, Any]]:
        """Events of a streamed chat request."""
        return self.events("/v1/chat/completions", messages=[{"role": "user", "content": text}], **fields)


def events(body: str) -> list[dict[str, Any]]:
    """Reads server-sent events, dropping comments."""
    lines = [line for line in body.split("\n\n") if line and not line.startswith(":")]
    assert lines[-1] == "data: [DONE]"
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@contextmanager
def running(settings: ServerSettings | None = None, **model: Any) -> Iterator[TestServer]:
    """Runs a server on a free port of the loopback device, and ends it in order."""
    script = Script()
    settings = settings or ServerSettings(port=0, quiet=True, drain_s=5.0, allowed_origins=("http://app.test",))
    run = ServerRun(settings, lambda start: fake_model(script, start, **model), say=lambda line: None)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(run.run()), name="server")
    thread.start()
    try:
        assert run.ready.wait(20), "the server did not get ready"
        headers = {"Authorization": f"Bearer {settings.api_keys[0]}"} if settings.api_keys else {}
        with httpx.Client(base_url=run.url, timeout=20, headers=headers) as http:
            yield TestServer(run, script, http)
    finally:
        script.gate.set()
        run.stop()
        thread.join(20)
        assert codes == [0], "the server did not end in order"


def wait_for(done: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Waits until `done`; a stuck server fails the test, its pace does not."""
    end_s = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


def idle(server: TestServer) -> bool:
    """Whether no request has a lane, waits for one, or holds a page."""
    status = server.engine.status()
    return (status.running, status.filling, status.waiting, status.pages_used) == (0, 0, 0, 0)
