"""Traced: the sequence functions with a config bound: what `model.functions` is.

    embed -> layers (ngram_mix, read, gated_delta or sparse_attention, write, read, moe, write) -> logits; draft head

Each function is pure and takes one sequence; jax.vmap takes batches, in_axes=(None, 0, 0) for `forward`, shorter
sequences padded at the end with anything: no row sees a later one. jax.grad over a parameter tree wants allow_int=True,
since the tree holds integer leaves too.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.params import AttentionParams, DeltaParams, LayerParams, ModelParams, MoeParams
from fnx_jax.families.flash_next.sequence import attention, delta, moe, network, ngram, residual
from pallas_kernels.hyper_connection import HyperWeights
from pallas_kernels.ngram_mix import NgramWeights


@dataclass(frozen=True)
class Functions:
    """Shapes: T tokens, D hidden, N = streams * D, V vocabulary. Activations are float32, float64 with such params.

    chunk: rows of a chunk of the recurrence in `mix`, `layer`, `streams` and `forward`; None walks row by row.
    """

    config: FlashNextConfig
    chunk: int | None = None

    def forward(
        self, params: ModelParams, token_T: Int[ArrayLike, " T"], ngram_TLE: Float[ArrayLike, "T layers E"]
    ) -> Float[Array, "T V"]:
        """Logits of every row: row i predicts token i + 1.

        Args: token_T: ids below the vocabulary. ngram_TLE: one embedding a layer that takes one, float32, from
          `NgramTables.embeddings` of the tokens and their `token_history`.
        Raises: ValueError where the arguments are not one sequence, or experts are not resident.
        """
        return self.logits(params, self.streams(params, token_T, ngram_TLE))

    def streams(
        self, params: ModelParams, token_T: Int[ArrayLike, " T"], ngram_TLE: Float[ArrayLike, "T layers E"]
    ) -> Float[Array, "T N"]:
        """The residual streams after the last layer: what `logits` and `mtp_forward` take."""
        return network.last_streams(params, self.config, _ids(token_T), jnp.asarray(ngram_TLE), self.chunk)

    def logits(self, params: ModelParams, streams_TN: Float[Array, "T N"]) -> Float[Array, "T V"]:
        """Logits from the last streams."""
        return network.logits(params, self.config, streams_TN)

    def mtp_forward(
        self, params: ModelParams, streams_TN: Float[Array, "T N"], next_token_T: Int[ArrayLike, " T"]
    ) -> Float[Array, "T V"]:
        """Draft logits: row i, from its streams and token i + 1, predicts token i + 2."""
        return network.mtp_logits(params, self.config, self.mtp_streams(params, streams_TN, next_token_T))

    def mtp_streams(
        self, params: ModelParams, streams_TN: Float[Array, "T N"], next_token_T: Int[ArrayLike, " T"]
    ) -> Float[Array, "T N"]:
        """The draft layer's streams, which take the place of the main model's in a chain of drafts."""
        return network.mtp_streams(params, self.config, streams_TN, _ids(next_token_T))

    def embed(self, params: ModelParams, token_T: Int[ArrayLike, " T"]) -> Float[Array, "T N"]:
        """The streams before the first layer."""
        return residual.embed(params.embedding, _ids(token_T), self.config)

    def layer(
        self, streams_TN: Float[Array, "T N"], params: LayerParams, ngram_TE: Float[Array, "T E"] | None = None
    ) -> Float[Array, "T N"]:
        """One decoder layer; ngram_TE only where it takes one."""
        return network.layer(streams_TN, params, self.config, ngram_TE, self.chunk)

    def ngram_mix(
        self, streams_TN: Float[Array, "T N"], embedding_TE: Float[Array, "T E"], params: NgramWeights
    ) -> Float[Array, "T N"]:
        """The streams with an n-gram embedding mixed in."""
        return ngram.ngram_mix(streams_TN, embedding_TE, params, self.config)

    def read(
        self, streams_TN: Float[Array, "T N"], params: HyperWeights
    ) -> tuple[Float[Array, "T D"], Float[Array, "T n"]]:
        """A block's input from the streams, and the streams' gates for its output."""
        return residual.read(streams_TN, params, self.config)

    def read_only(self, streams_TN: Float[Array, "T N"], params: HyperWeights) -> Float[Array, "T D"]:
        """A final mixer's read."""
        return residual.read_only(streams_TN, params, self.config)

    def write(
        self, streams_TN: Float[Array, "T N"], out_TD: Float[Array, "T D"], gate_Tn: Float[Array, "T n"]
    ) -> Float[Array, "T N"]:
        """The streams with a block's output added, gated."""
        return residual.write(streams_TN, out_TD, gate_Tn)

    def mix(self, x_TD: Float[Array, "T D"], params: DeltaParams | AttentionParams) -> Float[Array, "T D"]:
        """A layer's token mixer, of either kind."""
        return network.mix(x_TD, params, self.config, self.chunk)

    def gated_delta(self, x_TD: Float[Array, "T D"], params: DeltaParams) -> Float[Array, "T D"]:
        """A recurrent block, row by row."""
        return delta.gated_delta(x_TD, params, self.config)

    def gated_delta_chunked(
        self, x_TD: Float[Array, "T D"], params: DeltaParams, chunk: int = delta.CHUNK
    ) -> Float[Array, "T D"]:
        """A recurrent block, in chunks: the same function."""
        return delta.gated_delta_chunked(x_TD, params, self.config, chunk)

    def sparse_attention(self, x_TD: Float[Array, "T D"], params: AttentionParams) -> Float[Array, "T D"]:
        """A sparse attention block."""
        return attention.sparse_attention(x_TD, params, self.config)

    def visible_tokens(self, x_TD: Float[Array, "T D"], params: AttentionParams) -> Bool[Array, "T S"]:
        """Which tokens each row of a sparse attention block reads."""
        return attention.visible_tokens(x_TD, params, self.config)

    def moe(self, x_TD: Float[Array, "T D"], params: MoeParams) -> Float[Array, "T D"]:
        """The mixture of experts."""
        return moe.moe(x_TD, params, self.config)

    def picks(self, x_TD: Float[Array, "T D"], params: MoeParams) -> tuple[Int[Array, "T A"], Float[Array, "T A"]]:
        """Each row's experts, most likely first, and their weights."""
        return moe.picks(x_TD, params, self.config)


def functions(config: FlashNextConfig, chunk: int | None = None) -> Functions:
    """Binds the sequence functions to a checkpoint's config. chunk: see `Functions`."""
    if chunk is not None and chunk < 1:
        raise ValueError(f"functions: a chunk of {chunk} rows")
    return Functions(config, chunk)


def _ids(token_T: ArrayLike) -> jax.Array:
    return jnp.asarray(token_T, jnp.int32)
