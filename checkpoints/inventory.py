"""Host side: accounts for every tensor of a checkpoint, from headers alone, before anything is loaded.

What config.json implies must be there in exactly one form, and nothing else may be, except the vision tower, which is
counted and left alone. Read next: architecture.py (what there is), wants.py (in which forms).
"""

from dataclasses import dataclass, field

from checkpoints.architecture import Experts, Linear, Plain, Table, configured_mtp_layers, parts
from checkpoints.errors import CheckpointError
from checkpoints.exl3 import MARKERS, SCALE_PAIRS, check_quantization, is_linear
from checkpoints.naming import MTP_PREFIX, language_prefix, names_under, text_config
from checkpoints.store import Store
from checkpoints.wants import Want, expert_wants, linear_wants, plain_wants, table_wants

VISION_PREFIX = "model.visual."
_SHOWN = 3


@dataclass(frozen=True)
class Inventory:
    """What a checkpoint has to hold, in the forms that it chose.

    prefix: the text model's, dot included. text: the text part of its config. mtp_layers: of the draft head, 0 where
    there is none. tensors: every tensor of text model and draft head, with what its header must say. tables: n-gram
    tables. vision: names of the vision tower's tensors.
    """

    prefix: str
    text: dict
    mtp_layers: int
    tensors: dict[str, Want]
    tables: tuple[Table, ...]
    vision: tuple[str, ...]


@dataclass(frozen=True)
class Faults:
    """What does not fit: lines by kind, each starting with a tensor's name."""

    missing: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    unwanted: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Returns all of them: what is missing, then what is wrong, then what should not be there."""
        return [*self.missing, *self.wrong, *self.unwanted]

    def summary(self) -> str:
        """Returns the first few of each kind in one line, and how many more there are."""
        shown = [line for kind in (self.missing, self.wrong, self.unwanted) for line in kind[:_SHOWN]]
        more = len(self.lines()) - len(shown)
        return "; ".join(shown) + (f"; and {more} more" if more else "")


def check(store: Store) -> Inventory:
    """Holds a store against its config: every tensor there, in one form, with its shape and kind of dtype.

    Raises: CheckpointError for a config that is missing, not of this architecture or not of a known quantization; or,
      naming the first few tensors with what was wanted and found, where tensors are missing, misshapen, of a wrong
      dtype, in two forms at once, or unknown.
    """
    inventory = expected(_config(store), store)
    faults = compare(inventory, store)
    if count := len(faults.lines()):
        what = "1 tensor does" if count == 1 else f"{count} tensors do"
        raise CheckpointError(f"{store.path}: {what} not fit config.json: {faults.summary()}")
    return inventory


def expected(config: dict, store: Store) -> Inventory:
    """Lists what a store must hold for a config; each part in the form of which the store has anything.

    Args:
      config: the parsed config.json. store: only its names and headers are used.
    Raises: CheckpointError where the config is not of this architecture, incomplete, or of an unknown quantization, and
      where the store has no text model, two namings, or no draft head though the config has one.
    """
    text, prefix = text_config(config), language_prefix(store)
    marker = _marker(config, store)
    tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))
    mtp_layers = _mtp_layers(text, store)
    tensors: dict[str, Want] = {}
    tables: list[Table] = []
    for part in parts(text, prefix, mtp_layers):
        match part:
            case Plain():
                tensors.update(plain_wants(part))
            case Linear():
                if not (tied and part.name == "lm_head" and not names_under(store, "lm_head.")):
                    tensors.update(linear_wants(store, part, marker))
            case Experts():
                tensors.update(expert_wants(store, part, marker))
            case Table():
                tensors.update(table_wants(store, part))
                tables.append(part)
    return Inventory(prefix, text, mtp_layers, tensors, tuple(tables), names_under(store, VISION_PREFIX))


def compare(inventory: Inventory, store: Store) -> Faults:
    """Returns every difference between what a store must hold and what its headers say."""
    faults = Faults()
    for name, want in inventory.tensors.items():
        if name not in store:
            faults.missing.append(f"{name}: missing, {want} was wanted")
        elif not want.accepts(info := store.info(name)):
            found = f"{info.dtype} {list(info.shape)} in {info.file.name}"
            faults.wrong.append(f"{name}: {want} was wanted, found {found}")
    known = inventory.tensors.keys() | set(inventory.vision)
    faults.unwanted.extend(f"{name}: {_why_unwanted(name, store)}" for name in store.names() if name not in known)
    return faults


def _why_unwanted(name: str, store: Store) -> str:
    """Tells a second form of something known from something unknown."""
    module, _, ending = name.rpartition(".")
    twins = {a: b for pair in (*SCALE_PAIRS, tuple(MARKERS)) for a, b in (pair, pair[::-1])}
    if ending == "weight" and is_linear(store, module):
        return f"a plain weight, but {module}.trellis or its scales are there as well"
    if ending in twins and f"{module}.{twins[ending]}" in store:
        return f"{twins[ending]} is there as well; a layer has one of them"
    if ending == "scale":
        return "belongs to a pre-release format that is not EXL3"
    if ".mlp.experts." in name:
        return "an expert that the config does not have, or one that fused tensors hold already"
    if ".ngram_embedding." in name:
        return "a second form of the n-gram table, or a shard too many"
    return "an unknown tensor"


def _config(store: Store) -> dict:
    if store.config is None:
        raise CheckpointError(f"{store.path}: no config.json, and without it no tensor can be accounted for")
    return store.config


def _marker(config: dict, store: Store) -> str | None:
    """The codebook whose marker every EXL3 layer must have: the config's, else that of any marker in the store.

    A layer that lost its marker would be read as 3inst without an error; one marker anywhere says that the writer set
    them. None where the config names 3inst or nothing has a marker.
    """
    codebook = (check_quantization(config) or {}).get("codebook")
    if codebook is not None:
        return codebook if codebook in MARKERS else None
    endings = (name.rpartition(".")[2] for name in store.names())
    return next((ending for ending in endings if ending in MARKERS), None)


def _mtp_layers(text: dict, store: Store) -> int:
    """Layers of the draft head: the config's number, else that of the tensors present."""
    layers, present = configured_mtp_layers(text), names_under(store, MTP_PREFIX)
    if layers and not present:
        raise CheckpointError(
            f"{store.path}: no {MTP_PREFIX}* tensor, but config.json has mtp_num_hidden_layers {layers}; "
            f"set it to 0 to do without a draft head"
        )
    if layers or not present:
        return layers
    numbers = (name.split(".")[2] for name in present if name.startswith(f"{MTP_PREFIX}layers."))
    return 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)
