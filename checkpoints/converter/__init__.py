"""Host side: the steps of `python -m checkpoints.convert`. NumPy, but for what quantize.py and a calibrator bring.

workplace.py (where a result grows), units.py (what goes into which file), repack.py, dequantise.py, quantise.py (one
way each), widths.py (bits), verify.py. The door is checkpoints/convert.py.
"""
