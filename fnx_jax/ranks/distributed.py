"""Host side: makes this process one of several in JAX's eyes. Before any backend starts."""

import jax

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
