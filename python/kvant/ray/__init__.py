"""Many machines through Ray: one engine per replica, and batches of texts in blocks.

Serving (`pip install "ray[serve]"`):

>>> from ray import serve
>>> from kvant.ray import application
>>> serve.run(application("smollm2-135m", replicas=4, threads=8))     # doctest: +SKIP

gives OpenAI's routes on Ray Serve's port. Conversations stay with the replica that holds their beginning, and a replica that dies
loses no answer: another one begins it again with the same seed, which gives the same text, and goes on where it broke off.

Batches (`pip install "ray[data]"`):

>>> from kvant.ray import generate_files
>>> generate_files("questions.jsonl", "answers", "smollm2-135m", replicas=4)     # doctest: +SKIP

writes a file per block of rows. Started again, it goes on with the blocks that are missing.
"""

from .batch import BatchReport, generate_files

__all__ = ["BatchReport", "application", "generate_files"]


def __getattr__(name: str) -> object:
    # Serving and batches need different parts of Ray, and either may be absent.
    if name == "application":
        from .serve import application

        return application
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
