"""What the demo is made of besides weights: sizes and configuration, tokenizer, template. Read next: sizes.py."""
