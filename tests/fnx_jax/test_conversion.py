"""A network that was converted with the real search, and multiplied out again, is nearly the network it was."""

import numpy as np
import pytest

from checkpoints import convert, open_store, quantize
from checkpoints.commands import execute
from checkpoints.exl3 import linear_info
from fnx_jax.loading import load
from tests.fnx_jax.cases import FOLDER

CASE = "base"
IDS = np.random.default_rng(0).integers(6, 128, 48).tolist()
FACTORS = {4: 0.909, 5: 0.891, 6: 0.852}
"""What the scale search finds for Gaussian weights, which takes several times as long as the search itself."""
WIDTHS = {
    "lm_head": 6,
    "*.layers.0.linear_attn.out_proj": 6,
    "*.layers.3.self_attn.o_proj": 6,
    "*.layers.4.mlp.shared_expert.down_proj": 5,
    "mtp.fc_hidden": 4,
}
"""One linear of every kind but the routed experts, of which a layer has too many to search here."""


def run(*argv: object) -> int:
    return execute(convert.main, convert.FLAGS, ["convert", *map(str, argv)])


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted")
    lines = "".join(f'"{pattern}" = {bits}\n' for pattern, bits in WIDTHS.items())
    (folder / "own.toml").write_text(f'[bits]\n{lines}[dtypes]\n"*" = "BF16"\n[ngram_table]\nbits = 0\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantize, "find_scale", lambda tiles, bits, *_: FACTORS[int(bits)])
        assert run(FOLDER / CASE, folder / "pack", "--pad", f"--recipe={folder / 'own.toml'}") == 0
    return folder / "pack"


def test_every_linear_that_was_asked_for_is_quantised_and_loads(pack):
    with open_store(pack) as store:
        found = {name.removesuffix(".trellis") for name in store.names() if name.endswith(".trellis")}
        assert len(found) == len(WIDTHS)
        assert sorted(linear_info(store, name).bits for name in found) == sorted(WIDTHS.values())
    model = load(pack, dtype="float32", lanes=1, context=64)
    assert model.params.head.wq.dtype == np.float32 and model.config.mtp_layers == 1


def test_logits_are_nearly_those_of_the_source(pack, exact_model):
    plain = pack.parent / "plain"
    assert run(pack, plain, "--dequantize", "--dtype=F32") == 0
    found = load(plain, dtype="float32", lanes=4, context=256)
    found.steps.programs = exact_model(CASE).steps.programs  # compiled for the same shapes
    logits, wanted = found.logits(IDS), exact_model(CASE).logits(IDS)
    error = np.sqrt(np.sum((logits - wanted) ** 2) / np.sum((wanted - wanted.mean()) ** 2))
    agreement = np.mean(logits.argmax(1) == wanted.argmax(1))
    print(f"relative error of the logits {error:.4f}, top-1 agreement {agreement:.3f}")
    assert 1e-3 < error < 0.08 and agreement > 0.85
