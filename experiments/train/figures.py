"""Host side: every figure of the demo's card, from the trained checkpoint.

Each is kept as soon as it is known, so that a run that is stopped goes on. Read next: card.py.
"""

import json
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

import fnx_jax
from checkpoints.store import open_store
from experiments.eval import fidelity, perplexity
from experiments.train import held_out, packs
from experiments.train.acceptance import accepted, continuations
from experiments.train.backoff import backoff
from experiments.train.batches import Batches, NgramHash, ngram_hash
from experiments.train.export import learner, parameters, read_checkpoint
from experiments.train.folders import write_whole
from experiments.train.lesson import Lesson
from experiments.train.run import Trained
from experiments.train.steps import token_parts
from fnx_jax.model import Model


@dataclass(frozen=True)
class Sample:
    """How much is measured. windows, length: of held-out text for losses. choice_windows: of them for top-1 agreement.

    prompts, prompt, reply: continuations for drafts, and tokens of their prompts and replies. depths: of chains.
    calibration: windows of training text for the quantiser.
    """

    windows: int = 32
    length: int = 512
    choice_windows: int = 8
    prompts: int = 16
    prompt: int = 64
    reply: int = 64
    depths: int = 4
    calibration: int = 32


@dataclass(frozen=True)
class Figures:
    """Measures what work/figures.json does not hold yet.

    plain: the trained checkpoint's folder. work: of figures and packs, those of this checkpoint and sample alone.
    """

    lesson: Lesson
    plain: Path
    work: Path
    sample: Sample
    seed: int

    def measure(self) -> dict[str, Any]:
        """All figures by name; losses are nats a token.

        python: the version whose library was learnt. calibration: windows that the quantiser saw.
        """
        hash_, trained = ngram_hash(self.lesson.config), read_checkpoint(self.plain, self.lesson.config)
        text = held_out.windows(self.lesson.held_out, self.sample.windows, self.sample.length)
        self._keep("python", lambda: ".".join(platform.python_version_tuple()[:2]))
        self._keep("calibration", lambda: self.sample.calibration)
        self._keep("parameters", lambda: _sizes(trained))
        self._keep("tokens", lambda: {"train": len(self.lesson.train), "held_out": len(self.lesson.held_out)})
        self._keep("bytes_per_token", lambda: self.lesson.held_out_bytes / len(self.lesson.held_out))
        self._keep("trigram", lambda: self._trigram(text))
        self._keep("experts", lambda: _usage(trained, self.lesson, hash_, text))
        self._keep("bf16", lambda: self._reference(text))
        for bits in (2, 3, 4):
            for calibrated in (True, False):
                pack = packs.compared(bits, calibrated)
                self._keep(pack.name, partial(self._pack, pack, text))
        self._keep(packs.DEMO.name, partial(self._pack, packs.DEMO, text))
        self._keep("accepted_bf16", lambda: self._drafts(trained, self.plain, hash_))
        folder = packs.dequantised(self.work / packs.DEMO.name, self.work / "demo_plain")
        multiplied = read_checkpoint(folder, self.lesson.config)
        self._keep("accepted_demo", lambda: self._drafts(multiplied, self.work / packs.DEMO.name, hash_))
        return self._read()

    def pack(self, pack: packs.Pack) -> Path:
        """The folder of a pack, which is made where it is not there yet. Raises where the converter fails."""
        hash_, sample = ngram_hash(self.lesson.config), self.sample
        batches = Batches(self.lesson.train, hash_, sample.calibration, sample.length, self.seed)
        return packs.convert(self.plain, self.work / pack.name, pack, batches.batch(0).token[:, :-1])

    def _trigram(self, text: held_out.Windows) -> float:
        return held_out.backoff_loss(backoff(self.lesson.train, self.lesson.config.vocabulary), text)

    def _reference(self, text: held_out.Windows) -> dict[str, float]:
        model = self._load(self.plain)
        some_BT = text.token_BT[: self.sample.choice_windows]
        fidelity.write_reference(cast(fidelity.Logits, model), some_BT, self.lesson.config.vocabulary, self._logits)
        return {"loss": perplexity.evaluate(model, text.token_BT).nats}

    def _pack(self, pack: packs.Pack, text: held_out.Windows) -> dict[str, float]:
        model = self._load(self.pack(pack))
        with open_store(self._logits) as reference:
            near = fidelity.evaluate(cast(fidelity.Logits, model), reference)
        nats = perplexity.evaluate(model, text.token_BT).nats
        return {"loss": nats, "agreement": near.agreement, "kl": near.kl}

    def _drafts(self, trained: Trained, folder: Path, hash_: NgramHash) -> dict[str, list[float]]:
        model, sample = self._load(folder), self.sample
        prompts = held_out.windows(self.lesson.held_out, sample.prompts, sample.prompt).token_BT
        found = {}
        for temperature in (0.0, 1.0):
            token_BT = continuations(model, prompts, sample.reply, temperature)
            shares = accepted(trained, self.lesson.config, hash_, token_BT, sample.prompt, sample.depths, temperature)
            found[f"temperature_{temperature:g}"] = list(shares)
        return found

    def _load(self, folder: Path) -> Model:
        return fnx_jax.load(folder, lanes=8, context=self.sample.length, draft_head=False)

    def _keep(self, name: str, find: Callable[[], Any]) -> Any:
        known = self._read()
        if name not in known:
            known[name] = find()
            write_whole(self._file, json.dumps(known, indent=1) + "\n")
            print(json.dumps({name: known[name]}), flush=True)
        return known[name]

    def _read(self) -> dict[str, Any]:
        return json.loads(self._file.read_text("utf-8")) if self._file.exists() else {}

    @property
    def _logits(self) -> Path:
        return self.work / "reference.safetensors"

    @property
    def _file(self) -> Path:
        return self.work / "figures.json"


def _sizes(trained: Trained) -> dict[str, int]:
    return {"network": parameters(trained.params), "table": int(trained.table.size)}


def _usage(trained: Trained, lesson: Lesson, hash_: NgramHash, text: held_out.Windows) -> list[list[float]]:
    """The share of held-out picks of each expert, by layer."""
    batches = Batches(lesson.held_out, hash_, 8, text.token_BT.shape[1], 0)
    last = len(lesson.held_out) - text.token_BT.shape[1] - 1
    places = np.linspace(0, last, 16).astype(np.int64).reshape(2, 8)
    main, config = learner(trained), lesson.config
    found = [np.asarray(token_parts(main, batches.at(first), config)["share"]) for first in places]
    return np.mean(found, axis=0).round(4).tolist()
