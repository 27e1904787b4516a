"""Traced: the draft head over a batch, chained as in serving: depth d starts from the streams of depth d - 1.

At depth d row i stands at position i + d - 1, reads the pairs 0 .. i made from the main model's streams and the guessed
ones that its own chain has appended since, and predicts token i + d + 1. A chain keeps the blocks that its first depth
selected; serving selects afresh, which is the one difference. Read next: losses.py.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from experiments.train import attention
from experiments.train.network import ROOM, Side, after_mixer, read
from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.params import AttentionParams, ModelParams
from fnx_jax.families.flash_next.sequence import residual
from fnx_jax.families.flash_next.sequence.network import mtp_fused, mtp_inputs


def draft_hidden(
    params: ModelParams,
    config: FlashNextConfig,
    streams: Float[Array, "R N"],
    token_BT: Int[Array, "B T"],
    depths: int,
    room: float = ROOM,
) -> tuple[list[Float[Array, "R D"]], Side]:
    """What the head takes, one entry a depth.

    Args: streams: of every row of token_BT, after the last layer. token_BT: a chain reads the token d places on; the
      last d rows of a sequence read the tokens at its beginning instead, and mean nothing. room: as in `last_streams`.
    Returns: row i of entry d - 1 predicts token i + d + 1, and the draft layer's side losses (the first depth's index).
    """
    assert params.mtp is not None
    mtp, layer = params.mtp, params.mtp.layer
    assert isinstance(layer.mixer, AttentionParams)
    shape, out, chained, side = token_BT.shape, [], [], Side(jnp.float32(0), ())
    first = seen = None
    for depth in range(1, depths + 1):
        embedding_RD = params.embedding[jnp.roll(token_BT, -depth, axis=1).reshape(-1)]
        streams = mtp_fused(mtp, config, *mtp_inputs(mtp, config, streams, embedding_RD))
        x, gate = read(streams, layer.mixer_hyper, config)
        rows = attention.heads(x, layer.mixer, config, shape, first_position=depth - 1)
        if first is None:
            first, seen = rows, attention.visible(x, layer.mixer, config, shape)
        else:
            chained = [*chained, (rows.k, rows.v)]
        assert seen is not None
        scores = attention.all_scores(rows, first.k)
        further = [(jnp.sum(rows.q * k[:, :, :, None], axis=-1), v) for k, v in chained]
        y = attention.output(attention.read_out(scores, seen, first.v, further), rows, layer.mixer, config)
        index = attention.index_loss(scores, x, layer.mixer, config, shape) if depth == 1 else jnp.float32(0)
        streams, routing = after_mixer(residual.write(streams, y, gate), layer, config, room)
        side = side + Side(index, (routing,))
        out.append(residual.read_only(streams, mtp.mixer, config))
    return out, side
