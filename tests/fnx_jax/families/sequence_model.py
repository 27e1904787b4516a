"""Golden cases behind the sequence functions, each loaded once, and the network spelled out with its inner values."""

import functools
from dataclasses import dataclass

import jax
import numpy as np

from checkpoints.store import open_store
from fnx_jax.families.flash_next.config import FlashNextConfig, read_config
from fnx_jax.families.flash_next.load import Arithmetic, load_params, open_ngrams
from fnx_jax.families.flash_next.params import AttentionParams, LayerParams, ModelParams
from fnx_jax.families.flash_next.sequence import Functions, functions
from fnx_jax.families.flash_next.shards import deal
from fnx_jax.families.history import token_history
from fnx_jax.mesh import make_mesh
from tests.fnx_jax.cases import FOLDER, Case, read_case


@dataclass(frozen=True)
class SequenceModel:
    """One golden case: what it holds, and its prompts as the functions take them."""

    case: Case
    config: FlashNextConfig
    functions: Functions
    params: ModelParams
    ngrams: tuple[np.ndarray, ...]  # [T, layers, E] float32, one entry a prompt

    def tokens(self, prompt: int) -> np.ndarray:
        """int32 [T]."""
        return self.case[f"p{prompt}.input_ids"].astype(np.int32)


@functools.cache
def sequence_model(name: str, exact: bool = True) -> SequenceModel:
    """Loads a golden case in float32, or as served."""
    case = read_case(name)
    with open_store(FOLDER / name) as store:
        assert store.config is not None
        config = read_config(store.config)
        params = load_params(store, config, deal(config, 1), make_mesh(1), Arithmetic(exact=exact, decode=True), True)
        tables = open_ngrams(store, config)
        ids = [case[f"p{p}.input_ids"] for p in case.prompts]
        ngrams = tuple(tables.embeddings(i, token_history(i, config.ngram_size - 1)) for i in ids)
    return SequenceModel(case, config, functions(config), params, ngrams)


def layer_values(f: Functions, streams: jax.Array, params: LayerParams, ngram: jax.Array | None) -> dict:
    """One layer, piece by piece: what goes into and comes out of its blocks, by the golden names."""
    if params.ngram is not None and ngram is not None:
        streams = f.ngram_mix(streams, ngram, params.ngram)
    attn_in, gate = f.read(streams, params.mixer_hyper)
    attn_out = f.mix(attn_in, params.mixer)
    streams = f.write(streams, attn_out, gate)
    mlp_in, gate = f.read(streams, params.moe_hyper)
    mlp_out = f.moe(mlp_in, params.moe)
    expert, weight = f.picks(mlp_in, params.moe)
    values = dict(
        attn_in=attn_in, attn_out=attn_out, mlp_in=mlp_in, mlp_out=mlp_out, router_ids=expert, router_w=weight
    )
    if isinstance(params.mixer, AttentionParams):
        values["qsa_mask"] = f.visible_tokens(attn_in, params.mixer)
    return values | {"hidden": f.write(streams, mlp_out, gate)}


def network_values(f: Functions, params: ModelParams, token_T, ngram_TLE, next_token_T) -> dict:
    """The whole network and its draft head, piece by piece."""
    streams, values = f.embed(params, token_T), {}
    for i, layer in enumerate(params.layers):
        takes = i in f.config.ngram_layers
        ngram = ngram_TLE[:, f.config.ngram_layers.index(i)] if takes else None
        inner = layer_values(f, streams, layer, ngram)
        streams = inner["hidden"]
        values |= {f"fp32.{key}.{i}": value for key, value in inner.items()}
    values["fp32.streams_final"] = streams
    values["fp32.final_hidden"] = f.read_only(streams, params.mixer)
    values["fp32.logits"] = f.logits(params, streams)
    values["mtp.logits"] = f.mtp_forward(params, streams, next_token_T)
    return values
