import json

import pytest

from tests.datasets.layouts import write_json_lines, write_text
from whence import WhenceError
from whence.datasets import load


def make_evidence(start, end, document="a.txt", **more):
    return {"docid": document, "start_token": start, "end_token": end, "text": "", **more}


def make_record(*groups, name="a.txt", label="POS", **more):
    query = {"query": "What is the sentiment?", "query_type": None}
    return {"annotation_id": name, "classification": label, "evidences": groups, **query, **more}


def write_task(folder, *records, documents=None):
    write_json_lines(folder / "test.jsonl", *records)
    for name, text in (
        documents or {"a.txt": "a good film .\nwell made ,\n\n and short ."}
    ).items():
        write_text(folder / "docs" / name, text)
    return load(folder)


WORDS = tuple("a good film . well made , and short .".split())


def test_words_evidence_and_label(tmp_path):
    dataset = write_task(
        tmp_path / "movies", make_record([make_evidence(4, 6)], [make_evidence(1, 3)])
    )
    assert (dataset.name, dataset.kind) == ("eraser-movies-test", "text")
    sample = dataset.read("a.txt")
    assert sample.words == WORDS
    assert sample.content == " ".join(WORDS)
    assert sample.evidence == ((1, 3), (4, 6))
    assert sample.label == "POS"


def test_only_spaces_and_lines_part_words(tmp_path):
    dataset = write_task(
        tmp_path, make_record([make_evidence(1, 2)]), documents={"a.txt": "10\u00a0000 copies"}
    )
    sample = dataset.read("a.txt")
    assert sample.words == ("10\u00a0000", "copies")


def test_spans_without_words_are_left_out_and_equal_ones_count_once(tmp_path):
    groups = (
        [make_evidence(2, 2), make_evidence(1, 3), make_evidence(-1, -1)],
        [make_evidence(1, 3)],
    )
    assert write_task(tmp_path, make_record(*groups)).read("a.txt").evidence == ((1, 3),)


def test_documents_are_joined_in_the_order_of_the_evidence(tmp_path):
    documents = {"x": "one two", "y": "three four five"}
    groups = [make_evidence(1, 3, "y")], [make_evidence(0, 1, "x"), make_evidence(0, 1, "y")]
    sample = write_task(tmp_path, make_record(*groups, name="q"), documents=documents).read("q")
    assert sample.content == "three four five one two"
    assert [sample.words[start:end] for start, end in sample.evidence] == [
        ("three",),
        ("four", "five"),
        ("one",),
    ]


def test_documents_that_the_record_lists_come_first(tmp_path):
    documents = {"x": "one two", "y": "three"}
    one = make_record([make_evidence(0, 1, "y")], name="q", docids=["x"])
    sample = write_task(tmp_path, one, documents=documents).read("q")
    assert sample.content == "one two three"
    assert sample.evidence == ((2, 3),)


def test_premise_and_hypothesis(tmp_path):
    documents = {"7_premise": "a man sleeps", "7_hypothesis": "he runs"}
    one = make_record([make_evidence(1, 2, "7_hypothesis")], name="7", label="contradiction")
    sample = write_task(tmp_path, one, documents=documents).read("7")
    assert sample.content == "a man sleeps he runs"
    assert sample.evidence == ((4, 5),)


@pytest.mark.parametrize("name", ["a.txt", "a", "a.txt:0:1"])
@pytest.mark.parametrize("groups", [(), None])
def test_without_evidence_the_id_names_the_document(name, groups, tmp_path):
    one = {**make_record(name=name), "evidences": groups}
    sample = write_task(tmp_path, one).read(name)
    assert sample.words == WORDS
    assert sample.evidence == ()


def test_evidence_without_a_document(tmp_path):
    one = make_record([{"start_token": 0, "end_token": 2}])
    assert write_task(tmp_path, one).read("a.txt").evidence == ((0, 2),)


def test_all_documents_in_one_file(tmp_path):
    write_json_lines(
        tmp_path / "val.jsonl", make_record([make_evidence(1, 3)]), make_record(name="gone")
    )
    text = "a good film .\nwell made , and short ."
    write_json_lines(tmp_path / "docs.jsonl", {"docid": "a.txt", "document": text})
    dataset = load(tmp_path)
    assert dataset.read("a.txt").words == WORDS
    assert dataset.read("a.txt").evidence == ((1, 3),)
    with pytest.raises(WhenceError, match=r"'gone' is not in '.*docs\.jsonl'"):
        dataset.read("gone")
    write_text(tmp_path / "docs.jsonl", "{}")
    with pytest.raises(WhenceError, match="not a file of documents"):
        load(tmp_path).read("a.txt")


def test_splits(tmp_path):
    write_task(tmp_path, make_record())
    write_json_lines(tmp_path / "train.jsonl", make_record(name="t"))
    assert load(tmp_path).list_names() == ["a.txt"]
    assert load(tmp_path, split="train").list_names() == ["t"]
    assert load(tmp_path / "train.jsonl").list_names() == ["t"]
    with pytest.raises(WhenceError, match=r"no 'val\.jsonl'; it has: test, train"):
        load(tmp_path, split="val")


def test_ids_that_come_twice(tmp_path):
    assert write_task(tmp_path, make_record(), make_record()).list_names() == ["a.txt", "a.txt-2"]


@pytest.mark.parametrize(
    "broken",
    [
        make_record([make_evidence(8, 11)]),
        make_record([make_evidence(3, 2)]),
        make_record([make_evidence(-2, 2)]),
        make_record([make_evidence("one", 2)]),
        make_record([make_evidence(0, float("inf"))]),
        make_record([make_evidence(0, 2, "none.txt")]),
        make_record([make_evidence(0, 2, "../test.jsonl")]),
        make_record([make_evidence(0, 2, "/etc/hostname")]),
        make_record([7]),
        make_record(name="none.txt"),
        make_record(name="../test.jsonl"),
    ],
)
def test_broken_records_are_named(broken, tmp_path):
    dataset = write_task(tmp_path, broken, make_record(name="a"))
    name = broken["annotation_id"]
    assert dataset.list_names() == [name, "a"]
    with pytest.raises(WhenceError) as raised:
        dataset.read(name)
    assert name in str(raised.value)
    assert dataset.read("a").words == WORDS
    assert len(dataset.compute_fingerprint()) == 64


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"annotation_id": null}'])
def test_lines_that_are_no_records(line, tmp_path):
    write_task(tmp_path, make_record())
    write_text(tmp_path / "test.jsonl", json.dumps(make_record()), "", line)
    dataset = load(tmp_path)
    assert dataset.list_names() == ["a.txt", "line 3"]
    with pytest.raises(WhenceError, match="'line 3' is not an annotation"):
        dataset.read("line 3")


def test_empty_files(tmp_path):
    dataset = write_task(tmp_path, make_record(), documents={"a.txt": " "})
    with pytest.raises(WhenceError, match=r"a\.txt' is empty"):
        dataset.read("a.txt")
    write_text(tmp_path / "test.jsonl", "")
    with pytest.raises(WhenceError, match=r"test\.jsonl' is empty"):
        load(tmp_path)


def test_the_fingerprint_tells_evidence_label_and_documents(tmp_path):
    prints = {write_task(tmp_path, make_record([make_evidence(1, 3)])).compute_fingerprint()}
    prints.add(write_task(tmp_path, make_record([make_evidence(1, 4)])).compute_fingerprint())
    prints.add(
        write_task(tmp_path, make_record([make_evidence(1, 4)], label="NEG")).compute_fingerprint()
    )
    changed = write_task(
        tmp_path, make_record([make_evidence(1, 4)]), documents={"a.txt": "one two three four"}
    )
    prints.add(changed.compute_fingerprint())
    assert len(prints) == 4


def test_real_reviews(data):
    folder = data / "eraser" / "movies"
    dataset = load(folder)
    assert len(dataset.list_names()) == 199
    lines = (folder / "test.jsonl").read_text(encoding="utf-8").splitlines()
    for name, line in zip(dataset.list_names(), map(json.loads, lines), strict=True):
        sample = dataset.read(name)
        assert sample.label == line["classification"]
        assert all(0 <= start < end <= len(sample.words) for start, end in sample.evidence)
        marked = {" ".join(sample.words[start:end]) for start, end in sample.evidence}
        assert marked == {one["text"] for group in line["evidences"] for one in group} - {""}
        assert tuple(sample.content.split()) == sample.words
    assert [len(load(folder, split=split).list_names()) for split in ("train", "val")] == [
        1600,
        200,
    ]
