"""Does a server with everything on still say what one without says? python -m experiments.soak

Two servers are started: one that drafts, keeps the states of prompts and has several lanes, and one that does nothing
of this. `repeats`: a prompt is resumed and drafted again and again, and has one hash for each way to draw.
`conversations`: side by side, every turn held against the other server, which keeps nothing of those before, and some
against one that was started for this turn.
`first_token`: of a prompt that is sent again, in rounds and milliseconds, by length.

Exit codes: 0 all as promised; 1 not, or something went unchecked; 2 usage; 4 a server did not start or answer.
Host side. Read next: servers.py.
"""

import sys

from absl import flags

from checkpoints.commands import DEMO, UsageError, run
from experiments.receipts import Origin, make_receipt, note_origin, write_receipt
from experiments.server_process import ended_by_signals
from experiments.soak.conversations import conversations
from experiments.soak.finding import Finding, show
from experiments.soak.first_token import first_token
from experiments.soak.repeats import repeats
from experiments.soak.servers import Servers, SoakError, both

PARTS = ("repeats", "conversations", "first_token")
RED, FAILED = 1, 4

FLAGS = flags.FlagValues()
flags.DEFINE_string("model", str(DEMO), "Folder of the checkpoint.", flag_values=FLAGS)
flags.DEFINE_list("parts", list(PARTS), "Of these.", flag_values=FLAGS)
flags.DEFINE_integer("repeats", 200, "Times that one prompt is sent.", 1, flag_values=FLAGS)
flags.DEFINE_integer("conversations", 4, "Conversations side by side.", 1, flag_values=FLAGS)
flags.DEFINE_integer("turns", 40, "Turns of each.", 1, flag_values=FLAGS)
flags.DEFINE_integer("fresh", 4, "Turns of each that are asked of a new process too.", 0, flag_values=FLAGS)
flags.DEFINE_list(
    "lengths", ["1000", "4000", "8000"], "Prompts of so many tokens, for first tokens.", flag_values=FLAGS
)
flags.DEFINE_integer("max_tokens", 24, "Tokens of a reply.", 2, flag_values=FLAGS)
flags.DEFINE_integer("lanes", 4, "Lanes of the server with everything on.", 1, flag_values=FLAGS)
flags.DEFINE_integer("context", 8192, "Positions of a prompt and its reply together.", 2, flag_values=FLAGS)
flags.DEFINE_integer("apart", 16, "Least tokens between two kept states.", 1, flag_values=FLAGS)
flags.DEFINE_multi_string("serve", [], "One more flag for both servers; may be repeated.", flag_values=FLAGS)
flags.DEFINE_float("start_seconds", 900.0, "How long a start may take.", 1.0, flag_values=FLAGS)
flags.DEFINE_bool("receipt", False, "Write a receipt into experiments/results.", flag_values=FLAGS)


def main(positional: list[str]) -> int:
    """Runs the parts that were asked for; prints what each found."""
    if positional:
        raise UsageError(f"unexpected {' '.join(positional)}; nothing but flags was wanted")
    lengths = read_lengths(FLAGS.lengths, FLAGS.context)
    if FLAGS.fresh > FLAGS.turns:
        raise UsageError(f"--fresh={FLAGS.fresh}: a conversation has --turns={FLAGS.turns}")
    if not FLAGS.parts:
        raise UsageError(f"--parts: at least one of {', '.join(PARTS)} was wanted")
    for part in FLAGS.parts:
        if part not in PARTS:
            raise UsageError(f"--parts: {part}, of {', '.join(PARTS)} was wanted")
    origin = note_origin() if FLAGS.receipt else None
    shared = [f"--model={FLAGS.model}", f"--context={FLAGS.context}", *FLAGS.serve]
    served = [f"--lanes={FLAGS.lanes}", f"--prompt_cache_min_tokens={FLAGS.apart}"]
    try:
        with ended_by_signals(), both(shared, served, FLAGS.start_seconds) as servers:
            findings = [_tell(_run(part, servers, lengths)) for part in FLAGS.parts]
            if origin is not None:
                print(f"receipt: {_write(origin, servers, findings)}")
    except SoakError as error:
        print(error, file=sys.stderr)
        return FAILED
    print(f"{'GREEN' if all(finding.word == 'GREEN' for finding in findings) else 'NOT GREEN'}: {len(findings)} parts")
    return 0 if all(finding.word == "GREEN" for finding in findings) else RED


def read_lengths(words: list[str], context: int) -> list[int]:
    """Lengths of prompts, each with room for a token. Raises UsageError."""
    lengths = []
    for word in words:
        if not word.isdecimal() or not 0 < int(word) < context:
            raise UsageError(f"--lengths: {word!r}, a number from 1 to {context - 1} was wanted (see --context)")
        lengths.append(int(word))
    return lengths


def _run(part: str, servers: Servers, lengths: list[int]) -> Finding:
    if part == "repeats":
        return repeats(servers, FLAGS.repeats, FLAGS.lanes, FLAGS.max_tokens)
    if part == "conversations":
        return conversations(servers, FLAGS.conversations, FLAGS.turns, FLAGS.max_tokens, FLAGS.fresh)
    return first_token(servers, lengths, repeats=9)


def _tell(finding: Finding) -> Finding:
    print(show(finding), flush=True)
    return finding


def _write(origin: Origin, servers: Servers, findings: list[Finding]) -> str:
    info = servers.served.info()
    receipt = make_receipt(
        origin,
        "soak",
        ", ".join(info.get("devices") or ["unknown"]),
        {
            finding.part: {"verdict": finding.word, "compared": finding.compared, **finding.figures}
            for finding in findings
        },
        fingerprint=info.get("fingerprint"),
        hashes={name: digest for finding in findings for name, digest in finding.hashes.items()},
    )
    return str(write_receipt(receipt))


if __name__ == "__main__":
    run(main, FLAGS)
