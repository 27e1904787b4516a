"""Host side: conversations made from a module's own functions, so that the demo knows how turns begin and end.

    user: the first sentence of a function's docstring.  thinking: its name.  answer: its source

Read next: batches.py.
"""

import ast
import textwrap
from collections.abc import Iterator

from experiments.demo.template import CHAT_TEMPLATE
from experiments.train.corpus import Module
from fnx_jax.serve.template import ChatTemplate

MOST_LINES, MOST_SIGNS = 24, 900
"""The longest function worth an answer."""


def conversations(modules: tuple[Module, ...]) -> list[str]:
    """One rendered conversation a function that has a docstring and is short enough, in the modules' order."""
    template = ChatTemplate(CHAT_TEMPLATE)
    return [
        template.render([{"role": "user", "content": question}, answer], add_generation_prompt=False)
        for module in modules
        for question, answer in _turns(module)
    ]


def _turns(module: Module) -> Iterator[tuple[str, dict[str, str]]]:
    try:
        tree = ast.parse(module.text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not ast.get_docstring(node):
            continue
        source = ast.get_source_segment(module.text, node, padded=True) or ""
        sentence = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
        if source.count("\n") < MOST_LINES and len(source) < MOST_SIGNS and 8 < len(sentence) < 200:
            code = f"```python\n{textwrap.dedent(source)}\n```"
            thought = f"This is {node.name} of {module.name}."
            yield sentence, {"role": "assistant", "reasoning_content": thought, "content": code}
