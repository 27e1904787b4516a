"""Host side: the flags of the prompt cache, and what they come to. Read next: state_files.py."""

import math
from pathlib import Path

from absl import flags

from checkpoints.commands import UsageError
from fnx_jax.serve.state_files import prepare_folder


def define_cache_flags(values: flags.FlagValues) -> None:
    """Adds the flags to a command's."""
    flags.DEFINE_float(
        "prompt_cache_gib",
        None,
        "GiB on all devices for kept states of prompts; 0 keeps none. By default what the lanes take, 2 at most.",
        0.0,
        flag_values=values,
    )
    flags.DEFINE_float(
        "prompt_cache_host_gib",
        0.0,
        "GiB of the host's memory for kept states that had to leave the devices.",
        0.0,
        flag_values=values,
    )
    flags.DEFINE_string(
        "prompt_cache_dir",
        None,
        "Folder for kept states that leave the host's memory, and for all at an orderly end; "
        "with --prompt_cache_disk_gib.",
        flag_values=values,
    )
    flags.DEFINE_float("prompt_cache_disk_gib", 0.0, "GiB of files there; 0 keeps none.", 0.0, flag_values=values)
    flags.DEFINE_integer(
        "prompt_cache_min_tokens", 256, "Least tokens between two kept states of a prompt.", 1, flag_values=values
    )


def device_cache_bytes(values: flags.FlagValues) -> int | None:
    """Bytes on all devices, None where nobody says. Raises UsageError for budgets that are none, or in vain."""
    for flag in ("prompt_cache_gib", "prompt_cache_host_gib", "prompt_cache_disk_gib"):
        if not math.isfinite(values[flag].value or 0.0):
            raise UsageError(f"--{flag}={values[flag].value}: a finite number was wanted")
    if values.prompt_cache_gib == 0 and values.prompt_cache_host_gib:
        raise UsageError("--prompt_cache_host_gib: --prompt_cache_gib=0 keeps no states that could go to the host")
    return None if values.prompt_cache_gib is None else int(values.prompt_cache_gib * 2**30)


def refuse_on_ranks(values: flags.FlagValues) -> None:
    """Raises UsageError for what several processes cannot do."""
    for flag in ("prompt_cache_host_gib", "prompt_cache_disk_gib"):
        if values[flag].value:
            raise UsageError(f"--{flag}: kept states of several processes stay on the devices")


def state_folder(values: flags.FlagValues) -> Path | None:
    """The folder for kept states, made and tried out; None where none is wanted. Raises UsageError."""
    wanted, folder = values.prompt_cache_disk_gib, values.prompt_cache_dir
    if not wanted and folder is None:
        return None
    if not wanted or not folder:
        raise UsageError("--prompt_cache_disk_gib and --prompt_cache_dir: each needs the other")
    if values.prompt_cache_gib == 0:
        raise UsageError("--prompt_cache_disk_gib: --prompt_cache_gib=0 keeps no states that could go to files")
    if Path(folder).resolve().is_relative_to(Path(values.model).resolve()):
        raise UsageError(
            f"--prompt_cache_dir={folder}: lies in the checkpoint's folder, whose files are part of its key"
        )
    try:
        return prepare_folder(Path(folder))
    except OSError as error:
        raise UsageError(f"--prompt_cache_dir={folder}: {error}") from error
