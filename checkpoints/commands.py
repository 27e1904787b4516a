"""Host side: what the commands of this project share: how arguments are spelled, and how a run ends.

A command defines its flags on a `FlagValues` of its own, so that several can be imported side by side.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from absl import flags

from checkpoints.errors import CheckpointError

EXIT_OK, EXIT_USAGE, EXIT_CHECKPOINT = 0, 2, 3


class UsageError(Exception):
    """The arguments make no sense; the message says what was wanted."""


Main = Callable[[list[str]], int | None]


def normalise(argv: Sequence[str], values: flags.FlagValues = flags.FLAGS) -> list[str]:
    """Returns arguments in the one spelling that absl reads.

    Dashes inside a flag's name become underscores, `--no-x` and `--no_x` become `--nox` where x is a boolean flag,
    `--no-x=true` is left alone; flag files are read, so that they may use every spelling as well. Values, positional
    arguments and what follows `--` stay as they are.

    Args:
      argv: without the program's name. values: the flags that are defined.
    Raises: absl.flags.Error where a flag file cannot be read.
    """
    expanded = values.read_flags_from_files([_spell_flagfile(arg) for arg in argv], force_gnu=True)
    ended = expanded.index("--") if "--" in expanded else len(expanded)
    return [_spell(arg, values) for arg in expanded[:ended]] + expanded[ended:]


def execute(main: Main, values: flags.FlagValues, argv: Sequence[str], doc: str = "") -> int:
    """Runs a command and returns its exit code: 0, what `main` returns, 2 for usage, 3 for a checkpoint.

    Args:
      main: takes the positional arguments. values: the command's flags. argv: as in sys.argv, the program's name first.
      doc: what `--help` prints above the flags.
    """
    if any(arg in ("--help", "-h", "--helpfull", "--helpshort") for arg in argv[1:]):
        print(f"{doc.strip()}\n\nflags:\n{values.get_help(include_special_flags=False)}\n  --flagfile: read flags from a file")
        return EXIT_OK
    try:
        positional = values([argv[0], *normalise(argv[1:], values)])[1:]
        return main(positional) or EXIT_OK
    except (flags.Error, UsageError) as error:
        print(f"{_program(argv)}: {error}\nTry --help.", file=sys.stderr)
        return EXIT_USAGE
    except CheckpointError as error:
        print(f"{_program(argv)}: {error}", file=sys.stderr)
        return EXIT_CHECKPOINT
    except BrokenPipeError:
        # The reader left, as `head` does; the interpreter would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


def run(main: Main, values: flags.FlagValues = flags.FLAGS) -> NoReturn:
    """Runs a command as a program: `if __name__ == "__main__": run(main, FLAGS)`."""
    doc = sys.modules["__main__"].__doc__ or ""
    sys.exit(execute(main, values, sys.argv, doc))


def one_path(positional: Sequence[str], what: str) -> str:
    """Returns the only positional argument of a command; raises UsageError where there are none or several."""
    if len(positional) != 1:
        raise UsageError(f"one {what} was wanted, found {len(positional)}: {' '.join(positional)}".rstrip(" :"))
    return positional[0]


def _program(argv: Sequence[str]) -> str:
    """`checkpoints.inspect` for a module run with -m, else the file's name."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec and spec.name != "__main__" else os.path.basename(argv[0])


def _spell_flagfile(arg: str) -> str:
    return arg.replace("flag-file", "flagfile", 1) if arg.startswith(("--flag-file", "-flag-file")) else arg


def _spell(arg: str, values: flags.FlagValues) -> str:
    if not arg.startswith("--") or arg == "--":
        return arg
    name, equals, value = arg[2:].partition("=")
    name = name.replace("-", "_")
    known = values[name[3:]] if name.startswith("no_") and name[3:] in values else None
    if name not in values and known is not None and known.boolean and not equals:
        name = f"no{name[3:]}"
    return f"--{name}{equals}{value}"
