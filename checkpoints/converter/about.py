"""Host side: what a pack says about itself: its config, and how near its linears are to those it was made from."""

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from checkpoints.converter.quantise import Calibrator, Settings
from checkpoints.converter.texts import without_quantization
from checkpoints.converter.units import Unit
from checkpoints.converter.widths import HEAD, average_bits
from checkpoints.headers import read_header
from checkpoints.naming import MTP_PREFIX
from checkpoints.store import Store

ERRORS = "relative_error"
"""Key of a file's metadata: kind of linear -> mean and worst relative squared error and count, as JSON."""
_NUMBER = re.compile(r"\.\d+(?=\.)")


def error_summary(errors: Mapping[str, float]) -> str:
    """Mean relative squared error of the linears of one kind, numbers taken out of their names, as JSON."""
    kinds: dict[str, list[float]] = defaultdict(list)
    for name, error in errors.items():
        kinds[_NUMBER.sub(".*", name)].append(error)
    return json.dumps({kind: [sum(found) / len(found), max(found), len(found)] for kind, found in kinds.items()})


def report(folder: Path, units: list[Unit], settings: Settings) -> dict:
    """Widths and relative squared errors by kind of linear, over all files."""
    kinds: dict[str, list[list[float]]] = defaultdict(list)
    for file in sorted(folder.glob("*.safetensors")):
        for kind, found in json.loads(read_header(file)[1].get(ERRORS, "{}")).items():
            kinds[kind].append(found)
    widths: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for name, bits in settings.widths.items():
        widths[_NUMBER.sub(".*", name)][f"{bits:g}"] += 1
    return {
        "average_bits": average_bits(units, settings.widths),
        "linears": {
            kind: {
                "count": int(sum(count for _, _, count in found)),
                "bits": dict(widths[kind]),
                "relative_squared_error_mean": sum(mean * count for mean, _, count in found)
                / sum(count for _, _, count in found),
                "relative_squared_error_worst": max(worst for _, worst, _ in found),
            }
            for kind, found in sorted(kinds.items())
        },
    }


def pack_config(store: Store, units: list[Unit], settings: Settings, calibrator: Calibrator | None) -> dict:
    """The source's config with its quantization part, and an untied head: a pack has one of its own."""
    config = without_quantization(store.config or {})
    quantization = {
        "quant_method": "exl3",
        "version": settings.recipe.quantization.get("version", "1.4.4"),
        "bits": round(average_bits(units, settings.widths), 2),
        "out_scales": settings.out_scales,
        "codebook": settings.codebook,
    }
    if HEAD in settings.widths:
        quantization["head_bits"] = settings.widths[HEAD]
    draft = [bits for name, bits in settings.widths.items() if name.startswith(f"{MTP_PREFIX}layers.0.mlp.experts.")]
    if draft:
        quantization["mtp_bits"] = min(draft)
    if calibrator is not None:
        quantization["calibration"] = {"rows": calibrator.rows, "cols": calibrator.columns}
    for part in (config, config.get("text_config")):
        if isinstance(part, dict) and part.get("tie_word_embeddings"):
            part["tie_word_embeddings"] = False
    return config | {"quantization_config": quantization}
