"""Host side: the choices of one server run, fixed before it starts. Read next: service.py, runner.py."""

from dataclasses import dataclass
from typing import Literal

ReasoningField = Literal["both", "reasoning_content", "reasoning"]
LateSystem = Literal["refuse", "merge", "user"]


@dataclass(frozen=True)
class ServerSettings:
    """What the command line decides about the HTTP side.

    host, port: where to listen; port 0 takes a free one. served_names: names a request may give as `model`, the
    first is the one replies carry; empty takes the checkpoint's own name.
    api_keys: accepted bearer keys; none means open. protect_metrics: `/metrics` asks for a key too.
    allowed_origins: browser origins that may call; none turns CORS off.
    max_body_bytes: largest request body. max_n: largest `n`.
    max_prompts: most prompts in one completions request.
    default_max_tokens: reply limit where the request gives none; None leaves all the room of the context.
    drain_s: how long running replies may finish after the first stop signal.
    keep_alive_s: silence after which a stream carries a comment. stream_bound: emissions that may wait for a
    slow reader, per reply, before its request is aborted.
    late_system: what to do with a system message after the first turn.
    reasoning_field: names under which reasoning is sent.
    generation_config: "auto" takes sampling defaults from the checkpoint, "neutral" does not.
    generation_override: (name, value) pairs that beat the checkpoint's defaults.
    log_json: log lines as JSON. quiet: no progress and no access lines.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_names: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    protect_metrics: bool = False
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = 32 << 20
    max_n: int = 16
    max_prompts: int = 256
    default_max_tokens: int | None = None
    drain_s: float = 30.0
    keep_alive_s: float = 10.0
    stream_bound: int = 1024
    late_system: LateSystem = "refuse"
    reasoning_field: ReasoningField = "both"
    generation_config: Literal["auto", "neutral"] = "auto"
    generation_override: tuple[tuple[str, float], ...] = ()
    log_json: bool = False
    quiet: bool = False
