"""Host side: what the commands of this project share: how arguments are spelled, and how a run ends.

A command defines its flags on a `FlagValues` of its own, so that several can be imported side by side.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from absl import flags

from checkpoints.errors import CheckpointError

EXIT_OK, EXIT_USAGE, EXIT_CHECKPOINT = 0, 2, 3
DEMO = Path(__file__).parent / "demo"
"""The embedded checkpoint, which commands take where none is named."""


class UsageError(Exception):
    """The arguments make no sense; the message says what was wanted."""


Main = Callable[[list[str]], int | None]


def normalise(argv: Sequence[str], values: flags.FlagValues = flags.FLAGS) -> list[str]:
    """Returns arguments in the one spelling that absl reads.

    Dashes inside a flag's name become underscores; `--no-x` and `--no_x` become `--nox` where x is a boolean flag. Flag
    files are put in place first, so that they may use every spelling as well. Values, positional arguments and what
    follows `--` stay as they are.

    Args:
      argv: without the program's name. values: the flags that are defined.
    Raises: absl.flags.Error where a flag file cannot be read.
    """
    expanded = values.read_flags_from_files(list(argv), force_gnu=True)
    spelled: list[str] = []
    is_value = False
    for i, arg in enumerate(expanded):
        if arg == "--" and not is_value:
            return spelled + expanded[i:]
        spelled.append(arg if is_value else _spell(arg, values))
        is_value = not is_value and _takes_next(spelled[-1], values)
    return spelled


def execute(main: Main, values: flags.FlagValues, argv: Sequence[str], doc: str = "") -> int:
    """Runs a command and returns its exit code: 0, what `main` returns, 2 for usage, 3 for a checkpoint.

    Args:
      main: takes the positional arguments. values: the command's flags. argv: the program's name, then its arguments.
      doc: what `--help` prints above the flags.
    """
    if any(arg in ("--help", "-h", "--helpfull", "--helpshort") for arg in argv[1:]):
        print(f"{doc.strip()}\n{values.get_help(include_special_flags=False)}\n  --flagfile: read flags from a file")
        return EXIT_OK
    for name in values:
        values[name].unparse()  # of an earlier run in the same process
    try:
        return main(_positional(values, argv)) or EXIT_OK
    except (flags.Error, UsageError) as error:
        print(f"{argv[0]}: {error}\nTry --help.", file=sys.stderr)
        return EXIT_USAGE
    except CheckpointError as error:
        print(f"{argv[0]}: {error}", file=sys.stderr)
        return EXIT_CHECKPOINT
    except BrokenPipeError:
        # The reader left, as `head` does; the interpreter would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


def _positional(values: flags.FlagValues, argv: Sequence[str]) -> list[str]:
    try:
        return values([argv[0], *normalise(argv[1:], values)])[1:]
    except ValueError as error:  # a value for --no-x, or a flag file that is no text
        raise UsageError(str(error)) from None


def run(main: Main, values: flags.FlagValues = flags.FLAGS) -> NoReturn:
    """Runs a command as a program: `if __name__ == "__main__": run(main, FLAGS)`."""
    doc = sys.modules["__main__"].__doc__ or ""
    sys.exit(execute(main, values, [program_name(), *sys.argv[1:]], doc))


def program_name() -> str:
    """What this process runs: the module that was typed behind -m, else the file."""
    module = sys.modules["__main__"]
    # Run with -m, the first argument is the module's path.
    return module.__spec__.name.removesuffix(".__main__") if module.__spec__ else os.path.basename(sys.argv[0])


def one_path(positional: Sequence[str], what: str) -> str:
    """Returns the only positional argument of a command; raises UsageError where there are none or several."""
    if len(positional) != 1:
        raise UsageError(f"one {what} was wanted, found {len(positional)}: {' '.join(positional)}".rstrip(" :"))
    return positional[0]


def _takes_next(arg: str, values: flags.FlagValues) -> bool:
    """A flag that is not boolean and has no `=` takes the next argument, whatever that looks like."""
    name = arg[2:]
    return arg.startswith("--") and name in values and not values[name].boolean


def _spell(arg: str, values: flags.FlagValues) -> str:
    if not arg.startswith("--"):
        return arg
    name, equals, value = arg[2:].partition("=")
    name = name.replace("-", "_")
    negated = name.removeprefix("no_")
    if negated != name and name not in values and negated in values and values[negated].boolean:
        name = f"no{negated}"
    return f"--{name}{equals}{value}"
