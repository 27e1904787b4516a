"""Host side: a checkpoint of any kind, checked and ready to be loaded. Read next: loading.py, prepared.py."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoints import open_store
from checkpoints.errors import CheckpointError
from checkpoints.headers import parse_object
from checkpoints.inventory import check
from checkpoints.naming import language_prefix
from checkpoints.norms import check_norms
from checkpoints.outlines import NGRAM_FILE
from checkpoints.store import Store
from fnx_jax.families import FAMILIES, Family
from fnx_jax.families.flash_next.load import parameter_bytes
from fnx_jax.families.flash_next.reading import Arithmetic, Progress, Source, StoreSource
from fnx_jax.prepared import PreparedSource, is_prepared, read_about, require_arithmetic


@dataclass(frozen=True)
class Checkpoint:
    """What loading needs to know.

    path: its folder. config: the parsed config.json. prefix: of the text model's names. mtp_layers: of the draft head.
    digest: of the files of safetensors that it is, or was made from. rows: the store of n-gram tables, None without
    one. source: of leaves. leaf_bytes: of which a source tells, with or without a draft head.
    """

    path: Path
    config: dict[str, Any]
    family: Family
    prefix: str
    mtp_layers: int
    digest: str
    rows: Store | None
    source: Callable[[Arithmetic, Progress], Source]
    leaf_bytes: Callable[[bool], int]

    def close(self) -> None:
        """Closes the store of tables."""
        if self.rows is not None:
            self.rows.close()


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Opens an EXL3 pack, a plain checkpoint in either naming, or a prepared one; reads headers and norms alone.

    Raises: CheckpointError naming what is wrong.
    """
    path = Path(path)
    if is_prepared(path):
        return _prepared(path)
    store = open_store(path)
    try:
        if store.config is None:
            raise CheckpointError(f"{store.path}: config.json is missing")
        family = _family(path, store.config)
        inventory = check(store)
        check_norms(store)
        return Checkpoint(
            path=store.path,
            config=store.config,
            family=family,
            prefix=language_prefix(store),
            mtp_layers=inventory.mtp_layers,
            digest=store.digest(),
            rows=store,
            source=lambda arithmetic, progress: StoreSource(store, arithmetic, progress),
            leaf_bytes=lambda with_mtp: parameter_bytes(store, inventory, with_mtp),
        )
    except BaseException:
        store.close()
        raise


def _prepared(path: Path) -> Checkpoint:
    about = read_about(path)
    try:
        config = parse_object((path / "config.json").read_bytes(), str(path / "config.json"))
    except OSError as error:
        raise CheckpointError(f"{path / 'config.json'}: cannot read: {error.strerror}") from error
    family = _family(path, config)

    def source(arithmetic: Arithmetic, progress: Progress) -> Source:
        require_arithmetic(path, about, arithmetic)
        return PreparedSource(path, about, progress)

    return Checkpoint(
        path=path,
        config=config,
        family=family,
        prefix=about.prefix,
        mtp_layers=about.mtp_layers,
        digest=about.digest,
        rows=open_store(path / NGRAM_FILE) if (path / NGRAM_FILE).exists() else None,
        source=source,
        leaf_bytes=lambda with_mtp: sum(n for part, n in about.nbytes.items() if with_mtp or part != "draft"),
    )


def _family(path: Path, config: dict[str, Any]) -> Family:
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        raise CheckpointError(f"{path}: unsupported model_type {model_type!r}; known: {', '.join(FAMILIES)}")
    return FAMILIES[model_type]
