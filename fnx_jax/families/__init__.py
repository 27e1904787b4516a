"""Host side: the families of models that the rest can run, one line each."""

from dataclasses import dataclass
from typing import Any, Protocol

from fnx_jax.families.flash_next import bits, cache, config, forward, load, mtp, shards


class Ngrams(Protocol):
    """Rows of n-gram tables, looked up on the host; see flash_next.ngram_embedding."""

    def embeddings(self, token_B: Any, history_BN: Any) -> Any:
        """float32 [B, layers, E]."""
        ...


@dataclass(frozen=True)
class Family:
    """The few functions that lanes and the loader call; signatures as in flash_next."""

    read_config: Any
    place_params: Any
    cpu_params: Any
    open_ngrams: Any
    deal: Any
    empty_cache: Any
    cache_layout: Any
    cache_kinds: Any
    commit: Any
    forward_rows: Any
    final_hidden: Any
    head_logits: Any
    whole_logits: Any
    vocabulary_slices: Any
    draft_params: Any
    with_draft_mixer: Any
    draft_plane: Any
    with_draft_plane: Any
    absorb_rows: Any
    draft_rows: Any
    draft_logits: Any
    draft_slices: Any


FLASH_NEXT = Family(
    read_config=config.read_config,
    place_params=load.place_params,
    cpu_params=bits.pools_as_bits,
    open_ngrams=load.open_ngrams,
    deal=shards.deal,
    empty_cache=cache.empty_cache,
    cache_layout=cache.cache_layout,
    cache_kinds=cache.cache_kinds,
    commit=cache.commit,
    forward_rows=forward.forward_rows,
    final_hidden=forward.final_hidden,
    head_logits=forward.head_logits,
    whole_logits=forward.whole_logits,
    vocabulary_slices=shards.vocabulary_slices,
    draft_params=mtp.draft_params,
    with_draft_mixer=mtp.with_draft_mixer,
    draft_plane=mtp.draft_plane,
    with_draft_plane=mtp.with_draft_plane,
    absorb_rows=mtp.absorb_rows,
    draft_rows=mtp.draft_rows,
    draft_logits=mtp.draft_logits,
    draft_slices=shards.draft_slices,
)

FAMILIES = {"qwen4_exp": FLASH_NEXT, "qwen4_exp_text": FLASH_NEXT}

__all__ = ["FAMILIES", "FLASH_NEXT", "Family", "Ngrams"]
