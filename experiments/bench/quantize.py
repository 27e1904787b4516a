"""Host side: how good and how fast is the quantizer on this machine?

    python -m experiments.bench.quantize --table   # relative error by width and codebook, against what is reachable
    python -m experiments.bench.quantize --ldlq    # what feedback by correlated inputs does to both kinds of error
    python -m experiments.bench.quantize --speed   # the search against the same search in plain NumPy

One Gaussian matrix of --size rows and columns. All three are run where none is asked for. Read next:
pallas_kernels/trellis_search/op.py, checkpoints/quantize.py.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging

from checkpoints.quantiser.tiles import pack_states, to_tiles
from checkpoints.quantize import quantize_linear
from pallas_kernels.exl3 import decode_numpy, from_arrays
from pallas_kernels.exl3.codebook import codebook_table
from pallas_kernels.exl3.hadamard import rotate
from pallas_kernels.exl3.trellis import states as unpack_states
from pallas_kernels.exl3.weight import words_from_trellis
from pallas_kernels.trellis_search import Ring, search_rings
from pallas_kernels.trellis_search.reference import search_ring_reference

_TABLE = flags.DEFINE_bool("table", False, "relative error of the search and of whole layers")
_LDLQ = flags.DEFINE_bool("ldlq", False, "errors with and without a Hessian")
_SPEED = flags.DEFINE_bool("speed", False, "time of the search, beside plain NumPy")
_LAYERS = flags.DEFINE_bool("layers", True, "with --table: quantize the matrix as a layer, too")
_SIZE = flags.DEFINE_integer("size", 256, "rows and columns of the matrix, a multiple of 128")
_SEED = flags.DEFINE_integer("seed", 0, "seed of the matrix")
_BITS = flags.DEFINE_float("bits", 3, "width for --speed")
_PLAIN_TILES = flags.DEFINE_integer("plain_tiles", 32, "tiles that plain NumPy searches, of which the rest is inferred")


@dataclass(frozen=True)
class Row:
    """factor: that the targets are multiplied by. reachable: relative squared error of a search that works."""

    bits: float
    codebook: str
    factor: float
    reachable: float


ROWS = (
    Row(1.5, "mul1", 1.016, 0.13694),
    Row(2, "mul1", 0.982, 0.06839),
    Row(2, "3inst", 1.228, 0.06863),
    Row(2, "mcg", 1.248, 0.06848),
    Row(2.5, "mul1", 0.959, 0.03443),
    Row(3, "mul1", 0.934, 0.01740),
    Row(3, "3inst", 1.169, 0.01769),
    Row(3, "mcg", 1.179, 0.01740),
    Row(3.5, "mul1", 0.924, 0.008793),
    Row(4, "mul1", 0.909, 0.004448),
    Row(4, "3inst", 1.129, 0.004598),
    Row(4, "mcg", 1.126, 0.004534),
    Row(5, "mul1", 0.891, 0.001144),
    Row(6, "mul1", 0.852, 0.000300),
)
"""Gaussian weights; the bound on any code is 2^(-2 bits)."""


def table(weight_KN: np.ndarray, layers: bool) -> Iterator[str]:
    """Yields a line a row: the search alone, tile by tile, then the whole layer."""
    yield " bits codebook  reachable     search  ratio      layer  ratio  over the bound"
    tiles = to_tiles(weight_KN)
    for row in ROWS:
        search = relative_error(_searched(tiles, row), tiles)
        line = f"{row.bits:>5} {row.codebook:>8} {row.reachable:>10.6f} {search:>10.6f} {search / row.reachable:>6.3f}"
        if layers:
            layer = relative_error(layer_matrix(quantize_linear(weight_KN, row.bits, row.codebook)), weight_KN)
            line += f" {layer:>10.6f} {layer / row.reachable:>6.3f}"
        yield f"{line} {search * 4**row.bits:>10.3f}"


def _searched(tiles: np.ndarray, row: Row) -> np.ndarray:
    """What the tiles decode to after a search and a trip through the file's words."""
    states = search_rings(tiles.reshape(-1, 256) * np.float32(row.factor), row.bits, row.codebook)
    words = jnp.asarray(words_from_trellis(pack_states(states.reshape(tiles.shape), row.bits)))
    if not np.array_equal(np.asarray(unpack_states(words)).reshape(states.shape), states):
        raise AssertionError(f"{row}: the states are not those that were packed")
    values = codebook_table(row.codebook).astype(np.float32)[states]
    return values.reshape(tiles.shape) / row.factor


def ldlq(weight_KN: np.ndarray, rng: np.random.Generator) -> Iterator[str]:
    """Yields a line a width and method: squared error of the weights, and of the outputs that the inputs make of it."""
    K = len(weight_KN)
    turn = np.linalg.qr(rng.standard_normal((K, K)))[0]
    inputs = rng.standard_normal((16 * K, K)) * np.exp(-np.arange(K) / (K / 8)) @ turn
    hessian = (inputs.T @ inputs / len(inputs)).astype(np.float32)
    yield " bits  feedback    weights    outputs"
    for bits in (2, 3, 4):
        for name, given in (("no", None), ("yes", hessian)):
            error = layer_matrix(quantize_linear(weight_KN, bits, hessian=given)) - weight_KN
            outputs = np.sum(error * (hessian @ error)) / np.sum(weight_KN * (hessian @ weight_KN))
            yield f"{bits:>5} {name:>9} {np.sum(error**2) / np.sum(weight_KN**2):>10.5f} {outputs:>10.5f}"


def speed(weight_KN: np.ndarray, bits: float, plain_tiles: int) -> Iterator[str]:
    """Yields lines: seconds of the fast search, seconds of plain NumPy, their ratio."""
    target = to_tiles(weight_KN).reshape(-1, 256) * np.float32(0.93)
    ring, values = Ring(256, bits), codebook_table("mul1").astype(np.float32)
    compile_s, _ = _timed(lambda: search_rings(target, bits))
    wall_s, cpu_s = min(_timed(lambda: search_rings(target, bits)) for _ in range(3))
    few = target[:plain_tiles]
    plain = [_timed(lambda ring_P=ring_P: search_ring_reference(ring_P, values, ring)) for ring_P in few]
    plain_wall_s, plain_cpu_s = (sum(column) / len(few) * len(target) for column in zip(*plain, strict=True))
    steps = 2 * 256 * 65536 * len(target)
    yield f"{len(target)} tiles, {bits} bits, {jax.devices()[0].device_kind}; first call {compile_s:.2f} s"
    yield f"search       {wall_s:>8.2f} s wall {cpu_s:>8.2f} s cpu {steps / wall_s:.3g} candidates/s"
    yield f"plain NumPy  {plain_wall_s:>8.2f} s wall {plain_cpu_s:>8.2f} s cpu {steps / plain_wall_s:.3g} candidates/s"
    yield f"ratio        {plain_wall_s / wall_s:>8.1f}   wall {plain_cpu_s / cpu_s:>8.1f}   cpu"


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def layer_matrix(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """W of a layer as a file holds it, float32 [K, N]."""
    weight = from_arrays(arrays)
    inner = decode_numpy(arrays["trellis"], weight.codebook).astype(np.float32)
    turned_KN = np.asarray(rotate(rotate(jnp.asarray(inner)).T).T)
    return weight.suh.astype(np.float32)[:, None] * turned_KN * weight.svh.astype(np.float32)


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    """||found - wanted||^2 / ||wanted||^2."""
    return float(np.sum(np.square(found - wanted, dtype=np.float64)) / np.sum(np.square(wanted, dtype=np.float64)))


def main(_: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)
    rng = np.random.default_rng(_SEED.value)
    weight_KN = rng.standard_normal((_SIZE.value, _SIZE.value)).astype(np.float32)
    everything = not (_TABLE.value or _LDLQ.value or _SPEED.value)
    parts = (
        (_TABLE.value, lambda: table(weight_KN, _LAYERS.value)),
        (_LDLQ.value, lambda: ldlq(weight_KN, rng)),
        (_SPEED.value, lambda: speed(weight_KN, _BITS.value, _PLAIN_TILES.value)),
    )
    for asked, lines in parts:
        if asked or everything:
            for line in lines():
                print(line, flush=True)


if __name__ == "__main__":
    app.run(main)
