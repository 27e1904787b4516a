"""Host side: runs a job: submits it, reads its emissions, and answers whole or as a stream.

Read next: client.py (where emissions come from), replies.py (what is made of them), sse.py.
"""

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive

from fnx_jax.engine.request import Emission, EngineClosed, EngineError, QueueFull
from fnx_jax.serve.access_log import RequestRecord
from fnx_jax.serve.choice import Choice, Piece
from fnx_jax.serve.client import Arrival, EmissionStream
from fnx_jax.serve.errors import ApiError, bad_request, internal, queue_full, unavailable
from fnx_jax.serve.jobs import Job
from fnx_jax.serve.service import Service
from fnx_jax.serve.sse import DONE, KEEP_ALIVE, ClientGone, SseResponse, disconnected, event, unless
from fnx_jax.serve.usage import usage

CLIENT_CLOSED = 499
SILENCE = Arrival(-1, Emission(""), 0.0)


async def answer(service: Service, job: Job, record: RequestRecord, receive: Receive) -> Any:
    """Answers a job.

    Returns: a response. Raises: ApiError where the engine refuses the job or, before anything was sent, fails at it.
    """
    run = Run(service, job, record)
    run.start()
    return run.streamed() if job.stream else await run.whole(receive)


class Run:
    """One job on its way through the engine."""

    def __init__(self, service: Service, job: Job, record: RequestRecord):
        self._service, self._job, self._record = service, job, record
        self._last_s: dict[int, float] = {}
        record.choices, record.prompt_tokens, record.user = job.choices, job.prompt_tokens, job.user
        requests = [choice.request for choice in job.choices]
        bound = service.settings.stream_bound if job.stream else None
        self._stream = EmissionStream(service.ready().engine, requests, bound)

    def start(self) -> None:
        """Submits the job. Raises: ApiError."""
        try:
            self._stream.start()
        except QueueFull:
            raise queue_full() from None
        except EngineClosed:
            raise unavailable("The server is shutting down.") from None
        except EngineError as error:
            name = str(error).partition(":")[0]
            raise bad_request(str(error), self._job.prompt_field if name == "prompt" else name) from None
        self._service.streams.add(self._stream)
        self._service.metrics.observe("vllm:request_params_n", self._job.n)

    async def whole(self, receive: Receive) -> Response:
        """Waits for every reply and answers with one body."""
        try:
            await unless(self._read_all(), disconnected(receive))
        except ClientGone:
            self._record.status = CLIENT_CLOSED
            return Response(status_code=CLIENT_CLOSED)
        finally:
            self._close()
        job = self._job
        choices = [job.format.full(choice) for choice in job.choices]
        extras = {"usage": self._usage(), **job.format.extras(job.choices)}
        body = job.head.envelope(job.format.reply_kind, choices, **extras)
        return Response(msgspec.json.encode(body), media_type="application/json", headers=dict(job.headers))

    def streamed(self) -> SseResponse:
        """A response that sends chunks as they are made."""
        return SseResponse(self._events(), self._stream.stalled, self._end_stream, self._job.headers)

    def _end_stream(self, whole: bool) -> None:
        if not whole:
            self._record.status = CLIENT_CLOSED
        self._close()

    def _close(self) -> None:
        self._service.streams.discard(self._stream)
        self._stream.close()

    async def _read_all(self) -> None:
        while (arrival := await self._stream.next()) is not None:
            self._take(arrival)
        if not any(choice.tokens or choice.finish_reason != "abort" for choice in self._job.choices):
            raise unavailable("The server is shutting down.")

    async def _events(self) -> AsyncGenerator[bytes, None]:
        """Chunks in order; a fault after the headers is told in an event of its own."""
        job, opened = self._job, False
        try:
            while (arrival := await self._next()) is not None:
                if arrival is SILENCE:
                    yield KEEP_ALIVE
                    continue
                choice, piece = self._take(arrival)
                chunks = job.format.chunks(choice, piece)
                if not opened:
                    chunks = job.format.opening(job.choices) + chunks
                for chunk in chunks:
                    yield event(self._chunk([chunk], first=not opened))
                    opened = True
            if job.options.usage_at_end:
                yield event(job.head.envelope(job.format.chunk_kind, [], usage=self._usage()))
        except ApiError as error:
            self._record.status = error.status
            yield event(error.body())
        yield DONE

    async def _next(self) -> Arrival | None:
        """The next emission, SILENCE after every stretch without one, None at the end."""
        try:
            return await self._stream.next(self._service.settings.keep_alive_s)
        except TimeoutError:
            return SILENCE

    def _chunk(self, choices: list[dict[str, Any]], first: bool) -> dict[str, Any]:
        job = self._job
        extras: dict[str, Any] = dict(job.format.extras(job.choices)) if first else {}
        if job.options.usage_always:
            extras["usage"] = self._usage()
        elif job.options.usage_at_end:
            extras["usage"] = None
        return job.head.envelope(job.format.chunk_kind, choices, **extras)

    def _usage(self) -> dict[str, Any]:
        return usage(self._job.prompt_tokens, self._job.choices, self._job.format.reasoning, self._job.n)

    def _take(self, arrival: Arrival) -> tuple[Choice, Piece]:
        """Gives an emission to its choice and to the metrics. Raises: ApiError 500 where the reply failed."""
        choice, emission = self._job.choices[arrival.choice], arrival.emission
        piece = choice.absorb(emission)
        if emission.tokens:
            self._note_tokens(arrival, len(emission.tokens))
        if emission.finish is not None:
            self._note_finish(choice, arrival.at_s)
            if emission.finish.reason == "error":
                raise internal(f"The reply failed: {emission.finish.error}")
        return choice, piece

    def _note_tokens(self, arrival: Arrival, count: int) -> None:
        metrics, last_s = self._service.metrics, self._last_s.get(arrival.choice)
        self._last_s[arrival.choice] = arrival.at_s
        if last_s is None:
            metrics.observe("vllm:time_to_first_token_seconds", arrival.at_s - self._record.begin_s)
            if self._record.first_s is None:
                self._record.first_s = arrival.at_s
        else:
            metrics.note_tokens(arrival.at_s - last_s, count)

    def _note_finish(self, choice: Choice, at_s: float) -> None:
        request, seconds = choice.request, at_s - self._record.begin_s
        assert choice.finish is not None
        prompt, reply = len(request.prompt), len(choice.tokens)
        self._service.metrics.note_finish(choice.finish, seconds, prompt, reply, request.sampling.max_tokens)
