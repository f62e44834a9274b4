"""Batches: rows of files, answered in blocks by engines on many machines."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class BatchReport:
    """What a run came to."""

    #: Blocks of rows in all, and those that an earlier run had finished.
    blocks: int
    skipped: int
    #: Rows answered by this run, and by which engine.
    rows: int
    by_engine: dict[str, int]
    #: The files, in the order of the rows.
    files: list[Path]


def generate_files(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    model: str,
    *,
    replicas: int = 1,
    threads: int = 1,
    block: int = 64,
    together: int = 8,
    sampling: Mapping[str, Any] | None = None,
    **options: Any,
) -> BatchReport:
    """Answers every row of jsonl and parquet files, `block` rows to a file `part-00000.jsonl` … in the folder `output`.

    A row has `prompt`, or `messages` in OpenAI's form; what else it has is kept, and `text`, `finish_reason` and the token counts are
    added. `replicas` engines of `threads` cores each take blocks as they get free, and answer `together` rows of one at a time.
    `sampling` are the options of `Engine.generate`, further `options` those of `Engine.open`.

    A file is there whole or not at all. A run that was broken off goes on with the missing ones when it is started again with the
    same inputs and blocks; the folder remembers which those were and refuses others.
    """
    import ray.data

    files = [Path(file) for file in ([inputs] if isinstance(inputs, str | os.PathLike) else inputs)]
    if not files:
        raise ValueError("no input files")
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    plan = {"inputs": [str(file) for file in files], "block": block, "model": str(model), "sampling": dict(sampling or {})}
    _same_plan(folder / "batch.json", plan)
    spans = [(file, start) for file in files for start in range(0, _rows(file), block)]
    jobs = [
        {"at": at, "file": str(file), "start": start, "to": str(folder / f"part-{at:05}.jsonl")}
        for at, (file, start) in enumerate(spans)
    ]
    missing = [job for job in jobs if not Path(job["to"]).exists()]
    counts: dict[str, int] = {}
    if missing:
        blocks = ray.data.from_items(missing, override_num_blocks=len(missing))
        arguments = (str(model), {"threads": threads, **options}, dict(sampling or {}), block, together)
        # All engines begin together, and so do as much as each other.
        ray.data.DataContext.get_current().wait_for_min_actors_s = 600
        engines = ray.data.ActorPoolStrategy(size=replicas, max_tasks_in_flight_per_actor=1)
        done = blocks.map_batches(
            _Answers, fn_constructor_args=arguments, batch_size=1, compute=engines, num_cpus=threads
        )
        for row in done.take_all():
            counts[row["engine"]] = counts.get(row["engine"], 0) + int(row["rows"])
    return BatchReport(len(jobs), len(jobs) - len(missing), sum(counts.values()), counts, [Path(job["to"]) for job in jobs])


def _same_plan(path: Path, plan: dict[str, Any]) -> None:
    if not path.exists():
        _write(path, json.dumps(plan, indent=1))
    elif json.loads(path.read_text()) != plan:
        raise ValueError(f"{path} says that this folder holds the answers of another batch: choose another folder, or remove it")


def _rows(file: Path) -> int:
    if file.suffix == ".parquet":
        import pyarrow.parquet

        return pyarrow.parquet.read_metadata(file).num_rows
    with file.open("rb") as lines:
        return sum(1 for line in lines if line.strip())


def _read(file: Path, start: int, count: int) -> list[dict[str, Any]]:
    if file.suffix == ".parquet":
        import pyarrow.parquet

        return pyarrow.parquet.read_table(file).slice(start, count).to_pylist()
    with file.open(encoding="utf-8") as lines:
        rows = [line for line in lines if line.strip()]
    return [json.loads(line) for line in rows[start : start + count]]


def _write(path: Path, text: str) -> None:
    """A file that is there whole or not at all."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


class _Answers:
    """An engine in an actor of Ray Data, which answers one block at a time."""

    def __init__(
        self, model: str, options: dict[str, Any], sampling: dict[str, Any], block: int, together: int
    ) -> None:
        import kvant

        self._engine = kvant.Engine.open(model, **options)
        self._sampling, self._block, self._together = sampling, block, together
        self._name = secrets.token_hex(4)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        counts = []
        for file, start, to in zip(batch["file"], batch["start"], batch["to"], strict=True):
            rows = _read(Path(str(file)), int(start), self._block)
            # Rows that are answered at a time share the engine's passes.
            with ThreadPoolExecutor(self._together) as pool:
                answers = list(pool.map(self._answer, rows))
            _write(Path(str(to)), "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in answers))
            counts.append(len(rows))
        return {"engine": [self._name] * len(counts), "rows": counts}

    def _answer(self, row: dict[str, Any]) -> dict[str, Any]:
        if "messages" in row:
            stream: Any = self._engine.chat_stream(row["messages"], row.get("tools") or (), **self._sampling)
            reply = stream.read()
            said = {"text": reply.text, "finish_reason": reply.finish_reason}
            if reply.reasoning:
                said["reasoning"] = reply.reasoning
            if reply.tool_calls:
                said["tool_calls"] = [{"name": call.name, "arguments": call.arguments} for call in reply.tool_calls]
        elif "prompt" in row:
            stream = self._engine.generate(row["prompt"], **self._sampling)
            said = {"text": stream.read(), "finish_reason": stream.finish_reason}
        else:
            raise ValueError(f"a row has neither prompt nor messages: it has {', '.join(row) or 'nothing'}")
        usage = stream.usage
        return {**row, **said, "prompt_tokens": usage.prompt, "cached_tokens": usage.cached, "generated_tokens": usage.generated}
