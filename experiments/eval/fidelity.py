"""How near is a checkpoint to the one it was made from, token by token?

    python -m experiments.eval.fidelity --model=BF16 --text=FILE --write_reference=LOGITS.safetensors
    python -m experiments.eval.fidelity --model=PACK --reference=LOGITS.safetensors

The reference is a file of safetensors: `ids` integers [B, T] and `logits` [B, T, V], of any implementation. Both are
teacher-forced. Prints top-1 agreement, KL(reference || model) in nats a token, and the disagreements with the margins
that either had: by how much it preferred its own token to the other's. No tie is waived. Host side, but for `compare`.
Read next: perplexity.py.
"""

import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from flax import struct
from jaxtyping import Array, Float32, Int

from checkpoints.commands import DEMO, UsageError, run
from checkpoints.store import Store, open_store
from checkpoints.write import Entry, array_entry, write_entries
from experiments.eval.results import append_result, load_model
from fnx_jax.token_rows import read_token_rows

FLAGS = flags.FlagValues()
flags.DEFINE_string("model", str(DEMO), "Folder of the checkpoint.", flag_values=FLAGS)
flags.DEFINE_string("reference", None, "File of logits to compare with.", flag_values=FLAGS)
flags.DEFINE_string("write_reference", None, "File of logits to write instead.", flag_values=FLAGS)
flags.DEFINE_multi_string("text", [], "With --write_reference: texts, or .npy files of ids.", flag_values=FLAGS)
flags.DEFINE_integer("rows", 16, "With --write_reference: sequences at most, 0 for all.", 0, flag_values=FLAGS)
flags.DEFINE_integer("columns", 256, "With --write_reference: tokens of a sequence.", 1, flag_values=FLAGS)
flags.DEFINE_integer("tp", 1, "Devices that share the work.", 1, flag_values=FLAGS)
flags.DEFINE_enum("dtype", None, ["float32"], "float32 keeps operands and caches float32.", flag_values=FLAGS)
flags.DEFINE_integer("show", 20, "Disagreements to list, those of the largest margin first.", 0, flag_values=FLAGS)
flags.DEFINE_string("out", None, "File to which the result is added, a JSON line.", flag_values=FLAGS)


class Logits(Protocol):
    """What of a `fnx_jax.Model` is used here."""

    def logits(self, token_ids: Any) -> np.ndarray: ...


@struct.dataclass
class Comparison:
    """Of each row of one sequence: both choices, KL divergence, and the margin of each for its own choice."""

    reference_T: jax.Array
    found_T: jax.Array
    kl_T: jax.Array
    reference_margin_T: jax.Array
    found_margin_T: jax.Array


@dataclass(frozen=True)
class Disagreement:
    """row, position: where. reference, found: the tokens preferred. The margins are logits, at least 0."""

    row: int
    position: int
    reference: int
    found: int
    reference_margin: float
    found_margin: float


@dataclass(frozen=True)
class Result:
    """tokens: compared. agreement: share of equal first choices. kl, kl_worst: nats a token. disagreements: all."""

    tokens: int
    agreement: float
    kl: float
    kl_worst: float
    disagreements: list[Disagreement]


@jax.jit
def compare(reference_TV: Float32[Array, "T V"], found_TV: Float32[Array, "T V"]) -> Comparison:
    """Compares the logits of two models after the same tokens; ties go to the lower id."""
    reference_T, found_T = jnp.argmax(reference_TV, axis=1), jnp.argmax(found_TV, axis=1)
    log_p, log_q = jax.nn.log_softmax(reference_TV, axis=1), jax.nn.log_softmax(found_TV, axis=1)
    return Comparison(
        reference_T=reference_T,
        found_T=found_T,
        kl_T=jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=1),
        reference_margin_T=_at(reference_TV, reference_T) - _at(reference_TV, found_T),
        found_margin_T=_at(found_TV, found_T) - _at(found_TV, reference_T),
    )


def evaluate(model: Logits, reference: Store) -> Result:
    """Compares a model with an open file of reference logits, a sequence at a time.

    Raises: ValueError where the file does not hold ids [B, T] and logits [B, T, V] with the model's V.
    """
    for name, axes in (("ids", 2), ("logits", 3)):
        if name not in reference or len(reference.info(name).shape) != axes:
            raise ValueError(f"{reference.path}: {name} of {axes} axes was wanted")
    ids_BT, shape = reference.read("ids"), reference.info("logits").shape
    if shape[:2] != ids_BT.shape or not ids_BT.size:
        raise ValueError(f"{reference.path}: ids {list(ids_BT.shape)} and logits {list(shape)} do not fit")
    kl, disagreements = [], []
    for row, ids_T in enumerate(ids_BT):
        wanted_TV = reference.read_slice("logits", row, row + 1)[0].astype(np.float32)
        found_TV = model.logits(ids_T)
        if found_TV.shape != wanted_TV.shape:
            raise ValueError(
                f"{reference.path}: {wanted_TV.shape[1]} logits a token, the model has {found_TV.shape[1]}"
            )
        found = jax.device_get(compare(wanted_TV, found_TV))
        kl.append(found.kl_T)
        disagreements += _disagreements(row, found)
    kl_N = np.concatenate(kl).astype(np.float64)
    agreement = 1 - len(disagreements) / len(kl_N)
    return Result(len(kl_N), agreement, float(kl_N.mean()), float(kl_N.max()), disagreements)


def write_reference(model: Logits, ids_BT: Int[np.ndarray, "B T"], vocabulary: int, file: Path) -> None:
    """Writes a model's logits after every token of every row as a reference file, a row in memory at a time."""

    def rows():
        for ids_T in ids_BT:
            yield model.logits(ids_T).astype(np.float32)

    logits = Entry("logits", "F32", (*ids_BT.shape, vocabulary), rows)
    write_entries(file, [array_entry("ids", ids_BT.astype(np.int32)), logits])


def _at(logits_TV: jax.Array, token_T: Int[Array, " T"]) -> jax.Array:
    return jnp.take_along_axis(logits_TV, token_T[:, None], axis=1)[:, 0]


def _disagreements(row: int, found: Comparison) -> list[Disagreement]:
    places = np.flatnonzero(found.reference_T != found.found_T)
    at = partial(Disagreement, row)
    return [
        at(
            int(t),
            int(found.reference_T[t]),
            int(found.found_T[t]),
            float(found.reference_margin_T[t]),
            float(found.found_margin_T[t]),
        )
        for t in places
    ]


def main(positional: list[str]) -> None:
    """Writes a reference, or compares with one."""
    if positional or bool(FLAGS.reference) == bool(FLAGS.write_reference):
        raise UsageError("--reference or --write_reference was wanted, and nothing but flags")
    if FLAGS.write_reference:
        _write()
        return
    with open_store(FLAGS.reference) as reference:
        context = reference.info("ids").shape[-1]
        model = load_model(FLAGS.model, FLAGS.tp, FLAGS.dtype, 1, context)
        try:
            result = evaluate(model, reference)
        except ValueError as error:
            raise UsageError(str(error)) from error
    listed = sorted(result.disagreements, key=lambda d: -d.reference_margin)[: FLAGS.show]
    found = asdict(result) | {"disagreements": [asdict(d) for d in listed], "disagreed": len(result.disagreements)}
    print(json.dumps(found, indent=1))
    if FLAGS.out:
        append_result(Path(FLAGS.out), "fidelity", {"reference": FLAGS.reference}, model, found)


def _write() -> None:
    if not FLAGS.text:
        raise UsageError("--write_reference needs a --text")
    model = load_model(FLAGS.model, FLAGS.tp, FLAGS.dtype, 1, FLAGS.columns)
    vocabulary = model.config.vocabulary
    try:
        ids_BT = read_token_rows(FLAGS.text, FLAGS.model, FLAGS.rows, FLAGS.columns, vocabulary)
    except ValueError as error:
        raise UsageError(str(error)) from error
    write_reference(model, ids_BT, vocabulary, Path(FLAGS.write_reference))
    print(f"{FLAGS.write_reference}: logits after {ids_BT.size} tokens")


if __name__ == "__main__":
    run(main, FLAGS)
