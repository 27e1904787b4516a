"""Host side: the demo's model card. Read next: ../make_demo.py."""

import platform

HEAD = """---
license: apache-2.0
language: code
tags: [exl3, qwen4_exp, demo]
---

# fnx_jax demo

A `qwen4_exp` model small enough to live in the repository, in EXL3, served when no `--model` is given. It has every
part of a full pack: recurrent and sparse attention layers, four residual streams, routed and shared experts, the hashed
n-gram table in its own file, a draft head, a tokenizer and a chat template."""
"""How every card of a demo begins, up to what the model knows."""

_CARD = (
    HEAD
    + """ It knows nothing: use it to try the server,
to test clients, and to check that tokens depend on the prompt, the parameters and the seed alone.

- **Weights.** Random, but for one planted thing: the embedding of a token points at the head rows of three tokens that
  may follow it, and the draft head passes the embedding on. So text is made of likely pairs of tokens, the rest of the
  network chooses among them, and many drafts are accepted. Widths are mixed, {bits:.2f} bits a weight on average; every
  layer's own tensors say its width.
- **Tokenizer.** Byte-level BPE, trained on the standard library of Python {python}. The last rows of the vocabulary
  have no token, as in the full model.
- **Chat template.** Turns, thinking, tools and tool results in the markup of the Qwen family; the wording is our own.
- **Written by** `python -m experiments.make_demo`: the same Python version and seed give the same bytes.
- **Licence.** Apache-2.0, as the rest of the project.
"""
)


def model_card(bits: float) -> str:
    """README.md of the folder. `bits`: average width of the decoder layers' weights."""
    return _CARD.format(bits=bits, python=".".join(platform.python_version_tuple()[:2]))
