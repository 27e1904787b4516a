"""Host side: makes this process one of several in JAX's eyes. Before any backend starts."""

import jax
import numpy as np

from fnx_jax.collectives import gather_columns
from fnx_jax.collectives import rank as rank_here
from fnx_jax.mesh import SAME, make_mesh, on_ranks, place_same
from fnx_jax.ranks.errors import Disagreement
from fnx_jax.ranks.group import Group

PATIENCE_S = 7 * 24 * 3600
"""JAX aborts a process whose peers are silent; the ranks' own links notice far earlier, and end in order."""


def start_distributed(group: Group, address: str, local_device: int) -> None:
    """Joins the processes' devices into one list, one device each.

    Args: address: HOST:PORT of the coordination service, which rank 0 starts there. local_device: which of this host's.
    Raises: RuntimeError where the service cannot be reached, or a backend is up.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_num_cpu_devices", 1)
    # It would take over SIGTERM.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        coordinator_address=address,
        num_processes=group.ranks,
        process_id=group.rank,
        local_device_ids=[local_device],
        cluster_detection_method="deactivate",
        initialization_timeout=int(group.join_s),
        heartbeat_timeout_seconds=PATIENCE_S,
        shutdown_timeout_seconds=1,
        coordinator_bind_address=address,
    )


def meet(ranks: int) -> None:
    """Starts the backend and runs a first collective while all ranks are here, for its connections are soon given up.

    Raises: ValueError where ranks have not one device each; Disagreement where those are unlike.
    """
    devices = jax.devices()
    if [device.process_index for device in devices] != list(range(ranks)):
        raise ValueError(f"{len(devices)} devices on {ranks} ranks, one each was wanted")
    for rank, device in enumerate(devices):
        if device.device_kind != devices[0].device_kind:
            kinds = f"{devices[0].device_kind} on rank 0, {device.device_kind} on rank {rank}"
            raise Disagreement(f"device: {kinds}")
    mesh = make_mesh(ranks)
    gather = on_ranks(lambda zero_1: gather_columns(zero_1[None] + rank_here(ranks), ranks), mesh, lambda layout: SAME)
    there = np.asarray(gather(place_same(np.zeros(1, np.int32), mesh)))[0].tolist()
    if there != list(range(ranks)):
        raise RuntimeError(f"ranks {there} answered, {list(range(ranks))} were wanted")
