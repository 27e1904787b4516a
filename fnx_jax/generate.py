"""Continues a text in the terminal, or chats: python -m fnx_jax.generate [--model=PATH] ["TEXT"]

With a text, prints its continuation (or the reply to it with --chat). Without one, chats line by line. Host side.
"""

import secrets
import sys
import threading

from absl import flags

from checkpoints.commands import DEMO, UsageError, run
from fnx_jax.engine.drafts import policy_for
from fnx_jax.engine.loop import Engine
from fnx_jax.engine.request import Emission, EngineError, Request, SamplingParams
from fnx_jax.serve.assets import read_text_assets
from fnx_jax.serve.decoder import TextDecoder

FLAGS = flags.FlagValues()
flags.DEFINE_string("model", str(DEMO), "Folder of the checkpoint.", flag_values=FLAGS)
flags.DEFINE_integer("context", None, "Positions of a prompt and its reply together.", 2, flag_values=FLAGS)
flags.DEFINE_integer("max_tokens", 256, "Reply tokens at most.", 1, flag_values=FLAGS)
flags.DEFINE_float("temperature", None, "Sampling temperature; the checkpoint's by default.", 0.0, flag_values=FLAGS)
flags.DEFINE_integer("seed", None, "Seed of the draws; a fresh one by default.", flag_values=FLAGS)
flags.DEFINE_bool("chat", False, "Treat the text as a chat message.", flag_values=FLAGS)
flags.DEFINE_bool("thinking", True, "Let a chat reply think first.", flag_values=FLAGS)
flags.DEFINE_bool("drafts", True, "Draft tokens ahead; never changes a reply.", flag_values=FLAGS)
flags.DEFINE_bool("show_ids", False, "Print the reply's token ids as well.", flag_values=FLAGS)


class Terminal:
    """One model at the terminal: text in, text out as it comes."""

    def __init__(self) -> None:
        from fnx_jax.loading import load

        self.assets = read_text_assets(FLAGS.model)
        try:
            self.model = load(FLAGS.model, lanes=1, context=FLAGS.context, draft_head=FLAGS.drafts)
        except ValueError as error:
            raise UsageError(str(error)) from error
        self.engine = Engine(self.model.steps, drafter=policy_for(self.model.steps)).start()

    def prompt_ids(self, text: str) -> tuple[int, ...]:
        """Token ids of a plain text."""
        return self.assets.tokenizer.encode(text)

    def chat_ids(self, messages: list[dict]) -> tuple[int, ...]:
        """Token ids of a conversation, rendered by the checkpoint's template."""
        if self.assets.template is None:
            raise UsageError(f"{FLAGS.model}: has no chat template")
        text = self.assets.template.render(messages, variables={"enable_thinking": FLAGS.thinking})
        return self.assets.tokenizer.encode(text)

    def reply(self, ids: tuple[int, ...]) -> str:
        """Prints a reply token by token and returns its text."""
        defaults = self.assets.generation
        temperature = defaults.get("temperature", 1.0) if FLAGS.temperature is None else FLAGS.temperature
        sampling = SamplingParams(
            temperature=temperature,
            top_k=int(defaults.get("top_k", 0) or 0),
            top_p=float(defaults.get("top_p", 1.0)),
            seed=secrets.randbits(63) if FLAGS.seed is None else FLAGS.seed,
            max_tokens=FLAGS.max_tokens,
            eos_token_ids=self.assets.eos_token_ids,
        )
        decoder, ends, pieces, shown = TextDecoder(self.assets.tokenizer), set(self.assets.eos_token_ids), [], []
        ended, failures = threading.Event(), []

        def show(emission: Emission) -> None:
            for token in emission.tokens:
                shown.append(token)
                if token not in ends:
                    pieces.append(decoder.push(token))
                    print(pieces[-1], end="", flush=True)
            if emission.finish is not None:
                failures.append(emission.finish.error)
                ended.set()

        try:
            self.engine.submit(Request("terminal", tuple(ids), sampling), show)
        except EngineError as error:
            raise UsageError(str(error)) from error
        ended.wait()
        pieces.append(decoder.flush())
        print(pieces[-1])
        if failures[0]:
            raise SystemExit(f"the reply ended: {failures[0]}")
        if FLAGS.show_ids:
            print(*shown, file=sys.stderr)
        return "".join(pieces)


def main(positional: list[str]) -> int:
    """One reply, or a conversation until the input ends."""
    if len(positional) > 1:
        raise UsageError("one text was wanted; quote it")
    terminal = Terminal()
    if positional:
        text = positional[0]
        terminal.reply(
            terminal.chat_ids([{"role": "user", "content": text}]) if FLAGS.chat else terminal.prompt_ids(text)
        )
        return 0
    messages: list[dict] = []
    for line in _lines():
        messages.append({"role": "user", "content": line})
        messages.append({"role": "assistant", "content": terminal.reply(terminal.chat_ids(messages))})
    return 0


def _lines():
    while True:
        try:
            line = input("> ")
        except EOFError:
            return
        if line.strip():
            yield line


if __name__ == "__main__":
    run(main, FLAGS)
