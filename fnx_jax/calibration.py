"""Host side: Hessians of a network's linears, layer by layer, each from rows that came through the quantised ones.

One layer's weights are on the device at a time. The rows' residual streams lie in a file between layers, so a run that
ends anywhere is taken up at the layer it was in. Read next: families/flash_next/sequence/statistics.py.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from checkpoints.architecture import Table
from checkpoints.converter.units import Unit
from checkpoints.inventory import Inventory
from checkpoints.naming import MTP_PREFIX
from checkpoints.ngram import open_ngram_table
from checkpoints.store import Store, open_store
from fnx_jax.families.flash_next.config import FlashNextConfig, read_config
from fnx_jax.families.flash_next.load import Arithmetic, StoreLeaves
from fnx_jax.families.flash_next.ngram_embedding import NgramTables
from fnx_jax.families.flash_next.sequence import network, residual
from fnx_jax.families.flash_next.sequence.delta import CHUNK
from fnx_jax.families.flash_next.sequence.statistics import LayerMoments, Moments, draft_moments, layer_moments, moments
from fnx_jax.families.flash_next.shards import deal
from fnx_jax.families.flash_next.weights import final_mixer, layer_params, mtp_params
from fnx_jax.families.history import token_history
from fnx_jax.mesh import make_mesh


class LayerByLayer:
    """A `checkpoints.converter.quantise.Calibrator` that runs the network's sequence functions.

    rows, columns: of the token ids.
    """

    def __init__(
        self, store: Store, config: FlashNextConfig, prefix: str, token_BT: Int[np.ndarray, "B T"], folder: Path
    ):
        """Args: store: the plain checkpoint. prefix: of its text model. folder: where streams lie between layers."""
        self.rows, self.columns = token_BT.shape
        self._store, self._config, self._prefix, self._token_BT = store, config, prefix, token_BT
        self._folder, self._mesh, self._shards = folder, make_mesh(1), deal(config, 1)
        self._tables: list[tuple[Store, str]] = []
        # Compiled once for each kind of layer.
        self._layer = jax.jit(partial(network.layer, config=config, chunk=CHUNK))
        self._layer_moments = jax.jit(partial(layer_moments, config=config, chunk=CHUNK))
        folder.mkdir(exist_ok=True)

    def hessians(self, unit: Unit) -> Mapping[str, np.ndarray]:
        """X^T X / rows by the name of what reads X; empty where nothing of a unit is known to read rows."""
        if unit.layer is not None:
            with _Leaves(self._store, self._mesh) as leaves:
                params = layer_params(self._config, self._shards, leaves, unit.prefix, unit.layer)
                run = partial(self._layer_moments, params=params)
                found = self._sum(run, unit.layer, unit.layer if params.ngram is not None else None)
            return _by_input(found, unit.prefix)
        if unit.name == "head":
            with _Leaves(self._store, self._mesh) as leaves:
                mixer = final_mixer(self._config, leaves, self._prefix)
                run = jax.jit(lambda streams, ngram_TE: moments(residual.read_only(streams, mixer, self._config)))
                return {"lm_head": _mean(self._sum(run, self._config.layers, None))}
        if unit.name == "draft":
            return self._draft()
        return {}

    def end(self, unit: Unit, file: Path) -> None:
        """Takes the streams through a unit as its file holds it, where that was not done before."""
        if unit.parts and isinstance(unit.parts[0], Table):
            self._tables.append((open_store(file), unit.parts[0].prefix))
        elif unit.name == "embedding" and self._depth() < 0:
            with open_store(file) as written:
                embedding = jnp.asarray(written.read(f"{self._prefix}embed_tokens.weight"))
            self._keep(0, (residual.embed(embedding, token_T, self._config) for token_T in self._token_BT))
        elif unit.layer is not None and self._depth() <= unit.layer:
            with open_store(file) as written, _Leaves(written, self._mesh) as leaves:
                params = layer_params(self._config, self._shards, leaves, unit.prefix, unit.layer)
                number = unit.layer if params.ngram is not None else None
                rows = ((streams, self._ngram(b, number)) for b, streams in enumerate(self._streams(unit.layer)))
                self._keep(unit.layer + 1, (self._layer(streams, params, ngram_TE=ngram) for streams, ngram in rows))

    def _draft(self) -> Mapping[str, np.ndarray]:
        with _Leaves(self._store, self._mesh) as leaves:
            params = mtp_params(self._config, self._shards, leaves)
            embedding = leaves.plain(
                f"{self._prefix}embed_tokens.weight", (self._config.vocabulary, self._config.hidden)
            )
            run = jax.jit(partial(draft_moments, config=self._config, chunk=CHUNK))
            total = None
            for b, streams in enumerate(self._streams(self._config.layers)):
                found = run(streams[:-1], embedding[self._token_BT[b, 1:]], params)
                total = found if total is None else jax.tree.map(jnp.add, total, found)
            token, hidden, layer = total  # type: ignore[misc]
            fused = {f"{MTP_PREFIX}fc_embedding": _mean(token), f"{MTP_PREFIX}fc_hidden": _mean(hidden)}
            return fused | _by_input(layer, f"{MTP_PREFIX}layers.0.")

    def _sum(self, run: Callable[..., Any], depth: int, ngram_layer: int | None) -> Any:
        """Adds what `run` finds in every row's streams before layer `depth`."""
        total = None
        for b, streams in enumerate(self._streams(depth)):
            found = run(streams, ngram_TE=self._ngram(b, ngram_layer))
            total = found if total is None else jax.tree.map(jnp.add, total, found)
        return total

    def _ngram(self, row: int, layer: int | None) -> np.ndarray | None:
        if layer is None:
            return None
        number = self._config.ngram_layers.index(layer)
        store, prefix = self._tables[number]
        tables = NgramTables((open_ngram_table(store, prefix),), self._config.eos_token_ids[0])
        token_T = self._token_BT[row]
        return tables.embeddings(token_T, token_history(token_T, self._config.ngram_size - 1))[:, 0]

    def _depth(self) -> int:
        """Layers that the kept streams have passed; -1 where there are none."""
        return max((int(file.stem.removeprefix("streams-")) for file in self._folder.glob("streams-*.f32")), default=-1)

    def _file(self, depth: int) -> Path:
        return self._folder / f"streams-{depth:04d}.f32"

    def _streams(self, depth: int) -> Iterator[np.ndarray]:
        width = self._config.streams * self._config.hidden
        values = np.memmap(self._file(depth), np.float32, "r", shape=(self.rows, self.columns, width))
        for b in range(self.rows):
            yield np.array(values[b])

    def _keep(self, depth: int, rows: Iterator[Any]) -> None:
        """Writes streams whole or not at all; then those before them go."""
        unfinished = self._folder / ".streams.unfinished"
        with open(unfinished, "wb") as file:
            for row in rows:
                file.write(np.ascontiguousarray(row, np.float32).data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(self._file(depth))
        for file in self._folder.glob("streams-*.f32"):
            if file != self._file(depth):
                file.unlink()


def calibrator(store: Store, inventory: Inventory, token_BT: Int[np.ndarray, "B T"], folder: Path) -> LayerByLayer:
    """Binds a plain checkpoint and rows of token ids. Raises CheckpointError for a config that cannot be run."""
    text = dict(inventory.text) | {"tie_word_embeddings": False}
    config = read_config({"model_type": text.get("model_type", "qwen4_exp_text")} | text)
    config = replace(config, mtp_layers=inventory.mtp_layers)
    return LayerByLayer(store, config, inventory.prefix, token_BT, folder)


class _Leaves(StoreLeaves):
    """Leaves of a few parameters, freed when the block ends."""

    def __init__(self, store: Store, mesh: Any):
        super().__init__(
            store, mesh, Arithmetic(exact=False, decode=jax.default_backend() == "cpu"), lambda nbytes: None
        )

    def __enter__(self) -> "_Leaves":
        return self

    def __exit__(self, *_: object) -> None:
        self.free()


def _by_input(found: LayerMoments, prefix: str) -> dict[str, np.ndarray]:
    experts = _mean(found.experts)
    named = {f"{prefix}mlp.experts.{e}.down_proj": experts[e] for e in range(len(experts))}
    out = {f"{prefix}{name}": _mean(found.out) for name in ("linear_attn.out_proj", "self_attn.o_proj")}
    shared = {f"{prefix}mlp.shared_expert.down_proj": _mean(found.shared)}
    return {f"{prefix}mixer": _mean(found.mixer), f"{prefix}mlp": _mean(found.mlp)} | out | shared | named


def _mean(found: Moments) -> np.ndarray:
    """Zeros where no row was counted."""
    return np.asarray(found.sum) / np.maximum(np.asarray(found.rows), 1)[..., None, None]
