"""Serves a checkpoint over HTTP: python -m fnx_jax.serve [--model=PATH]

Without --model the embedded demo is served. Flags may come from a file: --flagfile=FILE. Several processes serve as one
with --coordinator=HOST:PORT --ranks=N --rank=R on each.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from absl import flags

from checkpoints.commands import DEMO, UsageError, run
from checkpoints.errors import CheckpointError
from fnx_jax.ranks.leader import Leader
from fnx_jax.ranks.steps import LeaderSteps
from fnx_jax.serve.assets import AssetError, TextAssets, read_text_assets
from fnx_jax.serve.cache_flags import define_cache_flags, device_cache_bytes, refuse_on_ranks, state_folder
from fnx_jax.serve.client import EngineClient
from fnx_jax.serve.load import ModelSettings, load_warm, use_compilation_cache
from fnx_jax.serve.logs import configure_logging
from fnx_jax.serve.ranks.flags import define_rank_flags, read_group
from fnx_jax.serve.ranks.following import Following
from fnx_jax.serve.ranks.leading import Leading, LedEngine, run_leading
from fnx_jax.serve.runner import CHECKPOINT, DOES_NOT_FIT, USAGE, StartUp, run_server
from fnx_jax.serve.sampling import sampling_defaults
from fnx_jax.serve.service import LoadedModel
from fnx_jax.serve.settings import ServerSettings
from fnx_jax.serve.state_files import disk_choice

FLAGS = flags.FlagValues()
flags.DEFINE_string("model", str(DEMO), "Folder of the checkpoint.", flag_values=FLAGS)
flags.DEFINE_string("host", "127.0.0.1", "Address to listen on.", flag_values=FLAGS)
flags.DEFINE_integer("port", 8000, "Port to listen on; 0 takes a free one.", 0, 65535, flag_values=FLAGS)
flags.DEFINE_multi_string("served_model_name", [], "Name of the model in requests; may be repeated.", flag_values=FLAGS)
flags.DEFINE_multi_string("api_key", [], "Key that requests must carry; may be repeated.", flag_values=FLAGS)
flags.DEFINE_string("api_key_file", None, "File with one key a line.", flag_values=FLAGS)
flags.DEFINE_bool("protect_metrics", False, "Ask for a key at /metrics too.", flag_values=FLAGS)
flags.DEFINE_multi_string("allowed_origins", [], "Browser origins that may call; may be repeated.", flag_values=FLAGS)
flags.DEFINE_integer("context", None, "Positions of a prompt and its reply together.", 2, flag_values=FLAGS)
flags.DEFINE_integer("lanes", 4, "Requests that run at once.", 1, 64, flag_values=FLAGS)
flags.DEFINE_integer("tp", 1, "Devices that share the work, a power of two.", 1, flag_values=FLAGS)
define_rank_flags(FLAGS)
flags.DEFINE_string(
    "compilation_cache_dir",
    str(Path.home() / ".cache" / "fnx_jax"),
    "Where compiled programs are kept for the next start; empty keeps none.",
    flag_values=FLAGS,
)
flags.DEFINE_enum("dtype", None, ["float32"], "float32 keeps operands and caches float32.", flag_values=FLAGS)
flags.DEFINE_integer("max_queue", 256, "Requests that may wait.", 0, flag_values=FLAGS)
flags.DEFINE_integer("prefill_chunk", 512, "Prompt rows of a round at most.", 1, flag_values=FLAGS)
flags.DEFINE_integer("max_rows", 512, "Rows of a round at most, a multiple of 16.", 16, flag_values=FLAGS)
define_cache_flags(FLAGS)
flags.DEFINE_float("max_prefill_stall_ms", 250.0, "Longest round beside running replies.", 1.0, flag_values=FLAGS)
flags.DEFINE_bool("drafts", True, "Load the draft head, where there is one, and draft.", flag_values=FLAGS)
flags.DEFINE_integer("mtp_drafts", 15, "Drafts of a chain at most.", 1, 15, flag_values=FLAGS)
flags.DEFINE_string(
    "draft_vocabulary", "622", "Blocks of 128 ids that drafts are drawn from, or: all.", flag_values=FLAGS
)
flags.DEFINE_integer("max_body_mb", 32, "Largest request body.", 1, flag_values=FLAGS)
flags.DEFINE_integer("max_n", 16, "Largest n of a request.", 1, flag_values=FLAGS)
flags.DEFINE_integer("default_max_tokens", None, "Reply limit where a request has none.", 1, flag_values=FLAGS)
flags.DEFINE_float(
    "drain_seconds", 30.0, "How long replies may finish after a stop signal.", 0.0, 1e6, flag_values=FLAGS
)
flags.DEFINE_enum(
    "late_system",
    "refuse",
    ["refuse", "merge", "user"],
    "What a system message after the first turn becomes.",
    flag_values=FLAGS,
)
flags.DEFINE_enum(
    "reasoning_field",
    "both",
    ["both", "reasoning_content", "reasoning"],
    "Name of the field for reasoning.",
    flag_values=FLAGS,
)
flags.DEFINE_enum(
    "generation_config",
    "auto",
    ["auto", "neutral"],
    "Whether sampling defaults come from the checkpoint.",
    flag_values=FLAGS,
)
flags.DEFINE_bool("self_test", True, "Compare a prompt whole and in pieces before serving.", flag_values=FLAGS)
flags.DEFINE_bool("log_json", False, "Log lines as JSON.", flag_values=FLAGS)
flags.DEFINE_bool("quiet", False, "No progress and no access lines.", flag_values=FLAGS)


def settings() -> ServerSettings:
    """The HTTP side's choices from the flags."""
    return ServerSettings(
        host=FLAGS.host,
        port=FLAGS.port,
        served_names=tuple(FLAGS.served_model_name),
        api_keys=_keys(FLAGS.api_key, FLAGS.api_key_file),
        protect_metrics=FLAGS.protect_metrics,
        allowed_origins=tuple(FLAGS.allowed_origins),
        max_body_bytes=FLAGS.max_body_mb << 20,
        max_n=FLAGS.max_n,
        default_max_tokens=FLAGS.default_max_tokens,
        drain_s=FLAGS.drain_seconds,
        late_system=FLAGS.late_system,
        reasoning_field=FLAGS.reasoning_field,
        generation_config=FLAGS.generation_config,
        log_json=FLAGS.log_json,
        quiet=FLAGS.quiet,
    )


def _keys(given: Sequence[str], file: str | None) -> tuple[str, ...]:
    # Left in, an empty key would be one that anybody can guess.
    if not all(key.strip() for key in given):
        raise UsageError("--api_key: a key is empty")
    if file is None:
        return tuple(given)
    try:
        keys = [line.strip() for line in Path(file).read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--api_key_file: {file}: {error}") from error
    if not any(keys):
        raise UsageError(f"--api_key_file: {file} holds no key")
    return (*given, *(key for key in keys if key))


def _assets(folder: Path) -> TextAssets:
    assets = read_text_assets(folder)
    try:
        sampling_defaults(assets.generation if FLAGS.generation_config == "auto" else {}, ())
    except ValueError as error:
        raise AssetError(f"{folder / 'generation_config.json'}: {error}") from None
    return assets


def model_settings() -> ModelSettings:
    """The model's choices from the flags. Raises UsageError."""
    if FLAGS.max_rows % 16:
        raise UsageError(f"--max_rows={FLAGS.max_rows}: a multiple of 16 was wanted")
    if FLAGS.tp & (FLAGS.tp - 1):
        raise UsageError(f"--tp={FLAGS.tp}: a power of two was wanted")
    blocks = FLAGS.draft_vocabulary
    if blocks != "all" and not (blocks.isdecimal() and int(blocks)):
        raise UsageError(f"--draft_vocabulary={blocks}: all, or at least 1 block was wanted")
    return ModelSettings(
        folder=Path(FLAGS.model),
        devices=FLAGS.tp,
        lanes=FLAGS.lanes,
        context=FLAGS.context,
        max_rows=FLAGS.max_rows,
        dtype=FLAGS.dtype,
        drafts=FLAGS.drafts,
        mtp_drafts=FLAGS.mtp_drafts,
        draft_vocabulary=None if blocks == "all" else int(blocks),
        prompt_cache_bytes=device_cache_bytes(FLAGS),
        self_test=FLAGS.self_test,
        compilation_cache_dir=FLAGS.compilation_cache_dir,
    )


def load_model(
    start: StartUp, chosen: ModelSettings, leading: Leading | None = None, states: Path | None = None
) -> LoadedModel:
    """Reads, places and warms up a model; with other ranks, once they are there. states: folder for kept states."""
    start.progress("importing jax")
    import jax

    from fnx_jax.compilations import CompilationCounter
    from fnx_jax.engine.drafts import policy_for
    from fnx_jax.engine.limits import EngineConfig
    from fnx_jax.engine.loop import Engine

    folder = chosen.folder
    use_compilation_cache(chosen)
    assets = _assets(folder)
    leader = leading.open() if leading is not None else None
    if leader is None and chosen.devices > 1:  # where the only device is a CPU, its cores stand for as many
        jax.config.update("jax_num_cpu_devices", chosen.devices)
    model = load_warm(chosen, start.progress)
    compilations = CompilationCounter()
    config = EngineConfig(
        max_queue=FLAGS.max_queue,
        prefill_chunk=FLAGS.prefill_chunk,
        max_prefill_stall_ms=FLAGS.max_prefill_stall_ms,
        prompt_cache_min_tokens=FLAGS.prompt_cache_min_tokens,
        prompt_cache_host_bytes=int(FLAGS.prompt_cache_host_gib * 2**30),
        prompt_cache_disk=disk_choice(states, int(FLAGS.prompt_cache_disk_gib * 2**30), folder, model),
    )
    steps = model.steps if leader is None else LeaderSteps(model.steps, leader)
    drafter = policy_for(steps)
    engine: EngineClient = Engine(steps, config, on_record=start.on_round, drafter=drafter).start()
    if leader is not None:
        leader.wait_ready()
        engine = LedEngine(engine, leader)
    return LoadedModel(
        name=folder.resolve().name,
        engine=engine,
        assets=assets,
        context=model.steps.context,
        vocabulary=model.steps.vocabulary,
        digest=model.checkpoint_digest,
        fingerprint={**vars(model.fingerprint), "digest": model.fingerprint.digest()},
        devices=model.devices,
        memory=model.memory(),
        cache={"block_size": str(model.steps.page), "num_gpu_blocks": str(model.steps.pages)},
        config={
            "lanes": model.steps.lanes,
            "prefill_chunk": config.prefill_chunk,
            "dtype": FLAGS.dtype or "served",
            "prompt_cache_states": model.steps.slots,
            "prompt_cache_min_tokens": config.prompt_cache_min_tokens,
            "prompt_cache_fingerprint": config.prompt_cache_disk and config.prompt_cache_disk.fingerprint,
            "mtp_drafts": model.steps.draft_depth,
        },
        drafts=model.steps.draft_depth > 0,
        counters=lambda: _counters(compilations.count, leader),
    )


def _counters(compilations: int, leader: Leader | None) -> dict[str, float]:
    if leader is None:
        return {"compilations": compilations}
    return {"compilations": compilations + leader.compilations, "rank_signs": leader.signs}


def main(positional: list[str]) -> int:
    """Runs the server to its end."""
    if positional:
        raise UsageError(f"unexpected {' '.join(positional)}; the checkpoint is given by --model")
    chosen = settings()
    if not Path(FLAGS.model).is_dir():
        raise CheckpointError(f"{FLAGS.model}: no such folder")
    configure_logging(chosen.log_json, chosen.quiet)
    exits = [(CheckpointError, CHECKPOINT), (MemoryError, DOES_NOT_FIT), (ValueError, USAGE)]
    model, group = model_settings(), read_group(FLAGS)
    if group is not None:
        refuse_on_ranks(FLAGS)
    states = state_folder(FLAGS)
    if group is None:
        return run_server(chosen, lambda start: load_model(start, model, states=states), exits)
    model = replace(model, devices=group.ranks)
    if group.rank:
        code = Following(group, model, FLAGS.local_device, exits, chosen.quiet).run()
    else:
        leading = Leading(group, model, FLAGS.local_device)
        code = run_leading(leading, chosen, lambda start: load_model(start, model, leading), exits)
    # JAX would wait for ranks that are gone already.
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    run(main, FLAGS)
