"""Host side: the steps of `python -m checkpoints.convert`. NumPy, but for what quantize.py and a calibrator bring.

workplace.py (where a result grows), units.py (what goes into which file), repack.py, dequantise.py, quantise.py (one
way each), widths.py (bits), storage.py (a pack's list of its tensors), verify.py. searches.py counts the work of one
without doing it. The door is checkpoints/convert.py.
"""
