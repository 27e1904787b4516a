"""The bridge from the engine's thread to the event loop: order, bounds, and ends that come from this side."""

import asyncio
import threading

import pytest

from fnx_jax.engine.request import Emission, Finish, QueueFull, Request, Sink
from fnx_jax.serve.client import EmissionStream

REQUESTS = [Request("a", (1,)), Request("b", (1,))]


class Held:
    """An engine that only remembers. full_after: requests it takes."""

    failed = None

    def __init__(self, full_after: int = 10):
        self.sinks: dict[str, Sink] = {}
        self.cancelled: list[str] = []
        self._full_after = full_after

    def submit(self, request: Request, sink: Sink) -> None:
        if len(self.sinks) == self._full_after:
            raise QueueFull("queue: full")
        self.sinks[request.id] = sink

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def status(self):
        raise NotImplementedError

    def drain(self, timeout_s: float) -> bool:
        return True

    def stop(self) -> None:
        pass


async def read_all(stream: EmissionStream) -> list[tuple[int, Emission]]:
    out = []
    while (arrival := await stream.next(10)) is not None:
        out.append((arrival.choice, arrival.emission))
    return out


def test_emissions_keep_their_order_across_threads():
    async def main() -> list[tuple[int, Emission]]:
        engine = Held()
        stream = EmissionStream(engine, REQUESTS)
        stream.start()

        def emit(name: str) -> None:
            for token in range(200):
                engine.sinks[name](Emission(name, (token,)))
            engine.sinks[name](Emission(name, finish=Finish("stop")))

        threads = [threading.Thread(target=emit, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        out = await read_all(stream)
        for thread in threads:
            thread.join()
        return out

    out = asyncio.run(main())
    for choice in (0, 1):
        tokens = [emission.tokens for at, emission in out if at == choice]
        assert tokens == [*((token,) for token in range(200)), ()]


def test_silence_is_a_timeout():
    async def main() -> None:
        stream = EmissionStream(Held(), REQUESTS)
        stream.start()
        with pytest.raises(TimeoutError):
            await stream.next(0.01)

    asyncio.run(main())


def test_what_fits_no_queue_is_taken_back():
    async def main() -> list[str]:
        engine = Held(full_after=1)
        stream = EmissionStream(engine, REQUESTS)
        with pytest.raises(QueueFull):
            stream.start()
        assert await stream.next(1) is None
        return engine.cancelled

    assert asyncio.run(main()) == ["a"]


def test_a_lost_engine_ends_what_it_left_open():
    async def main() -> list[tuple[int, Emission]]:
        engine = Held()
        stream = EmissionStream(engine, REQUESTS)
        stream.start()
        engine.sinks["a"](Emission("a", (1,), finish=Finish("stop")))
        assert await stream.next(1) is not None
        stream.fail("gone")
        return await read_all(stream)

    (choice, emission), *more = asyncio.run(main())
    assert (choice, emission.finish, more) == (1, Finish("error", error="gone"), [])


def test_a_full_queue_is_told_and_closing_cancels():
    async def main() -> list[str]:
        engine = Held()
        stream = EmissionStream(engine, REQUESTS, bound=2)
        stream.start()
        for token in range(5):
            engine.sinks["a"](Emission("a", (token,)))
        await asyncio.wait_for(stream.stalled.wait(), 10)
        stream.close()
        engine.sinks["a"](Emission("a", (9,)))
        return engine.cancelled

    assert asyncio.run(main()) == ["a", "b"]


def test_emissions_after_the_loop_has_ended_are_dropped():
    async def main() -> Held:
        engine = Held()
        EmissionStream(engine, REQUESTS).start()
        return engine

    asyncio.run(main()).sinks["a"](Emission("a", (1,)))
