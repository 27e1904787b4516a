"""Host side: the state of one server: loading, ready, draining or failed, and the model once there is one.

Lives on the event loop. Read next: jobs.py (requests), runner.py (who changes the state).
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fnx_jax.serve.assets import AssetError, TextAssets
from fnx_jax.serve.client import EmissionStream, EngineClient
from fnx_jax.serve.errors import model_not_found, unavailable
from fnx_jax.serve.markup import MARKUP, Markup
from fnx_jax.serve.metrics import Metrics
from fnx_jax.serve.sampling import Limits, sampling_defaults
from fnx_jax.serve.settings import ServerSettings
from fnx_jax.serve.validate import Fields, IgnoredOnce

State = Literal["loading", "ready", "draining", "failed"]
WHY_NOT = {
    "loading": "The model is loading.",
    "draining": "The server is shutting down.",
    "failed": "The device was lost; the server is shutting down.",
}


@dataclass(frozen=True)
class LoadedModel:
    """What a loader hands over: a started and warmed-up engine and everything a reply needs besides.

    name: served where the settings name nothing else. context: positions of a prompt and its reply together.
    vocabulary: ids the engine takes. digest: of the checkpoint's files. fingerprint: what the bits depend on.
    devices: one text each. memory: of each device, in bytes. cache: label values of `vllm:cache_config_info`.
    config: other resolved choices of the run, for `/v1/server_info`. drafts: whether any can be made.
    counters: name to running total, published as `fnx:name`; called from the event loop, must not wait.
    """

    name: str
    engine: EngineClient
    assets: TextAssets
    context: int
    vocabulary: int
    digest: str | None = None
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    memory: Mapping[str, Any] = field(default_factory=dict)
    cache: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    drafts: bool = True
    counters: Callable[[], Mapping[str, float]] = dict


class Service:
    """One server. streams: those open now, so that a lost engine can end them."""

    def __init__(self, settings: ServerSettings, markup: Markup = MARKUP):
        self.settings = settings
        self.markup = markup
        self.state: State = "loading"
        self.created = int(time.time())
        self.model: LoadedModel | None = None
        self.metrics = Metrics()
        self.ignored = IgnoredOnce()
        self.streams: set[EmissionStream] = set()
        self._defaults: dict[str, float] = {}

    def become_ready(self, model: LoadedModel) -> None:
        """Takes the model and starts to answer.

        Raises: AssetError where tokenizer and end tokens don't fit the model, ValueError for a sampling default.
        """
        generation = model.assets.generation if self.settings.generation_config == "auto" else {}
        self._defaults = sampling_defaults(generation, self.settings.generation_override)
        if model.assets.tokenizer.size > model.vocabulary:
            raise AssetError(f"tokenizer: {model.assets.tokenizer.size} ids, the model has {model.vocabulary}")
        if outside := [token for token in model.assets.eos_token_ids if not 0 <= token < model.vocabulary]:
            raise AssetError(f"end tokens: {outside} are not among the model's {model.vocabulary} ids")
        self.model = model
        self.metrics.watch(self.served_names[0], model.engine, model.cache, model.counters)
        if self.state == "loading":
            self.state = "ready"

    @property
    def served_names(self) -> tuple[str, ...]:
        """Names a request may give as `model`."""
        return self.settings.served_names or ((self.model.name,) if self.model else ())

    @property
    def defaults(self) -> Mapping[str, float]:
        """Sampling values for requests that give none."""
        return self._defaults

    def ready(self) -> LoadedModel:
        """The model. Raises: ApiError 503 while there is none to be had."""
        if self.state == "ready" and self.model is not None and self.model.engine.failed is None:
            return self.model
        raise unavailable(WHY_NOT["failed" if self.state == "ready" else self.state])

    def limits(self) -> Limits:
        """What bounds a request now."""
        model = self.ready()
        return Limits(
            model.context, model.vocabulary, self.settings.max_n, self.settings.default_max_tokens, model.drafts
        )

    def check_model(self, fields: Fields) -> str:
        """The name a reply carries. Raises: ApiError 404 for a model that isn't served."""
        name = fields.get("model", self.served_names[0])
        if name not in self.served_names:
            raise model_not_found(name)
        return name

    def lose(self, message: str) -> None:
        """The engine is gone: ends every open stream with an error and takes no more."""
        self.state = "failed"
        for stream in list(self.streams):
            stream.fail(message)
