"""Runs every cell of a notebook, and sees to it that its last figure is one.

    python run_notebook.py NOTEBOOK

With KVANT_WRITE_NOTEBOOK=1 the notebook is kept with what its cells have said.
"""

import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

#: Figures and texts together, in bytes: a notebook that is kept is read by people.
LARGEST = 60_000


def main(path: Path) -> None:
    start = time.monotonic()
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=1800, kernel_name="python3", resources={"metadata": {"path": path.parent}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    figures = [output.data["image/png"] for cell in cells for output in cell.outputs if "image/png" in output.get("data", {})]
    if not figures:
        sys.exit(f"{path}: there is no figure")
    for cell in notebook.cells:
        # When each cell began and ended is noise.
        cell.metadata = {}
    kept = nbformat.writes(notebook)
    if len(kept.encode()) > LARGEST:
        sys.exit(f"{path}: {len(kept.encode())} bytes with its outputs, and {LARGEST} are allowed")
    if os.environ.get("KVANT_WRITE_NOTEBOOK"):
        path.write_text(kept.rstrip("\n") + "\n", encoding="utf-8")
    # As pytest would say it, so that `cargo xtask test` counts cells.
    print(f"{len(cells)} passed in {time.monotonic() - start:.2f}s")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
