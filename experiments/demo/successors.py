"""Host side: which tokens follow a token in the planted text. Read next: tensors.py.

Every token gets a first, a second and a third successor, after pairs that real text holds. The first ones form one
cycle through all text tokens, so that text that follows them does not return to a token soon.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int

Pairs = Sequence[tuple[int, int]]


def frequent_pairs(documents: Iterable[Sequence[int]], allowed: Sequence[int]) -> Pairs:
    """Pairs of neighbouring allowed ids, most frequent first; equal counts go to the lower pair."""
    span = max(allowed) + 1
    keep = np.zeros(span, bool)
    keep[list(allowed)] = True
    codes = []
    for document in documents:
        ids = np.asarray(document, np.int64)
        ids = np.where(ids < span, ids, -1)
        good = (ids >= 0) & keep[ids]
        codes.append((ids[:-1] * span + ids[1:])[good[:-1] & good[1:]])
    code, count = np.unique(np.concatenate(codes), return_counts=True)
    code = code[np.argsort(-count, kind="stable")]
    return list(zip((code // span).tolist(), (code % span).tolist(), strict=True))


def one_cycle(pairs: Pairs, ids: Sequence[int]) -> dict[int, int]:
    """Joins pairs, first come first served, into a single cycle through all `ids`."""
    after: dict[int, int] = {}
    preceded: set[int] = set()
    end_of = {i: i for i in ids}  # of every chain: its first member -> its last, and back
    for a, b in pairs:
        if a in after or b in preceded or end_of[a] == b:
            continue
        after[a] = b
        preceded.add(b)
        first, last = end_of[a], end_of[b]
        end_of[first], end_of[last] = last, first
    heads = [i for i in ids if i not in preceded]
    tails = [end_of[i] for i in heads]
    after.update(zip(tails, heads[1:] + heads[:1], strict=True))
    return after


def matching(pairs: Pairs, ids: Sequence[int], taken: Sequence[dict[int, int]]) -> dict[int, int]:
    """Gives every id one successor, each used once; as far as pairs reach, neither itself nor one of `taken`."""
    after: dict[int, int] = {}
    preceded: set[int] = set()
    for a, b in pairs:
        if a != b and a not in after and b not in preceded and all(other[a] != b for other in taken):
            after[a] = b
            preceded.add(b)
    rest = [i for i in ids if i not in preceded]
    after.update(zip([i for i in ids if i not in after], rest[1:] + rest[:1], strict=True))
    return after


def successors(
    pairs: Pairs,
    ids: Sequence[int],
    vocabulary: int,
    breaks: dict[int, int],
    after_break: int,
    rng: np.random.Generator,
) -> Int[np.ndarray, "V 3"]:
    """First, second and third successor of every id of the vocabulary.

    Args:
      pairs: most frequent first. ids: the text tokens; ids outside are followed by random ones of them.
      breaks: token that interrupts text (an end of turn) -> how many text tokens it is the second successor of.
      after_break: the only successor of those.
    """
    first = one_cycle(pairs, ids)
    second = matching(pairs, ids, [first])
    third = matching(pairs, ids, [first, second])
    table = rng.choice(np.asarray(ids), (vocabulary, 3))
    for column, after in enumerate((first, second, third)):
        table[list(after), column] = list(after.values())
    hosts = rng.choice(np.asarray(ids), sum(breaks.values()), replace=False)
    table[hosts, 1] = np.repeat(list(breaks), list(breaks.values()))
    table[list(breaks)] = after_break
    return table
