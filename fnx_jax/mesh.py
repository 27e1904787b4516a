"""Host and traced side: the device mesh, how leaves lie on it, and the one wrapper around jax.shard_map.

A leaf is either the same on every rank, or *dealt*: a stack with one entry a rank, split along its first axis. Inside a
program a rank sees its own entry, without that axis. With one device nothing is stacked and nothing is wrapped.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fnx_jax.axes import RANKS

SAME, DEALT = PartitionSpec(), PartitionSpec(RANKS)


def make_mesh(ranks: int) -> Mesh:
    """The first `ranks` devices of all processes. Raises ValueError where there are fewer, or none is this one's."""
    devices = jax.devices()
    if ranks > len(devices):
        more = "; a CPU stands for as many as the jax option jax_num_cpu_devices says, set before jax is used"
        hint = more if devices[0].platform == "cpu" else ""
        raise ValueError(f"devices={ranks}, but this machine has {len(devices)}{hint}")
    if all(device.process_index != jax.process_index() for device in devices[:ranks]):
        raise ValueError(f"devices={ranks}, which leaves none of this process's own")
    return Mesh(np.array(devices[:ranks]), (RANKS,))


def own_ranks(mesh: Mesh) -> tuple[int, ...]:
    """The ranks whose devices this process drives: all of them, unless there are several processes."""
    process = jax.process_index()
    return tuple(rank for rank, device in enumerate(mesh.devices.flat) if device.process_index == process)


def place_same(value: Any, mesh: Mesh) -> jax.Array:
    """Puts one value on every rank. With several processes each brings the same; nothing checks that it does."""
    own, sharding = own_ranks(mesh), NamedSharding(mesh, SAME)
    if len(own) == mesh.size:
        return jax.device_put(value, sharding)
    arrays = [jax.device_put(value, mesh.devices.flat[rank]) for rank in own]
    return jax.make_array_from_single_device_arrays(arrays[0].shape, sharding, arrays)


def place_dealt(parts: Sequence[Any], mesh: Mesh) -> jax.Array:
    """Puts part r on rank r alone; parts have one shape. A single part is the same on every rank, unstacked.

    A part of another process's rank is not looked at.
    """
    if len(parts) == 1:
        return place_same(parts[0], mesh)
    arrays = [jax.device_put(parts[rank][None], mesh.devices.flat[rank]) for rank in own_ranks(mesh)]
    shape = (mesh.size, *arrays[0].shape[1:])
    return jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, DEALT), arrays)


def zeros(shape: tuple[int, ...], dtype: Any, spec: PartitionSpec, mesh: Mesh) -> jax.Array:
    """One rank's zeros of `shape` on every rank, as one leaf laid out by `spec`."""
    stacked = (mesh.size, *shape) if spec == DEALT else shape
    return jnp.zeros(stacked, dtype, device=NamedSharding(mesh, spec))


def layout(tree: Any) -> Any:
    """The PartitionSpec of every leaf: DEALT where a placed leaf is dealt, SAME for all else."""
    return jax.tree.map(lambda leaf: DEALT if _is_dealt(leaf) else SAME, tree)


def on_ranks(f: Callable[..., Any], mesh: Mesh, results: Callable[..., Any], donate: tuple[int, ...] = ()) -> Any:
    """Compiles `f`, written for one rank, to run on all of them.

    Args:
      results: takes the layouts of f's arguments and returns that of its results, whole or by prefixes.
      donate: arguments whose buffers the results may take over.
    Returns: a function of placed or host arrays. One program is compiled for each layout it meets.
    """
    if mesh.size == 1:
        return jax.jit(f, donate_argnums=donate)
    programs: dict[Any, Any] = {}
    # CPU devices share one pool of threads: programs that wait for each other's ranks could hold all of it.
    wait = jax.block_until_ready if mesh.devices.flat[0].platform == "cpu" else lambda results: results

    def call(*arguments: Any) -> Any:
        leaves, tree = jax.tree.flatten(arguments)
        key = (tree, tuple(map(_is_dealt, leaves)))
        if key not in programs:
            programs[key] = jax.jit(_mapped(f, mesh, layout(arguments), results), donate_argnums=donate)
        return wait(programs[key](*arguments))

    return call


def _mapped(f: Callable[..., Any], mesh: Mesh, specs: tuple, results: Callable[..., Any]) -> Callable[..., Any]:
    out_specs = results(*specs)

    def one_rank(*arguments: Any) -> Any:
        local = jax.tree.map(lambda leaf, spec: leaf[0] if spec == DEALT else leaf, arguments, specs)
        out = f(*local)
        return jax.tree.map(
            lambda spec, part: jax.tree.map(lambda leaf: leaf[None], part) if spec == DEALT else part,
            out_specs,
            out,
            is_leaf=lambda value: isinstance(value, PartitionSpec),
        )

    # check_vma: jax cannot see that gathered roots give every rank the same sum.
    return jax.shard_map(one_rank, mesh=mesh, in_specs=specs, out_specs=out_specs, check_vma=False)


def _is_dealt(leaf: Any) -> bool:
    sharding = getattr(leaf, "sharding", None)
    return isinstance(sharding, NamedSharding) and sharding.spec == DEALT
