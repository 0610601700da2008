"""An HTML page that shades each token by its probability: the darker, the more likely."""

from __future__ import annotations

import html
from collections.abc import Sequence

_PAGE = """<!DOCTYPE html> <html lang="en"><head><meta charset="utf-8"><title>Extractable
training text</title><style> body
{{ font: 16px/1.9 sans-serif; max-width: 46em; margin: 2em auto; padding: 0 1em }} p
{{ margin: 1.2em 0; white-space: pre-wrap }} i {{ color: #777; font-style: normal }} span
{{ padding: .1em 0 }} small {{ color: #666 }} </style></head><body>
<h1>Extractable training text</h1>
<p><small>Given the grey text, {sampler} may emit the rest. The darker a token, the more likely
the model is to emit it. This page contains the secrets themselves: do not share it.</small></p>
{records} </body></html>
"""

Shaded = tuple[int, str, str, Sequence[str], Sequence[float]]


def shaded_words(tokens: Sequence[str], probabilities: Sequence[float]) -> str:
    """Return the tokens as HTML, each shaded by its probability."""
    return "".join(
        f'<span title="{probability:.3g}" style="background:rgba(200,60,20,{probability:.2f})">'
        f"{html.escape(token)}</span>"
        for token, probability in zip(tokens, probabilities, strict=True)
    )


def shaded_page(found: Sequence[Shaded], sampler: str) -> str:
    """Return the page: each secret's record number, tries, given text and tokens."""
    records = "\n".join(
        f"<p><small>Record {record}, {html.escape(said)}</small><br>"
        f"<i>{html.escape(given[-300:])}</i>{shaded_words(tokens, probabilities)}</p>"
        for record, said, given, tokens, probabilities in found
    )
    return _PAGE.format(sampler=html.escape(sampler), records=records)
