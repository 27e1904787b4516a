"""Host side: the steps between a matrix of weights and an EXL3 layer. NumPy, but for the search (search.py).

In order: feedback.py (the Hessian), regularise.py (signs, scales, rotations), scale.py (one factor for the codebook),
ldlq.py (tiles searched with the errors of later rows), refit.py (scales again), tiles.py (words). ngram.py is the same
for rows of an n-gram table. The door is checkpoints/quantize.py.
"""
