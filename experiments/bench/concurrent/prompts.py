"""Host side: the prompts, four a workload, all to be continued as plain text. Read next: plan.py.

code: beginnings of functions. chat: a turn in the markup of the model's family. prose: paragraphs that break off.
edit: a text, and the beginning of the same text with small changes, so that most of a good reply can be copied.
"""

from collections.abc import Mapping

_USER, _MODEL = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"

_CODE = (
    '''"""Reads settings from lines of text."""

import os


class SettingError(ValueError):
    """A line that cannot be read; the message names it."""


def read_settings(path, default=None):
    """Return a dictionary of the settings in a file."""
    result = dict(default or {})
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            name, sep, value = line.partition("=")
''',
    '''class Queue:
    """A queue with a greatest size."""

    def __init__(self, maxsize=0):
        self.maxsize = maxsize
        self.items = []

    def empty(self):
        """Return True if the queue is empty."""
        return not self.items

    def put(self, item):
        """Put an item into the queue."""
        if self.maxsize > 0 and len(self.items) >= self.maxsize:
            raise Full(self.maxsize)
        self.items.append(item)

    def get(self):
        """Remove and return an item from the queue."""
''',
    """import unittest


class TestCounter(unittest.TestCase):

    def setUp(self):
        self.counter = Counter()

    def test_starts_at_zero(self):
        self.assertEqual(self.counter.value, 0)

    def test_add(self):
        self.counter.add(3)
        self.assertEqual(self.counter.value, 3)

    def test_add_negative(self):
        with self.assertRaises(ValueError):
            self.counter.add(-1)

    def test_reset(self):
""",
    '''def parse_header(line):
    """Parse a header line.

    Return the main value and a dictionary of options.
    """
    parts = line.split(";")
    key = parts.pop(0).strip()
    options = {}
    for part in parts:
        i = part.find("=")
        if i >= 0:
            name = part[:i].strip().lower()
            value = part[i + 1:].strip()
            if len(value) >= 2 and value[0] == value[-1] == '"':
''',
)

_CHAT = tuple(
    _USER + text + _MODEL
    for text in (
        "How do I read a file line by line in Python, and what happens if the file does not exist?",
        "What does the with statement do? Please give a short example with a lock and say when it is released.",
        "I have a list of names with some of them twice. How can I keep each name once and leave the order as it is?",
        "Please explain the difference between a list and a tuple, and tell me which of them can be a key of a dict.",
    )
)

_PROSE = (
    """This module defines a class for the objects that a program keeps for a long time. An object of this
class holds the values that were given when it was created, and returns them in the order in which
they were added. If a value is not found, an error is raised. The methods of the class do not change
the values themselves; they only return new objects. When the program ends, all objects that are
still open are closed, and""",
    """The function returns the number of bytes that were read. If the end of the file has been reached, it
returns zero. A negative size means that everything is to be read, which may take a long time if the
file is large. Note that the number may be smaller than the size that was asked for, even if the end
has not been reached, because""",
    """On most systems the current time is kept as the number of seconds since a fixed date. The clock may
be changed by the user while a program is running, so two calls do not always return values in
order. A program that measures how long something takes should therefore use a clock that cannot go
back. Such a clock""",
    """A name is looked up first in the local scope, then in the scopes of the functions around it, then in
the module, and last among the names that are built in. If it is found in none of them, the program
stops with an error. Names that begin with an underscore are private by convention: other modules
should not use them, because""",
)


def _edited(before: str, change: str, after: str) -> str:
    return f"# Before:\n{before}\n# After, with {change}:\n{after}"


_EDIT = (
    _edited(
        '''def area(width, height):
    """Return the area of a rectangle."""
    if width < 0 or height < 0:
        raise ValueError("a side is negative")
    return width * height


def volume(width, height, depth):
    """Return the volume of a box."""
    if depth < 0:
        raise ValueError("a side is negative")
    return area(width, height) * depth

''',
        "length in place of width",
        '''def area(length, height):
    """Return the area of a rectangle."""
    if length < 0 or height < 0:
''',
    ),
    _edited(
        """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        return self.items.pop()

    def __len__(self):
        return len(self.items)

""",
        "the name List",
        """class List:
    def __init__(self):
        self.items = []

    def push(self, item):
""",
    ),
    _edited(
        """    parser.add_argument("--input", help="file to read")
    parser.add_argument("--output", help="file to write")
    parser.add_argument("--verbose", action="store_true", help="print more")
    parser.add_argument("--quiet", action="store_true", help="print less")
    parser.add_argument("--version", action="version", version="1.0")
    args = parser.parse_args()

""",
        "another version",
        """    parser.add_argument("--input", help="file to read")
    parser.add_argument("--output", help="file to write")
""",
    ),
    _edited(
        """def test_read(self):
    with open(self.path, "rb") as file:
        data = file.read()
    self.assertEqual(data, self.data)

def test_write(self):
    with open(self.path, "wb") as file:
        count = file.write(self.data)
    self.assertEqual(count, len(self.data))

""",
        "text in place of data",
        """def test_read(self):
    with open(self.path, "rb") as file:
        text = file.read()
""",
    ),
)

PROMPTS: Mapping[str, tuple[str, ...]] = {"code": _CODE, "chat": _CHAT, "prose": _PROSE, "edit": _EDIT}
