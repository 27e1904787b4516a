"""Traced: the parameter tree's types. weights.py fills it; forward.py and mtp.py read it top to bottom."""

import jax
from flax import struct

from pallas_kernels.dense_matmul import Weight
from pallas_kernels.expert_matmul import ExpertLines, LineMap
from pallas_kernels.gated_delta import DeltaWeights
from pallas_kernels.hyper_connection import HyperWeights
from pallas_kernels.ngram_mix import NgramWeights


@struct.dataclass
class DeltaParams:
    """Projections into and out of a recurrent layer; norm [dv]."""

    qkv: Weight
    z: Weight
    a: Weight
    b: Weight
    out: Weight
    rule: DeltaWeights
    norm: jax.Array


@struct.dataclass
class AttentionParams:
    """q yields query and gate of each head side by side; index yields the index queries, then one raw key."""

    q: Weight
    k: Weight
    v: Weight
    o: Weight
    index: Weight
    q_norm: jax.Array
    k_norm: jax.Array
    index_q_norm: jax.Array
    index_k_norm: jax.Array


@struct.dataclass
class SharedExpertParams:
    """scale [1, D] is the gate of the whole expert."""

    gate: Weight
    up: Weight
    down: Weight
    scale: Weight


@struct.dataclass
class MoeParams:
    """router [E, D]; lines and line_map as in pallas_kernels.expert_matmul."""

    router: jax.Array
    shared: SharedExpertParams
    lines: ExpertLines
    line_map: LineMap


@struct.dataclass
class LayerParams:
    """One decoder layer; ngram only where an n-gram embedding enters it."""

    mixer_hyper: HyperWeights
    moe_hyper: HyperWeights
    mixer: DeltaParams | AttentionParams
    moe: MoeParams
    ngram: NgramWeights | None


@struct.dataclass
class MtpParams:
    """The draft head: input fusion, one attention layer, its own final mixer. Embedding and head are the model's."""

    fc_embedding: Weight
    fc_hidden: Weight
    norm_embedding: jax.Array
    norm_hidden: jax.Array
    layer: LayerParams
    mixer: HyperWeights


@struct.dataclass
class ModelParams:
    """embedding [V, D]; head [V, D]; mtp None where the checkpoint has no draft head or it is not loaded."""

    embedding: jax.Array
    layers: tuple[LayerParams, ...]
    mixer: HyperWeights
    head: Weight
    mtp: MtpParams | None
