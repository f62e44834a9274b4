"""The blocks of Python that a page of the documentation shows."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def block(page: str, word: str) -> str:
    """The one block of a page that has this word in it."""
    blocks = [rest.split("```")[0] for rest in (ROOT / page).read_text(encoding="utf-8").split("```python\n")[1:]]
    (found,) = [block for block in blocks if word in block]
    return found
