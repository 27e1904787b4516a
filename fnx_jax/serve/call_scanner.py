"""Host side: the grammar of one tool call, read as far as the text goes.

    <tool_call> <function=NAME> ( <parameter=KEY> VALUE </parameter> )* </function> </tool_call>

White space is free between the tags. Read next: tools.py, which owns the text around calls.
"""

import re
from typing import Literal, cast

from fnx_jax.serve.markup import Markup

Verdict = Literal["more", "call", "broken"]
FUNCTION, PARAMETER, PARAMETER_END, FUNCTION_END = "<function=", "<parameter=", "</parameter>", "</function>"
LONGEST_NAME = 256
BLANK = re.compile(r"\s*")
NAME_END = re.compile(r"[>\n<]")


class CallScanner:
    """Scans a text that holds the opening tag of a call at `start`.

    Call `scan` with the text so far; it goes on where it stopped. After "call" or "broken", `at` is where the call
    ends or the first character that can't belong to one.

    name: the function, once read. parameters: key to raw text, in the order of the keys.
    """

    def __init__(self, markup: Markup, start: int = 0):
        self.at = start + len(markup.call_open)
        self.name: str | None = None
        self.parameters: dict[str, str] = {}
        self._close = markup.call_close
        self._whole_end = re.compile(rf"{re.escape(FUNCTION_END)}\s*{re.escape(markup.call_close)}")
        self._expect = self._function
        self._key = ""
        self._search = 0
        self._loose: int | None = None

    def scan(self, text: str) -> Verdict:
        """Reads on. Returns "more" where the text ends inside the call."""
        while True:
            verdict = self._expect(text)
            if verdict != "next":
                return cast(Verdict, verdict)

    def spoken(self, text: str) -> int:
        """How much of the text belongs to this call whatever follows, should it turn out broken."""
        return len(text) if self._expect == self._value else self.at

    def _tag(self, text: str, *tags: str, start: int | None = None) -> tuple[str, int]:
        """The tag at `start` after blanks and where it ends; "more" or "broken" where there is none."""
        begin = BLANK.match(text, self.at if start is None else start).end()  # type: ignore[union-attr]
        for tag in tags:
            if text.startswith(tag, begin):
                return tag, begin + len(tag)
        rest = text[begin : begin + max(map(len, tags))]
        return ("more" if any(tag.startswith(rest) for tag in tags) else "broken"), begin

    def _function(self, text: str) -> str:
        tag, end = self._tag(text, FUNCTION)
        return self._step(tag, end, self._function_name)

    def _function_name(self, text: str) -> str:
        name, verdict = self._name(text)
        if name is not None:
            self.name, self._expect = name, self._body
        return verdict

    def _body(self, text: str) -> str:
        tag, end = self._tag(text, PARAMETER, FUNCTION_END)
        return self._step(tag, end, self._parameter_key if tag == PARAMETER else self._end)

    def _parameter_key(self, text: str) -> str:
        name, verdict = self._name(text)
        if name is not None:
            self._key, self._expect = name, self._value
            self._search, self._loose = self.at, None
        return verdict

    def _value(self, text: str) -> str:
        """A closing tag ends the value only where the call goes on after it, so that values may quote the tag."""
        at = text.find(PARAMETER_END, self._search)
        if self._loose is not None:
            broken = self._whole_end.search(text, self._loose, len(text) if at < 0 else at)
            if broken:
                self.at = broken.end()
                return "broken"
        if at < 0:
            self._search = max(self._search, len(text) - len(PARAMETER_END) + 1)
            return "more"
        after = at + len(PARAMETER_END)
        tag, _ = self._tag(text, PARAMETER, FUNCTION_END, start=after)
        if tag == "more":
            return "more"
        if tag == "broken":
            self._search = self._loose = after
            return "next"
        self.parameters[self._key] = text[self.at : at].removeprefix("\n").removesuffix("\n")
        self.at, self._expect = after, self._body
        return "next"

    def _end(self, text: str) -> str:
        tag, end = self._tag(text, self._close)
        if tag != "more":
            self.at = end
        return "call" if tag == self._close else tag

    def _step(self, tag: str, end: int, then) -> str:
        if tag != "more":
            self.at = end
        if tag in ("more", "broken"):
            return tag
        self._expect = then
        return "next"

    def _name(self, text: str) -> tuple[str | None, str]:
        found = NAME_END.search(text, self.at, self.at + LONGEST_NAME)
        if found is None and len(text) - self.at < LONGEST_NAME:
            return None, "more"
        if found is None or found.group() != ">" or found.start() == self.at:
            self.at = found.start() if found else self.at + LONGEST_NAME
            return None, "broken"
        name, self.at = text[self.at : found.start()], found.end()
        return name, "next"
