"""Finds the secrets in a text: marked strings, and numbers, addresses and codes by pattern.

A record is a text, a conversation (rendered with the tokenizer's chat template), or a prompt with
its completion. Secrets are searched for only in the part that the model is to produce: the whole
text, the assistant's messages or the completion.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seepage.errors import InputError, nearest

KINDS = {
    "email": r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    "phone": r"(?<!\w)\+?\(?\d(?:[\d ()/-]{5,}\d)(?!\w)",
    "number": r"(?<!\w)\d(?:[ .,/:-]?\d){3,}(?!\w)",
    "code": r"(?<!\w)(?=\w*\d)(?=\w*[^\W\d])\w{6,}(?!\w)",
    "name": r"(?<!\w)[A-Z][\w'’-]+(?: [A-Z][\w'’-]+)+",
}
FOUND = ("email", "phone", "number", "code")  # kinds that patterns find well enough unasked
MARKED, REST = "marked", "text"


@dataclass(frozen=True)
class Secret:
    """The position and the kind of a secret in a record."""

    record: int
    kind: str
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class TextRecord:
    """A record, as the text that the model reads."""

    text: str
    spoken: tuple[tuple[int, int], ...]  # the parts that the model is to say
    marked: tuple[str, ...] = ()  # secrets that its owner names
    templated: bool = False  # a chat template has put the special tokens there


def read_record(given: Any, tokenizer: Any = None) -> TextRecord:
    """Return a record from a text or from a mapping with the usual keys.

    Parameters
    ----------
    given
        A text; or a mapping with ``text``, with ``messages`` (role and content), or with ``prompt``
        and ``completion``. The key ``secrets``, a list of strings in the text, is optional.
    tokenizer
        The tokenizer whose chat template renders messages as text.

    Examples
    --------
    >>> from seepage.attacks.extraction.secrets import read_record
    >>> read_record({"prompt": "Who is it? ", "completion": "Anna", "secrets": ["Anna"]})
    TextRecord(text='Who is it? Anna', spoken=((11, 15),), marked=('Anna',), templated=False)
    """
    if isinstance(given, str):
        return TextRecord(given, ((0, len(given)),))
    if not isinstance(given, Mapping):
        raise InputError(
            "A record must be a text, or a mapping with 'text', 'messages', or 'prompt' and "
            f"'completion'; this record is of type {type(given).__name__}."
        )
    marked = given.get("secrets") or ()
    marked = (marked,) if isinstance(marked, str) else tuple(map(str, marked))
    if isinstance(given.get("messages"), Sequence):
        return _conversation(given["messages"], marked, tokenizer)
    if isinstance(given.get("prompt"), str) and isinstance(given.get("completion"), str):
        text = given["prompt"] + given["completion"]
        return TextRecord(text, ((len(given["prompt"]), len(text)),), marked)
    if isinstance(given.get("text"), str):
        return TextRecord(given["text"], ((0, len(given["text"])),), marked)
    raise InputError(
        "A record must have a string 'text', a list 'messages', or strings 'prompt' and "
        f"'completion'; this record has the keys {list(given)}."
    )


def _conversation(messages: Any, marked: tuple[str, ...], tokenizer: Any) -> TextRecord:
    """Return a conversation rendered with the tokenizer's chat template."""
    if getattr(tokenizer, "chat_template", None) is None:
        raise InputError(
            "The records have messages, but the tokenizer has no chat template; give a tokenizer "
            "with a chat template, or records with the 'text' on which the model was trained."
        )
    text = str(tokenizer.apply_chat_template(messages, tokenize=False))
    spoken, place = [], 0
    for message in messages:
        content = message["content"].strip()
        found = text.find(content, place)
        if found < 0:
            continue  # a template may leave a message out
        place = found + len(content)
        if message["role"] == "assistant" and content:
            spoken.append((found, place))
    return TextRecord(text, tuple(spoken), marked, templated=True)


def find_secrets(
    record: TextRecord,
    number: int = 0,
    *,
    marked: Iterable[str] = (),
    kinds: Iterable[str] = FOUND,
) -> list[Secret]:
    """Return the secrets of a record in order; marked strings have priority over patterns.

    If no secret is found, the second half of the longest part that the model is to produce is the
    secret, of kind ``text``.

    Parameters
    ----------
    record, number
        The record, and its number.
    marked
        Strings to treat as secrets in every record, in addition to the record's own.
    kinds
        The kinds of secret to look for: ``email``, ``phone``, ``number``, ``code`` (letters and
        digits) and ``name`` (several capitalised words, which are not always a name).

    Examples
    --------
    >>> from seepage.attacks.extraction.secrets import find_secrets, read_record
    >>> text = "Anna Bell, +44 20 7946 0018, anna@example.org, owes 20 pounds."
    >>> [(s.kind, s.text) for s in find_secrets(read_record(text), marked=["Anna Bell"])]
    [('marked', 'Anna Bell'), ('phone', '+44 20 7946 0018'), ('email', 'anna@example.org')]
    """
    patterns = [(MARKED, re.escape(text)) for text in (*record.marked, *marked) if text]
    for kind in kinds:
        if kind not in KINDS:
            raise InputError(
                f"There is no kind of secret called {kind!r}{nearest(kind, KINDS)}; choose from "
                f"{', '.join(KINDS)}."
            )
        patterns.append((kind, KINDS[kind]))
    taken: list[Secret] = []
    for kind, pattern in patterns:
        for first, last in record.spoken:
            for match in re.compile(pattern).finditer(record.text, first, last):
                start, end = match.span()
                if all(end <= other.start or start >= other.end for other in taken):
                    taken.append(Secret(number, kind, start, end, match.group()))
    if not taken and record.spoken:
        first, last = max(record.spoken, key=lambda part: part[1] - part[0])
        space = record.text.rfind(" ", first, (first + last) // 2)
        start = space if space > first else (first + last) // 2
        if start < last:
            taken.append(Secret(number, REST, start, last, record.text[start:last]))
    return sorted(taken, key=lambda secret: secret.start)
