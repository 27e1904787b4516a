"""Host side: from tokens to rows of the n-gram tables. Hashing needs 64-bit integers, so it stays off the device.

The mixing itself is `pallas_kernels.ngram_mix`.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from checkpoints.ngram import NgramTable


@dataclass(frozen=True)
class NgramTables:
    """One table an n-gram layer, in layer order; `eos` ends what a hash looks back to."""

    tables: tuple[NgramTable, ...]
    eos: int

    def embeddings(
        self, token_B: Int[np.ndarray, " B"], history_BN: Int[np.ndarray, "B N"]
    ) -> Float[np.ndarray, "B layers E"]:
        """Looks up each row's n-grams in every table, hash heads side by side. float32.

        history_BN: the tokens before each row, newest first, -1 before the start.
        """
        tokens = np.concatenate([token_B[:, None], history_BN], axis=1)
        rows = [table.lookup(table.row_ids(tokens, self.eos)) for table in self.tables]
        flat = [row.reshape(len(token_B), -1).astype(np.float32) for row in rows]
        return np.stack(flat, axis=1) if flat else np.zeros((len(token_B), 0, 0), np.float32)
