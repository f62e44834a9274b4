"""Two replicas on this machine, with the real Ray: `cargo xtask test ray` runs these."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import kvant
from kvant.ray.prefixes import BLOCK, PrefixMap, beginnings

ray = pytest.importorskip("ray", reason="ray is not installed")
httpx = pytest.importorskip("httpx", reason="httpx is not installed")

PORT = 8123
GREEDY = {"temperature": 0, "max_tokens": 40}


def opening(talk: int) -> list[dict[str, str]]:
    """The first turn of a conversation: longer than a page of the cache."""
    return [{"role": "user", "content": f"Conversation {talk}: " + "the sky is wide and blue, " * 4}]


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=6, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def served(cluster, folder: Path):
    from ray import serve

    from kvant.ray import application

    serve.start(http_options={"port": PORT})
    serve.run(application(str(folder), replicas=2, name="tiny", kv="int4", ctx=384))
    with httpx.Client(base_url=f"http://127.0.0.1:{PORT}", timeout=120) as client:
        yield client
    serve.shutdown()


@pytest.fixture(scope="module")
def alone(folder: Path):
    with kvant.Engine.open(folder, kv="int4", ctx=384, threads=1) as engine:
        yield engine


def ask(client, messages, **fields):
    answer = client.post("/v1/chat/completions", json={"messages": messages, **GREEDY, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_answers_are_those_of_one_engine(served, alone) -> None:
    for talk in range(6):
        reply = ask(served, opening(talk))
        assert (reply["choices"][0]["message"]["content"] or "") == alone.chat(opening(talk), **GREEDY).text
        assert reply["usage"]["completion_tokens"] <= 40
    texts = served.post("/v1/completions", json={"prompt": "The sky", **GREEDY}).json()
    assert texts["choices"][0]["text"] == alone.generate("The sky", **GREEDY).read()
    assert served.get("/v1/models").json()["data"][0]["id"] == "tiny"


def test_a_stream_tells_the_same_in_pieces(served, alone) -> None:
    body = {"messages": opening(77), "stream": True, **GREEDY}
    with served.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    events = [json.loads(line) for line in lines]
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert text == alone.chat(opening(77), **GREEDY).text
    assert events[-1]["choices"][0]["finish_reason"] in ("stop", "length")


def test_bad_requests_are_refused_in_words(served) -> None:
    for body, word in [({}, "messages"), ({"messages": [{"role": "user", "content": "x"}], "n": 2}, "n must be 1")]:
        answer = served.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert word in answer.json()["error"]["message"]


def test_turns_of_a_conversation_find_their_beginning(served) -> None:
    talks = {talk: opening(talk) for talk in range(100, 112)}
    found = []

    def turn(talk: int) -> None:
        reply = ask(served, talks[talk], max_tokens=12)
        if len(talks[talk]) > 1:
            found.append(reply["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
        answer = reply["choices"][0]["message"]["content"] or ""
        talks[talk] += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]

    with ThreadPoolExecutor(6) as pool:
        for _ in range(4):
            list(pool.map(turn, talks))
    assert len(found) == 36
    assert sum(found) >= 0.9 * len(found)


def test_a_replica_that_dies_loses_no_answer(served, alone) -> None:
    wanted = {talk: alone.chat(opening(talk), temperature=0, max_tokens=150).text for talk in range(200, 216)}

    def replicas() -> list[int]:
        # Ray names its processes by what runs in them.
        found = [path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if b"ServeReplica:default:engine" in path.read_bytes()]
        return [int(process.name) for process in found]

    before = replicas()
    assert len(before) == 2
    with ThreadPoolExecutor(16) as pool:
        answers = {talk: pool.submit(ask, served, opening(talk), max_tokens=150) for talk in wanted}
        time.sleep(0.2)
        os.kill(before[0], signal.SIGKILL)
        got = {talk: answer.result()["choices"][0]["message"]["content"] or "" for talk, answer in answers.items()}
    assert got == wanted
    assert before[0] not in replicas()


def test_a_batch_is_shared_out_and_taken_up_again(cluster, folder: Path, alone, tmp_path: Path) -> None:
    from kvant.ray import generate_files

    rows = [{"id": at, "prompt": f"Row {at} says: "} for at in range(240)]
    source, output = tmp_path / "rows.jsonl", tmp_path / "out"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run():
        return generate_files(
            source, output, str(folder), replicas=2, block=5, sampling={"temperature": 0, "max_tokens": 200}, kv="int4", ctx=384
        )

    started = time.monotonic()
    report = run()
    seconds = time.monotonic() - started
    print(f"{report.rows / seconds:.1f} rows a second with two engines, {report.by_engine}")
    assert (report.blocks, report.skipped, report.rows) == (48, 0, 240)
    answers = [json.loads(line) for file in report.files for line in file.read_text().splitlines()]
    assert [answer["id"] for answer in answers] == list(range(240))
    for answer in answers[::37]:
        assert answer["text"] == alone.generate(answer["prompt"], temperature=0, max_tokens=200).read()
    assert all(0.4 <= count / report.rows <= 0.6 for count in report.by_engine.values())
    whole = report.files[3].read_text()
    report.files[3].unlink()
    again = run()
    assert (again.skipped, again.rows) == (47, 5)
    assert report.files[3].read_text() == whole
    with pytest.raises(ValueError, match="another batch"):
        generate_files(source, output, str(folder), block=7)


def test_longer_conversations_continue_the_digests_of_shorter_ones() -> None:
    short = beginnings({"messages": opening(1)})
    longer = beginnings({"messages": [*opening(1), {"role": "assistant", "content": "x" * BLOCK}]})
    assert len(short) >= 2
    assert longer[: len(short)] == short
    assert beginnings({"messages": opening(2)})[0] != short[0]
    assert len(beginnings({"prompt": ""})) == 1


def test_the_map_knows_who_read_what_last_and_forgets_the_dead() -> None:
    held = PrefixMap(capacity=4)
    held.read([b"a", b"b"], "one")
    assert held.longest([b"a", b"b", b"c"], ["one", "two"]) == ("one", 2)
    assert held.longest([b"a", b"b"], ["two"]) == (None, 0)
    assert held.least_used(["one", "two"]) == "two"
    held.read([b"a", b"c", b"d"], "two")
    assert held.longest([b"a", b"b"], ["one", "two"]) == ("one", 2)
    held.forget("one")
    assert held.longest([b"a", b"b"], ["one", "two"]) == ("two", 1)
    held.read([b"e", b"f"], "two")
    assert held.longest([b"a"], ["two"]) == (None, 0), "the oldest go first"
