"""Host side: the model card of the trained demo, from its figures. Read next: ../demo_figures.py."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

_CARD = """---
license: apache-2.0
language: code
tags: [exl3, qwen4_exp, demo]
---

# fnx_jax demo

A `qwen4_exp` model small enough to live in the repository, in EXL3, served when no `--model` is given. It has every
part of a full pack: recurrent and sparse attention layers, four residual streams, routed and shared experts, the hashed
n-gram table in its own file, a draft head, a tokenizer and a chat template. It continues Python the way Python is
written; it answers no questions.

- **Size.** {network:.1f} M parameters, the draft head among them, and {table:.1f} M in the n-gram table.
- **Trained on** the standard library of Python {python}: {train:.2f} M tokens of code and docstrings, about a tenth of
  them conversations made from its functions; {held_out:.2f} M tokens of other modules are held out.
- **Written by** `python -m experiments.train_demo` (training), then `python -m experiments.demo_figures` (this folder
  and every figure below).
- **Chat template.** Turns, thinking, tools and tool results in the markup of the Qwen family; the wording is our own.
- **Licence.** Apache-2.0, as the rest of the project; the library it learnt from is under the PSF licence.

## How well it predicts held-out code

| | loss, nats a token | perplexity | bits a byte | top-1 agreement with bf16 | KL, nats a token |
| --- | --- | --- | --- | --- | --- |
{losses}

{verdict} The packs of 2, 3 and 4 bits have every linear at that width and the n-gram table in bf16; LDLQ feeds errors
back through what the layers read of {calibration} windows of training text.

![losses while training](losses.svg)

## How many drafts it accepts

Of a chain of drafts on the model's own continuations of held-out code; each share is of those whose forerunners were
accepted.

| | {depths} |
| --- |{rules}
{drafts}

## Which experts it uses

Shares of held-out picks; even would be {even:.3f}.

| layer | least | most | effective number |
| --- | --- | --- | --- |
{experts}
"""


def model_card(figures: Mapping[str, Any]) -> str:
    """README.md of the folder, from what `Figures.measure` returns."""
    chains = {
        f"{name}, {'greedy' if how == 'temperature_0' else 'temperature 1'}": shares
        for name, key in (("bf16", "accepted_bf16"), ("this pack", "accepted_demo"))
        for how, shares in figures[key].items()
    }
    deepest = len(next(iter(chains.values())))
    return _CARD.format(
        network=figures["parameters"]["network"] / 1e6,
        table=figures["parameters"]["table"] / 1e6,
        train=figures["tokens"]["train"] / 1e6,
        held_out=figures["tokens"]["held_out"] / 1e6,
        python=figures["python"],
        losses="\n".join(_losses(figures)),
        verdict=_verdict(figures["bf16"]["loss"], figures["trigram"]),
        calibration=figures["calibration"],
        depths=" | ".join(f"draft {depth}" for depth in range(1, deepest + 1)),
        rules=" --- |" * deepest,
        drafts="\n".join(_row(name, [f"{share:.2f}" for share in shares]) for name, shares in chains.items()),
        even=1 / len(figures["experts"][0]),
        experts="\n".join(_row(str(layer), _usage(shares)) for layer, shares in enumerate(figures["experts"])),
    )


def _losses(figures: Mapping[str, Any]) -> list[str]:
    named = {"3-gram with back-off": {"loss": figures["trigram"]}, "bf16": figures["bf16"]}
    for bits in (4, 3, 2):
        named |= {
            f"{bits} bits, LDLQ": figures[f"bits_{bits}"],
            f"{bits} bits, no LDLQ": figures[f"bits_{bits}_no_ldlq"],
        }
    named["this pack"] = figures["demo"]
    rows = []
    for name, found in named.items():
        loss = found["loss"]
        byte = loss / math.log(2) / figures["bytes_per_token"]
        near = [f"{found[key]:.3f}" if key in found else "" for key in ("agreement", "kl")]
        rows.append(_row(name, [f"{loss:.3f}", f"{math.exp(loss):.1f}", f"{byte:.2f}", *near]))
    return rows


def _verdict(ours: float, trigram: float) -> str:
    side = "below" if ours < trigram else "above"
    return (
        f"The loss in bf16 is {abs(ours - trigram):.3f} nats a token {side} that of an interpolated Kneser-Ney 3-gram "
        "model of the same training text."
    )


def _usage(shares: Sequence[float]) -> list[str]:
    entropy = -sum(share * math.log(share) for share in shares if share > 0)
    return [f"{min(shares):.3f}", f"{max(shares):.3f}", f"{math.exp(entropy):.1f} of {len(shares)}"]


def _row(name: str, cells: Sequence[str]) -> str:
    return "| " + " | ".join([name, *cells]) + " |"
