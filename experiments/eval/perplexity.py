"""How well does a checkpoint predict a text?

    python -m experiments.eval.perplexity --model=PATH --text=FILE [--rows=64] [--columns=512] [--out=RESULTS.jsonl]

Cuts texts into rows of equal length, scores them some lanes at a time with `model.score`, the bits of serving, and
prints mean negative log-probability (nats a token) with its standard error over rows, and perplexity. The first token
of a row is given, not scored. To ask another question of a model, copy this file: `evaluate` is all that is special.
Host side, but for `sums`. Read next: fnx_jax/model.py (score), fidelity.py.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jaxtyping import Array, Float, Float32, Int

from checkpoints.commands import DEMO, UsageError, run
from experiments.eval.results import append_result, load_model
from fnx_jax.token_rows import read_token_rows

FLAGS = flags.FlagValues()
flags.DEFINE_string("model", str(DEMO), "Folder of the checkpoint.", flag_values=FLAGS)
flags.DEFINE_multi_string("text", [], "UTF-8 texts, or .npy files of token ids; may be repeated.", flag_values=FLAGS)
flags.DEFINE_integer("rows", 64, "Sequences at most, 0 for all.", 0, flag_values=FLAGS)
flags.DEFINE_integer("columns", 512, "Tokens of a sequence.", 2, flag_values=FLAGS)
flags.DEFINE_integer("lanes", 4, "Sequences that run at once.", 1, flag_values=FLAGS)
flags.DEFINE_integer("tp", 1, "Devices that share the work.", 1, flag_values=FLAGS)
flags.DEFINE_enum("dtype", None, ["float32"], "float32 keeps operands and caches float32.", flag_values=FLAGS)
flags.DEFINE_string("out", None, "File to which the result is added, a JSON line.", flag_values=FLAGS)


class Scores(Protocol):
    """What of a `fnx_jax.Model` is used here."""

    def score(self, ids_BT: np.ndarray, lengths_B: np.ndarray | None = None) -> np.ndarray: ...


@dataclass(frozen=True)
class Result:
    """rows, tokens: scored. nats: a token, mean; error: its standard error over rows. perplexity: exp(nats)."""

    rows: int
    tokens: int
    nats: float
    error: float
    perplexity: float


@jax.jit
def sums(logprob_BT: Float32[Array, "B T"], length_B: Int[Array, " B"]) -> Float[Array, " B"]:
    """Negative log-probability of each row's scored tokens, nats; the first token of a row is not scored."""
    position = jnp.arange(logprob_BT.shape[1], dtype=length_B.dtype)
    scored = (position[None, :] > 0) & (position[None, :] < length_B[:, None])
    return -jnp.sum(jnp.where(scored, logprob_BT, 0), axis=1)


def evaluate(model: Scores, ids_BT: Int[np.ndarray, "B T"], lengths_B: Int[np.ndarray, " B"] | None = None) -> Result:
    """Scores rows of token ids.

    Args: lengths_B: tokens of each row, all of T by default; at least 2.
    Raises: ValueError where a row is too short to be scored, or as `model.score`.
    """
    lengths = np.full(len(ids_BT), ids_BT.shape[1]) if lengths_B is None else np.asarray(lengths_B)
    if not len(lengths) or lengths.min() < 2:
        raise ValueError("perplexity: rows of at least 2 tokens were wanted")
    nats_B = np.asarray(sums(model.score(ids_BT, lengths), lengths.astype(np.int32)), np.float64)
    counts_B = lengths - 1
    mean = float(nats_B.sum() / counts_B.sum())
    spread = np.sum((nats_B - mean * counts_B) ** 2) / max(len(lengths) - 1, 1)
    error = math.sqrt(spread * len(lengths)) / float(counts_B.sum()) if len(lengths) > 1 else math.nan
    return Result(len(lengths), int(counts_B.sum()), mean, error, math.exp(mean))


def main(positional: list[str]) -> None:
    """Evaluates one checkpoint and prints the result."""
    if positional or not FLAGS.text:
        raise UsageError("--text was wanted, and nothing but flags")
    model = load_model(FLAGS.model, FLAGS.tp, FLAGS.dtype, FLAGS.lanes, FLAGS.columns)
    try:
        ids_BT = read_token_rows(FLAGS.text, FLAGS.model, FLAGS.rows, FLAGS.columns, model.config.vocabulary)
    except ValueError as error:
        raise UsageError(str(error)) from error
    result = evaluate(model, ids_BT)
    print(json.dumps(asdict(result), indent=1))
    if FLAGS.out:
        asked = {"text": FLAGS.text, "columns": FLAGS.columns, "dtype": FLAGS.dtype}
        append_result(Path(FLAGS.out), "perplexity", asked, model, asdict(result))


if __name__ == "__main__":
    run(main, FLAGS)
