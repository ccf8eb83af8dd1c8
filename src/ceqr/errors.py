"""What is a user's mistake, what is the disk's, and the sentence about an unknown name."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the user can mend: one sentence that says what is wrong and what would be right."""


class StorageFailed(OSError):
    """The system refused to write a file: one sentence that says which and why, what stands, and how to go on."""


def nearest(kind: str, given: str, known: Iterable[str]) -> str:
    """The sentence about an unknown name: what was probably meant, and what there is."""
    known = tuple(known)
    close = difflib.get_close_matches(given, known, n=1, cutoff=0.4)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"Unknown {kind} {given!r}{hint}; known are {', '.join(known)}."
