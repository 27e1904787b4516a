"""Host side: a program's surroundings, in a process whose backend was started without the flags. Prints JSON.

python -m experiments.prove.controls.unflagged
"""

import json
import os
from unittest.mock import patch

import jax


def main() -> None:
    """Starts a backend before the package can set its flags, and runs the check that it would refuse to run."""
    os.environ.pop("XLA_FLAGS", None)
    jax.config.update("jax_platforms", "cpu")
    jax.devices()
    from fnx_jax import backend

    with patch.object(backend, "require", lambda: None):
        from experiments.prove.controls.surroundings import surroundings

        print(json.dumps({"missing": backend.flags_missing(os.environ), "found": surroundings()}))


if __name__ == "__main__":
    main()
