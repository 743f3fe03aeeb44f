import pytest

from tests.datasets.layouts import text_at
from whence import WhenceError
from whence.datasets import load


def read(path, **options):
    dataset = load(path, **options)
    return [(dataset.read(name).content, dataset.read(name).label) for name in dataset.list_names()]


@pytest.mark.parametrize("separator", [",", "\t", ";", "|"])
@pytest.mark.parametrize("header", [("text", "label"), ("Sentence", "CLASS"), ("review", "label")])
def test_columns_and_separators(separator, header, tmp_path):
    rows = (("good film .", "1"), ("bad film .", "0"))
    file = text_at(tmp_path / "a.csv", *map(separator.join, (header, *rows)))
    assert read(file) == [("good film .", 1), ("bad film .", 0)]


def test_other_columns_and_any_order(tmp_path):
    file = text_at(tmp_path / "a.csv", "id,label,text", "x,pos,good", "y,,bad")
    assert read(file) == [("good", "pos"), ("bad", None)]


def test_quotes_as_in_csv(tmp_path):
    file = text_at(tmp_path / "a.csv", "text,label", '"a ""good"" film, \nwell made",1', "bad,0")
    assert read(file) == [('a "good" film, \nwell made', 1), ("bad", 0)]


def test_quotes_as_in_glue(tmp_path):
    rows = ('" i hated it\t0', 'a "good" film\t1', '" so did i\t0')
    file = text_at(tmp_path / "a.tsv", "sentence\tlabel", *rows)
    assert read(file) == [('" i hated it', 0), ('a "good" film', 1), ('" so did i', 0)]


def test_one_column_needs_no_quotes(tmp_path):
    file = text_at(tmp_path / "a.csv", "text", "good, well made; short", "", "bad\tfilm")
    assert read(file) == [("good, well made; short", None), ("bad\tfilm", None)]
    file = text_at(tmp_path / "b.csv", "text", '"good, well made"')
    assert read(file) == [("good, well made", None)]


def test_labels_are_indices_only_if_all_are(tmp_path):
    file = text_at(tmp_path / "a.csv", "text,label", "one,1", "two,2b")
    assert read(file) == [("one", "1"), ("two", "2b")]
    file = text_at(tmp_path / "b.csv", "text,label", "one,1", "two,-1")
    assert read(file) == [("one", 1), ("two", None)]


def test_files_with_a_mark_and_windows_lines(tmp_path):
    (tmp_path / "a.csv").write_bytes("\ufefftext,label\r\nschön,1\r\n".encode())
    assert read(tmp_path / "a.csv") == [("schön", 1)]


def test_folders_and_splits(tmp_path):
    text_at(tmp_path / "train.tsv", "text\tlabel", "train\t0")
    text_at(tmp_path / "dev.tsv", "text\tlabel", "dev\t0")
    text_at(tmp_path / "README.txt", "text")
    assert read(tmp_path) == [("dev", 0)]
    assert read(tmp_path, split="train") == [("train", 0)]
    assert load(tmp_path).list_names() == ["dev-1"]
    with pytest.raises(WhenceError, match=r"no test\.tsv or test\.csv"):
        load(tmp_path, "csv", "test")


def test_broken_rows_are_named(tmp_path):
    file = text_at(tmp_path / "a.csv", "text,label", "good,1", "too,many,fields", " ,1", "few")
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
    text_at(tmp_path / "b.csv", "text,label")
    with pytest.raises(WhenceError, match="holds no texts"):
        load(tmp_path / "b.csv")
    text_at(tmp_path / "c.csv", "text,label", "x" * 200_000 + ",1")
    with pytest.raises(WhenceError, match="damaged"):
        load(tmp_path / "c.csv")
    text_at(tmp_path / "d.csv", "words,kind", "good,1")
    with pytest.raises(WhenceError, match="names a column text, sentence, review"):
        load(tmp_path / "d.csv", "csv")


def test_the_fingerprint_tells_texts_and_labels(tmp_path):
    prints = {
        load(text_at(tmp_path / "a.csv", "text,label", row)).compute_fingerprint()
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
