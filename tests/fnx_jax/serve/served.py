"""A server process for the tests of signals: python -m tests.fnx_jax.serve.served DRAIN_S ROUND_S."""

import sys
import time

from fnx_jax.engine.fake import Faults
from fnx_jax.serve.runner import run_server
from fnx_jax.serve.settings import ServerSettings
from tests.fnx_jax.serve.support import Script, fake_model


def main() -> int:
    """Serves slowly, ROUND_S seconds a round."""
    script = Script()
    script.say(None)
    settings = ServerSettings(port=0, drain_s=float(sys.argv[1]))

    def load(start):
        time.sleep(0.1)
        return fake_model(script, start, faults=Faults(sleep_s=float(sys.argv[2])))

    return run_server(settings, load, say=lambda line: print(line, flush=True))


if __name__ == "__main__":
    sys.exit(main())
