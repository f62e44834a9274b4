"""A task of our own through lm-eval itself. Run by the named step `lm-eval`, whose packages are many."""

import json
from pathlib import Path

import lm_eval
import pytest
from lm_eval.api.registry import get_model

import kvant
from kvant.lm_eval import KvantLM

COLOURS = ["red", "blue", "green", "white"]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory):
    """Forty questions: the likeliest of four endings, and a text to be continued."""
    folder = tmp_path_factory.mktemp("task")
    items = [{"q": f"Question {n}: what has the number {n * 3}? It is", "gold": n % 4} for n in range(40)]
    (folder / "items.jsonl").write_text("\n".join(json.dumps(item) for item in items))
    common = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "items.jsonl")}},
        "test_split": "test",
        "doc_to_text": "{{q}}",
        "target_delimiter": " ",
    }
    choice = {
        **common,
        "task": "kvant_colours",
        "output_type": "multiple_choice",
        "doc_to_choice": COLOURS,
        "doc_to_target": "gold",
        "metric_list": [{"metric": "acc"}],
    }
    continued = {
        **common,
        "task": "kvant_continue",
        "output_type": "generate_until",
        "doc_to_target": "{{gold}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4},
        "metric_list": [{"metric": "exact_match"}],
    }
    return [choice, continued]


def test_a_task_of_forty_items(tasks, folder: Path, engine: kvant.Engine):
    assert get_model("kvant") is KvantLM
    found = lm_eval.simple_evaluate(
        model=KvantLM(engine), tasks=tasks, bootstrap_iters=0, log_samples=True, verbosity="ERROR"
    )
    samples = found["samples"]["kvant_colours"]
    assert len(samples) == 40 and len(found["samples"]["kvant_continue"]) == 40
    right = 0
    for sample in samples:
        question = sample["doc"]["q"]
        ids = engine.tokenize(question)
        scores = [sum(engine.score(engine.tokenize(f"{question} {colour}"), len(ids))[0]) for colour in COLOURS]
        right += scores.index(max(scores)) == sample["doc"]["gold"]
    assert found["results"]["kvant_colours"]["acc,none"] == pytest.approx(right / 40)
