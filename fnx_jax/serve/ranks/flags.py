"""Host side: the flags that make a process one of several, and what they come to."""

from pathlib import Path

from absl import flags

from checkpoints.commands import UsageError
from fnx_jax.ranks.group import Group, parse_address


def define_rank_flags(values: flags.FlagValues) -> None:
    """Adds the flags to a command's."""
    flags.DEFINE_string("coordinator", None, "HOST:PORT where rank 0 waits for the other ranks.", flag_values=values)
    flags.DEFINE_integer("ranks", 1, "Processes that serve as one, a power of two.", 1, flag_values=values)
    flags.DEFINE_integer("rank", 0, "Which of them this is; 0 serves HTTP.", 0, flag_values=values)
    flags.DEFINE_integer("local_device", 0, "Which of this host's devices a rank uses.", 0, flag_values=values)
    flags.DEFINE_string("rank_token_file", None, "File with a secret that all ranks share.", flag_values=values)
    flags.DEFINE_float(
        "join_seconds", 300.0, "How long ranks wait for each other at the start.", 1.0, 1e6, flag_values=values
    )
    flags.DEFINE_float(
        "rank_silence_seconds", 3.4, "Silence after which a rank is lost.", 1.0, 3600.0, flag_values=values
    )


def read_group(values: flags.FlagValues) -> Group | None:
    """This process's place among several, None where it serves alone. Raises UsageError."""
    if values.coordinator is None:
        if values.ranks != 1 or values.rank:
            raise UsageError("--ranks and --rank need --coordinator=HOST:PORT")
        return None
    if values.tp not in (1, values.ranks):
        raise UsageError(f"--tp={values.tp}: every rank has one device, and there are --ranks={values.ranks}")
    token = _token(values.rank_token_file)
    try:
        host, port = parse_address(values.coordinator)
    except ValueError as error:
        raise UsageError(f"--coordinator: {error}") from None
    try:
        waits = dict(join_s=values.join_seconds, silence_s=values.rank_silence_seconds)
        return Group(host, port, values.ranks, values.rank, token, **waits)
    except ValueError as error:
        raise UsageError(f"--{error}") from None


def _token(file: str | None) -> bytes:
    try:
        token = Path(file).read_bytes().strip() if file is not None else b""
    except OSError as error:
        raise UsageError(f"--rank_token_file: {file}: {error}") from error
    if file is not None and not token:
        raise UsageError(f"--rank_token_file: {file} holds no token")
    return token
