"""Host side: output projections split by their inputs over the ranks, as one would where sums may have any order."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from fnx_jax.families.flash_next.params import AttentionParams, LayerParams, ModelParams, MoeParams
from fnx_jax.mesh import place_dealt


def can_split(params: ModelParams) -> bool:
    """Whether every output projection is a plain matrix; an EXL3 one stays whole on every rank."""
    return all(isinstance(weight, jax.Array) for layer in params.layers for weight in _whole(layer))


def split_inputs(params: ModelParams, mesh: Mesh) -> ModelParams:
    """Deals the inputs of mixers' and shared experts' output projections, and the columns that make those inputs."""
    return replace(params, layers=tuple(_layer(layer, mesh) for layer in params.layers))


def _whole(layer: LayerParams) -> tuple[Any, ...]:
    mixer, shared = layer.mixer, layer.moe.shared
    return (mixer.o if isinstance(mixer, AttentionParams) else mixer.out, shared.gate, shared.up, shared.down)


def _layer(layer: LayerParams, mesh: Mesh) -> LayerParams:
    mixer = layer.mixer
    if isinstance(mixer, AttentionParams):
        mixer = replace(mixer, o=_dealt(mixer.o, 1, mesh))
    else:
        mixer = replace(mixer, out=_dealt(mixer.out, 1, mesh))
    return replace(layer, mixer=mixer, moe=_shared(layer.moe, mesh))


def _shared(moe: MoeParams, mesh: Mesh) -> MoeParams:
    shared = moe.shared
    gate, up, down = _dealt(shared.gate, 0, mesh), _dealt(shared.up, 0, mesh), _dealt(shared.down, 1, mesh)
    return replace(moe, shared=replace(shared, gate=gate, up=up, down=down))


def _dealt(weight: Any, axis: int, mesh: Mesh) -> jax.Array:
    return place_dealt([np.ascontiguousarray(part) for part in np.split(np.asarray(weight), mesh.size, axis)], mesh)
