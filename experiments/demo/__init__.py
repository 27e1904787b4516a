"""What `experiments.make_demo` is made of: sizes, tokenizer, template, tensors, files. Read next: sizes.py."""
