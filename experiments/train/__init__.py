"""What `experiments.train_demo` is made of: corpus, network for batches, losses, training, packing, figures.

Read next: corpus.py (what is learnt), network.py (the model over batches), run.py (the training itself).
"""
