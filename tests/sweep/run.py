"""The sweep as a program: prints one JSON object, context -> {op: entries whose bits differ}.

`--noflags` leaves the backend flags out, to see what they are for. A process has one setting: the flags are read when
a backend starts.
"""

import json
import os
from collections.abc import Sequence

import jax
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_bool("flags", True, "start the backend with the flags that the model is served with")
flags.DEFINE_list("ops", [], "names of cases; all by default")
flags.DEFINE_list("contexts", [], "names of contexts; all by default")


def main(argv: Sequence[str]) -> None:
    del argv
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    if FLAGS.flags:
        from fnx_jax import backend

        backend.configure()
    else:
        os.environ.pop("XLA_FLAGS", None)
    jax.devices()
    from tests.sweep.compare import all_cases, differing
    from tests.sweep.contexts import CONTEXTS

    cases = all_cases()
    chosen = {name: cases[name] for name in FLAGS.ops or cases}
    print(json.dumps({context: differing(chosen, context) for context in FLAGS.contexts or CONTEXTS}, indent=1))


if __name__ == "__main__":
    app.run(main)
