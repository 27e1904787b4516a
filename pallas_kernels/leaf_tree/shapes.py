"""Host side: the expert sums of the real model, by name, and small ones for tests."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """experts, leaves: of the tree. active: slots of a row. hidden: width of what is added."""

    experts: int
    leaves: int
    active: int
    hidden: int


SHAPES = {"layer": Shape(experts=512, leaves=64, active=10, hidden=2560)}

SMALL_SHAPES = {
    "many_leaves": Shape(experts=512, leaves=64, active=10, hidden=5),
    "few_leaves": Shape(experts=8, leaves=4, active=5, hidden=3),
    "one_expert_a_leaf": Shape(experts=4, leaves=4, active=3, hidden=2),
    "one_leaf": Shape(experts=3, leaves=1, active=3, hidden=2),
}
