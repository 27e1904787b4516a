"""Host side: a radix tree over token ids: which stored sequence is the longest beginning of a given one.

An edge holds a run of tokens, so that a tree of long prompts has few nodes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from jaxtyping import Int

V = TypeVar("V")
Tokens = Int[np.ndarray, " T"]


@dataclass
class _Node(Generic[V]):
    """edge: tokens on the way from the parent. values: what is stored here, one or none. children: by first token."""

    edge: np.ndarray
    values: list[V] = field(default_factory=list)
    children: dict[int, "_Node[V]"] = field(default_factory=dict)


class RadixTree(Generic[V]):
    """Values by sequences of token ids, int32 arrays that nobody writes again."""

    def __init__(self):
        self._root: _Node[V] = _Node(np.zeros(0, np.int32))

    def insert(self, tokens: Tokens, value: V) -> None:
        """Stores a value. Raises KeyError where the sequence has one, or is empty."""
        node, at = self._root, 0
        while at < len(tokens):
            child = node.children.get(int(tokens[at]))
            if child is None:
                child = node.children[int(tokens[at])] = _Node(tokens[at:])
            same = shared_length(child.edge, tokens[at:])
            if same < len(child.edge):
                child = _split(node, child, same)
            node, at = child, at + same
        if node.values or node is self._root:
            raise KeyError(f"{len(tokens)} tokens are stored already, or none")
        node.values.append(value)

    def remove(self, tokens: Tokens) -> V:
        """Takes a value out. Raises KeyError where the sequence has none."""
        path = self._path(tokens)
        if path is None or not path[-1].values:
            raise KeyError(f"{len(tokens)} tokens are not stored")
        value = path[-1].values.pop()
        _tidy(path)
        return value

    def get(self, tokens: Tokens) -> V | None:
        """Returns the value of exactly this sequence."""
        path = self._path(tokens)
        return path[-1].values[0] if path is not None and path[-1].values else None

    def longest(self, tokens: Tokens) -> V | None:
        """Returns the value of the longest stored sequence that `tokens` begins with, itself included."""
        found = None
        for node, _, whole in self._walk(tokens):
            if whole and node.values:
                found = node.values[0]
        return found

    def shared(self, tokens: Tokens) -> int:
        """Returns how many tokens at the front are also the front of a stored sequence."""
        return max((length for _, length, _ in self._walk(tokens)), default=0)

    def __iter__(self) -> Iterator[V]:
        """All values, in no particular order."""
        left = [self._root]
        while left:
            node = left.pop()
            yield from node.values
            left.extend(node.children.values())

    def _walk(self, tokens: Tokens) -> Iterator[tuple[_Node[V], int, bool]]:
        """The nodes on the way of `tokens`, how many of these agree up to each, and whether all of its edge does."""
        node, at = self._root, 0
        while at < len(tokens) and (child := node.children.get(int(tokens[at]))) is not None:
            same = shared_length(child.edge, tokens[at:])
            node, at = child, at + same
            yield node, at, same == len(child.edge)
            if same < len(child.edge):
                return

    def _path(self, tokens: Tokens) -> list[_Node[V]] | None:
        path, length = [self._root], 0
        for node, agreed, whole in self._walk(tokens):
            if not whole:
                return None
            path.append(node)
            length = agreed
        return path if length == len(tokens) else None


def shared_length(first: Tokens, second: Tokens) -> int:
    """Returns how many tokens two sequences share at their front."""
    most = min(len(first), len(second))
    differs = np.flatnonzero(first[:most] != second[:most])
    return int(differs[0]) if len(differs) else most


def _split(parent: _Node[V], child: _Node[V], at: int) -> _Node[V]:
    """Puts a node in the middle of an edge."""
    middle: _Node[V] = _Node(child.edge[:at], children={int(child.edge[at]): child})
    parent.children[int(child.edge[0])] = middle
    child.edge = child.edge[at:]
    return middle


def _tidy(path: list[_Node[V]]) -> None:
    """Removes the last node of a path where it holds nothing, and joins edges that part no longer."""
    node, parent = path[-1], path[-2]
    if not node.values and not node.children:
        del parent.children[int(node.edge[0])]
        if len(path) > 2:
            _join(parent)
    else:
        _join(node)


def _join(node: _Node[V]) -> None:
    if node.values or len(node.children) != 1:
        return
    (child,) = node.children.values()
    node.edge = np.concatenate([node.edge, child.edge])
    node.values, node.children = child.values, child.children
