import io
import sys
from types import SimpleNamespace

import pytest

from tests.saved import make_photo
from whence import WhenceError
from whence.inputs import Source, decode_text, expand, read_input, read_text
from whence.inputs.texts import MAX_BYTES


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two photos, a text, and what is neither."""
    for name in ("b.jpg", "a.PNG"):
        make_photo().save(tmp_path / name)
    (tmp_path / "c.txt").write_text("good")
    (tmp_path / "notes.pdf").write_text("%PDF")
    (tmp_path / ".hidden.jpg").write_text("")
    (tmp_path / "deeper.png").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(*arguments: str) -> list[str]:
    return [source.title for source in expand(arguments)]


def find_problem(*arguments: str) -> str:
    with pytest.raises(WhenceError) as raised:
        expand(arguments)
    return str(raised.value)


def test_files_folders_and_globs(folder):
    assert names("b.jpg", "c.txt") == ["b.jpg", "c.txt"]
    found = expand([str(folder)])
    usable = [source.path.name for source in found if source.problem is None]
    assert usable == ["a.PNG", "b.jpg", "c.txt"]
    (odd,) = (source for source in found if source.problem is not None)
    assert odd.path.name == "notes.pdf"
    with pytest.raises(WhenceError, match="neither a photo nor a text file"):
        odd.read()
    assert names("*.jpg") == ["b.jpg"]
    assert names("[ab].*") == ["a.PNG", "b.jpg"]
    kinds = [source.kind for source in expand(["."]) if source.problem is None]
    assert kinds == ["image", "image", "text"]


def test_folders_and_globs_that_hold_nothing(folder):
    (folder / "empty").mkdir()
    assert "folder 'empty' holds no photo and no text file" in find_problem("empty")
    for pattern in ("*.gif", "*.pdf", "none/*"):
        assert find_problem(pattern) == f"No photo or text file matches '{pattern}'."
    assert "Nothing to explain" in find_problem()


@pytest.mark.parametrize(
    "text",
    [
        *("A film.", "Good.", "Wonderful!", "Was it good?", "🎉🎉", "סרט נפלא", "what? [sic] *"),
        *("x" * 5000, "a\0b", "好电影", "either/or is dull"),
    ],
)
def test_what_names_no_file_is_text(text, folder):
    (source,) = expand([text])
    assert (source.kind, source.text) == ("text", text)


@pytest.mark.parametrize(
    "path",
    [
        "none.jpg",
        "my cat.jpg",
        "none.txt",
        "none.csv",
        "no/such/folder",
        "~/x.png",
        "./my cat",
        "no.jpg ",
    ],
)
def test_what_looks_like_a_path_is_one(path, folder):
    assert find_problem(path) == (
        f"'{path}' is not there, or may not be read. If it is a text, say so with --text."
    )


@pytest.mark.parametrize("word", ["good", "phots", "q1.jgp", "really?", "trés"])
def test_one_word_is_no_sentence(word, folder):
    (folder / "photos").mkdir()
    make_photo().save(folder / "q1.jpg")
    near = {"phots": " Did you mean 'photos'?", "q1.jgp": " Did you mean 'q1.jpg'?"}
    assert find_problem(word) == (
        f"'{word}' is no file or folder here.{near.get(word, '')} If it is a text, say so with "
        f"--text."
    )
    (source,) = expand([word], as_text=True)
    assert source == Source("text", text=word)


def test_one_mistyped_name_among_others(folder):
    wrong, right = expand(["d.jpg", "c.txt"])
    assert "'d.jpg' is not there" in wrong.problem
    assert right.read() == "good"


def test_a_sentence_without_quotes(folder):
    assert 'put it in quotes: "A wonderful film".' in find_problem("A", "wonderful", "film")


def test_addresses_are_no_files(folder):
    assert "is an address; save what is there as a file" in find_problem("https://a.b/c.jpg")


def test_strings_in_python(folder):
    assert read_input("good") == "good"
    assert read_input("c.txt") == "good"
    assert read_input("c.txt", "text") == "c.txt"
    assert read_input("b.jpg").size == make_photo().size
    with pytest.raises(WhenceError, match=r"Did you mean 'b.jpg'.* say so with kind='text'"):
        read_input("b.jpeg")
    with pytest.raises(WhenceError, match="'good' is not there"):
        read_input("good", "image")


def test_a_file_of_another_kind(folder):
    (source,) = expand(["notes.pdf"])
    with pytest.raises(WhenceError, match=r"notes.pdf' is not an image.*ends in .txt"):
        source.read()


def test_rows_of_tables_are_texts(folder):
    (folder / "reviews.csv").write_text('id,text\n1,"good, very"\n2,bad\n')
    (folder / "dev.tsv").write_text("sentence\tlabel\nawful\t0\nfine\n")
    (folder / "numbers.csv").write_text("a,b\n1,2\n")
    found = expand(["reviews.csv", "dev.tsv"])
    assert [source.title for source in found] == [
        *("reviews.csv, row 1", "reviews.csv, row 2"),
        *("dev.tsv, row 1", "dev.tsv, row 2"),
    ]
    assert [source.read() for source in found[:3]] == ["good, very", "bad", "awful"]
    with pytest.raises(WhenceError, match="too few or too many fields"):
        found[3].read()
    assert len(expand(["*.csv"])) == 3
    found = {source.title.rpartition("/")[2]: source for source in expand([str(folder)])}
    assert found["reviews.csv, row 2"].text == "bad"
    assert "has no texts: its header names no column text" in found["numbers.csv"].problem
    assert "numbers.csv' has no texts" in find_problem("numbers.csv")


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO("naïve 🎉".encode())))
    (source,) = expand(["-"])
    assert source.title == "standard input"
    assert source.read() == "naïve 🎉"
    with pytest.raises(WhenceError, match="Standard input is empty"):
        source.read()
    assert "only once" in find_problem("-", "-")


def test_titles_are_short():
    assert Source("text", text="a  long\nstory " * 20).title.startswith("a long story a long")
    assert len(Source("text", text="word " * 100).title) <= 60


@pytest.mark.parametrize("content", ["", " \n\t "])
def test_empty_text(content, tmp_path):
    (tmp_path / "empty.txt").write_text(content)
    with pytest.raises(WhenceError, match=r"empty.txt' is empty"):
        read_text(tmp_path / "empty.txt")
    with pytest.raises(WhenceError, match="The text is empty"):
        Source("text", text=content).read()


def test_text_files(tmp_path):
    path = tmp_path / "t.txt"
    path.write_bytes("\ufeffgood".encode())
    assert read_text(path) == "good"
    path.write_bytes(b"\xff\xfe\x00good")
    with pytest.raises(WhenceError, match=r"t.txt' is not text in UTF-8"):
        read_text(path)
    with pytest.raises(WhenceError, match="is a folder, not a text"):
        read_text(tmp_path)


def test_huge_text_is_read_in_part_and_not_within_a_letter():
    text = decode_text(b"x" + "🎉".encode() * MAX_BYTES, "it")
    assert len(text.encode()) > MAX_BYTES - 4
    assert set(text) == {"x", "🎉"}


def test_text_that_no_encoding_has():
    assert Source("text", text="bad \udcff byte").read() == "bad ? byte"
