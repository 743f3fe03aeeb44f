import pytest

from tests.datasets.layouts import write_text
from whence import WhenceError
from whence.datasets import load


def read_all(path, **options):
    dataset = load(path, **options)
    return [(dataset.read(name).content, dataset.read(name).label) for name in dataset.list_names()]


@pytest.mark.parametrize("separator", [",", "\t", ";", "|"])
@pytest.mark.parametrize("header", [("text", "label"), ("Sentence", "CLASS"), ("review", "label")])
def test_columns_and_separators(separator, header, tmp_path):
    rows = (("good film .", "1"), ("bad film .", "0"))
    file = write_text(tmp_path / "a.csv", *map(separator.join, (header, *rows)))
    assert read_all(file) == [("good film .", 1), ("bad film .", 0)]


def test_other_columns_and_any_order(tmp_path):
    file = write_text(tmp_path / "a.csv", "id,label,text", "x,pos,good", "y,,bad")
    assert read_all(file) == [("good", "pos"), ("bad", None)]


def test_labels_are_indices_only_if_all_are(tmp_path):
    file = write_text(tmp_path / "a.csv", "text,label", "one,1", "two,2b")
    assert read_all(file) == [("one", "1"), ("two", "2b")]
    file = write_text(tmp_path / "b.csv", "text,label", "one,1", "two,-1")
    assert read_all(file) == [("one", 1), ("two", None)]


def test_folders_and_splits(tmp_path):
    write_text(tmp_path / "train.tsv", "text\tlabel", "train\t0")
    write_text(tmp_path / "dev.tsv", "text\tlabel", "dev\t0")
    write_text(tmp_path / "README.txt", "text")
    assert read_all(tmp_path) == [("dev", 0)]
    assert read_all(tmp_path, split="train") == [("train", 0)]
    assert load(tmp_path).list_names() == ["dev-1"]
    with pytest.raises(WhenceError, match=r"no test\.tsv or test\.csv"):
        load(tmp_path, "csv", "test")


def test_broken_rows_are_named(tmp_path):
    file = write_text(tmp_path / "a.csv", "text,label", "good,1", "too,many,fields", " ,1", "few")
    dataset = load(file)
    assert dataset.list_names() == ["a-1", "a-2", "a-3", "a-4"]
    assert dataset.read("a-1").label == 1
    for name, message in {"a-2": "3 fields", "a-3": "is empty", "a-4": "1 fields"}.items():
        with pytest.raises(WhenceError, match=f"'{name}'.*{message}"):
            dataset.read(name)


def test_broken_files(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"text,label\nsch\xf6n,1\n")
    with pytest.raises(WhenceError, match="not text in UTF-8"):
        load(tmp_path / "a.csv")
    write_text(tmp_path / "b.csv", "text,label")
    with pytest.raises(WhenceError, match="holds no texts"):
        load(tmp_path / "b.csv")
    write_text(tmp_path / "c.csv", "text,label", "x" * 200_000 + ",1")
    with pytest.raises(WhenceError, match="damaged"):
        load(tmp_path / "c.csv")
    write_text(tmp_path / "d.csv", "words,kind", "good,1")
    with pytest.raises(WhenceError, match="names a column text, sentence, review"):
        load(tmp_path / "d.csv", "csv")


def test_the_fingerprint_tells_texts_and_labels(tmp_path):
    prints = {
        load(write_text(tmp_path / "a.csv", "text,label", row)).compute_fingerprint()
        for row in ("good,1", "good,0", "gold,1")
    }
    assert len(prints) == 3


def test_real_sentences(data):
    dataset = load(data / "sst2" / "dev.tsv")
    assert len(dataset.list_names()) == 872
    samples = [dataset.read(name) for name in dataset.list_names()]
    assert samples[0].content.startswith("it 's a charming and often affecting journey")
    assert {sample.label for sample in samples} == {0, 1}
    assert load(data / "sst2").name == "csv-dev"
    assert len(load(data / "sst2", split="train").list_names()) == 67349


def test_prompts_may_have_answers(tmp_path):
    table = tmp_path / "prompts.csv"
    table.write_text("answer,prompt\n dog ,Tom has a\n,Once upon\n")
    dataset = load(table)
    samples = [dataset.read(name) for name in dataset.list_names()]
    assert [(one.content, one.answer) for one in samples] == [
        ("Tom has a", "dog"),
        ("Once upon", ""),
    ]
