"""Host side: the trained checkpoint in EXL3 at several widths, made by `checkpoints.convert`. Read next: figures.py."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True)
class Pack:
    """name: of its folder. flags: the converter's, for widths. calibrated: whether errors are fed back (LDLQ)."""

    name: str
    flags: tuple[str, ...]
    calibrated: bool


RECIPE = Path(__file__).with_name("demo.toml")
DEMO = Pack("demo", (f"--recipe={RECIPE}",), True)


def compared(bits: int, calibrated: bool) -> Pack:
    """Every linear at one width, the n-gram table as it is."""
    name = f"bits_{bits}" + ("" if calibrated else "_no_ldlq")
    return Pack(name, (f"--bits={bits}", f"--head_bits={bits}", f"--mtp_bits={bits}", "--ngram_bits=0"), calibrated)


def convert(source: Path, out: Path, pack: Pack, calibration_BT: Int[np.ndarray, "B T"]) -> Path:
    """Makes a pack of a plain checkpoint where it is not there yet; its folder. Raises where the converter fails."""
    if out.exists():
        return out
    flags = ["--pad", "--shared_scales", *pack.flags]
    if pack.calibrated:
        rows = out.parent / "calibration.npy"
        np.save(rows, calibration_BT.reshape(-1))
        flags += [
            f"--calibration={rows}",
            f"--calibration_rows={len(calibration_BT)}",
            f"--calibration_columns={calibration_BT.shape[1]}",
        ]
    subprocess.run([sys.executable, "-m", "checkpoints.convert", str(source), str(out), *flags], check=True)
    return out


def dequantised(source: Path, out: Path) -> Path:
    """A pack multiplied out, in float32, where it is not there yet; its folder."""
    if not out.exists():
        flags = ["--dequantize", "--dtype=F32"]
        subprocess.run([sys.executable, "-m", "checkpoints.convert", str(source), str(out), *flags], check=True)
    return out
