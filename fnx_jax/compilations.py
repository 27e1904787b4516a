"""Host side: counts compilations, so that a server can show that traffic compiles nothing."""

import jax.monitoring

_EVENT = "/jax/core/compile/backend_compile_duration"


class CompilationCounter:
    """Counts backend compilations from its creation on; `close` ends the count."""

    def __init__(self) -> None:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _EVENT:
            self.count += 1

    def close(self) -> None:
        """Stops counting."""
        jax.monitoring.unregister_event_duration_listener(self._listen)
