"""Host side: how checkpoints of this architecture name their tensors and spell their config. Read next: inventory.py.

Three layouts hold the same network: the published one (prefix `model.language_model.`, experts fused), the one that
Transformers saves (prefix `model.`, one tensor an expert), and EXL3 packs (published prefix, a quantised linear an
expert and projection).
"""

from bisect import bisect_left
from typing import Literal

import numpy as np

from checkpoints.errors import CheckpointError
from checkpoints.headers import TensorInfo
from checkpoints.store import Store

PUBLISHED_PREFIX = "model.language_model."
TRANSFORMERS_PREFIX = "model."
MTP_PREFIX = "mtp."
"""The draft head's prefix, the same in every layout."""

MODEL_TYPES = ("qwen4_exp", "qwen4_exp_text")
LINEAR_ATTENTION = "linear_attention"
SPARSE_ATTENTION = "sparse_attention"
SPARSE_SPELLINGS = ("full_attention", "indexed_attention", "qwen_sparse_attention")
"""What writers call one and the same layer: attention over the tokens that an indexer picks."""

EXPERT_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
ExpertLayout = Literal["fused", "separate", "exl3"]


def names_under(store: Store, prefix: str) -> tuple[str, ...]:
    """Returns the tensor names that start with `prefix`, sorted."""
    names = store.names()
    first = bisect_left(names, prefix)
    last = bisect_left(names, True, lo=first, key=lambda name: not name.startswith(prefix))
    return names[first:last]


def language_prefix(store: Store) -> str:
    """Returns the text model's prefix, dot included; raises CheckpointError where there is none, or both are there."""
    published = bool(names_under(store, PUBLISHED_PREFIX))
    flat = [name for part in ("layers.", "embed_tokens.") for name in names_under(store, TRANSFORMERS_PREFIX + part)]
    if published and flat:
        raise CheckpointError(f"{store.path}: {flat[0]}: two namings at once, {PUBLISHED_PREFIX}* is there as well")
    if not published and not flat:
        raise CheckpointError(
            f"{store.path}: no text model: neither {PUBLISHED_PREFIX}* nor {TRANSFORMERS_PREFIX}layers.*"
        )
    return PUBLISHED_PREFIX if published else TRANSFORMERS_PREFIX


def text_config(config: dict) -> dict:
    """Returns the text part of a parsed config.json: nested under `text_config`, or the whole of a flat one.

    Raises: CheckpointError "unsupported architecture ..." for every model_type but MODEL_TYPES.
    """
    model_type = config.get("model_type")
    if model_type not in MODEL_TYPES:
        raise CheckpointError(
            f"config.json: unsupported architecture {config.get('architectures')!r}, model_type {model_type!r}; "
            f"supported: {', '.join(MODEL_TYPES)}"
        )
    text = config.get("text_config", config)
    if not isinstance(text, dict):
        raise CheckpointError(f"config.json: text_config must be an object, not {type(text).__name__}")
    if text.get("model_type", model_type) not in MODEL_TYPES:
        raise CheckpointError(f"config.json: unsupported architecture, text_config.model_type {text['model_type']!r}")
    return text


def layer_kinds(text: dict) -> tuple[str, ...]:
    """Returns LINEAR_ATTENTION or SPARSE_ATTENTION for each layer of a text config, whatever the spelling.

    Without `layer_types`, every `full_attention_interval`-th layer (4 by default) is sparse.
    Raises: CheckpointError for an unknown spelling or a count that is not `num_hidden_layers`.
    """
    layers = positive_int(text, "num_hidden_layers")
    spelled = text.get("layer_types")
    if spelled is None:
        interval = positive_int(text, "full_attention_interval", 4)
        return tuple(SPARSE_ATTENTION if (i + 1) % interval == 0 else LINEAR_ATTENTION for i in range(layers))
    if len(spelled) != layers:
        raise CheckpointError(f"config.json: {len(spelled)} layer_types for num_hidden_layers {layers}")
    return tuple(_layer_kind(i, spelling) for i, spelling in enumerate(spelled))


def positive_int(text: dict, key: str, default: int | None = None) -> int:
    """Returns one positive integer of a text config; raises CheckpointError where it is something else or missing."""
    value = text.get(key, default)
    if type(value) is not int or value < 1:
        raise CheckpointError(f"config.json: {key} must be a positive integer, not {value!r}")
    return value


def _layer_kind(layer: int, spelling: object) -> str:
    if spelling == LINEAR_ATTENTION:
        return LINEAR_ATTENTION
    if spelling in SPARSE_SPELLINGS:
        return SPARSE_ATTENTION
    known = ", ".join((LINEAR_ATTENTION, *SPARSE_SPELLINGS))
    raise CheckpointError(f"config.json: layer {layer}: unknown layer type {spelling!r}; known: {known}")


def expert_prefix(layer_prefix: str, expert: int, projection: str) -> str:
    """Returns the module name of one projection of one expert, without a trailing dot."""
    return f"{layer_prefix}mlp.experts.{expert}.{projection}"


def expert_layout(store: Store, layer_prefix: str) -> ExpertLayout:
    """Tells how a layer holds its routed experts; `layer_prefix` ends with a dot, as in `model.layers.0.`.

    Raises: CheckpointError where the layer has no experts or mixes layouts.
    """
    names = names_under(store, f"{layer_prefix}mlp.experts.")
    endings: dict[str, ExpertLayout] = {
        ".trellis": "exl3",
        ".weight": "separate",
        "gate_up_proj": "fused",
        "experts.down_proj": "fused",
    }
    layouts: set[ExpertLayout] = {
        layout for name in names for ending, layout in endings.items() if name.endswith(ending)
    }
    if len(layouts) != 1:
        found = " and ".join(sorted(layouts)) or "no experts"
        raise CheckpointError(f"{store.path}: {layer_prefix}mlp.experts: one layout was wanted, found {found}")
    return layouts.pop()


def read_expert(store: Store, layer_prefix: str, expert: int, projection: str) -> np.ndarray:
    """Reads one projection of one expert from either plain layout.

    Args:
      layer_prefix: ends with a dot, as in `model.language_model.layers.0.` or `mtp.layers.0.`.
      expert: id in [0, E). projection: one of EXPERT_PROJECTIONS.
    Returns: [out, in] as stored: [F, D] for gate and up, [D, F] for down.
    Raises: CheckpointError where the expert is not there, its shape makes no sense, or the layer is quantised;
      ValueError for another projection.
    """
    info, _ = expert_info(store, layer_prefix, expert, projection)
    if len(info.shape) == 2:
        return store.read(info.name)
    (rows_OI,) = store.read_slice(info.name, expert, expert + 1)
    if projection == "down_proj":
        return rows_OI
    half = info.shape[1] // 2
    return rows_OI[:half] if projection == "gate_proj" else rows_OI[half:]


def expert_info(store: Store, layer_prefix: str, expert: int, projection: str) -> tuple[TensorInfo, tuple[int, ...]]:
    """Finds the tensor that holds one projection of one expert, and the shape that `read_expert` returns.

    Args, Raises: as `read_expert`.
    """
    if projection not in EXPERT_PROJECTIONS:
        raise ValueError(f"read_expert: no projection {projection!r}; wanted one of {', '.join(EXPERT_PROJECTIONS)}")
    separate = expert_prefix(layer_prefix, expert, projection) + ".weight"
    if separate in store:
        info = store.info(separate)
        if len(info.shape) != 2:
            raise CheckpointError(f"{info.where}: [out, in] was wanted")
        return info, info.shape
    fused = f"{layer_prefix}mlp.experts.{'down_proj' if projection == 'down_proj' else 'gate_up_proj'}"
    if fused in store:
        info = store.info(fused)
        return info, _fused_shape(info, expert, projection)
    if expert_prefix(layer_prefix, expert, projection) + ".trellis" in store:
        raise CheckpointError(f"{store.path}: {separate}: this layer's experts are EXL3: use checkpoints.exl3")
    raise CheckpointError(f"{store.path}: {separate}: no such tensor, and no {fused} either")


def _fused_shape(info: TensorInfo, expert: int, projection: str) -> tuple[int, ...]:
    """Of one slice of [E, 2F, D], gate rows before up rows, or of [E, D, F]."""
    if len(info.shape) != 3 or (projection != "down_proj" and info.shape[1] % 2):
        raise CheckpointError(f"{info.where}: fused experts are [E, 2F, D] for gate and up, [E, D, F] for down")
    if not 0 <= expert < info.shape[0]:
        raise CheckpointError(f"{info.where}: holds no expert {expert}")
    _, outputs, inputs = info.shape
    return (outputs, inputs) if projection == "down_proj" else (outputs // 2, inputs)
