from tests.datasets.layouts import write_text
from whence.inputs.tables import TEXT_COLUMNS, has_column, read_table


def read_rows(path):
    return read_table(path, TEXT_COLUMNS).rows


def test_quotes_as_in_csv(tmp_path):
    file = write_text(tmp_path / "a.csv", "text,label", '"a ""good"" film, \nwell made",1', "bad,0")
    assert read_rows(file) == [['a "good" film, \nwell made', "1"], ["bad", "0"]]


def test_quotes_as_in_glue(tmp_path):
    rows = ('" i hated it\t0', 'a "good" film\t1', '" so did i\t0')
    file = write_text(tmp_path / "a.tsv", "sentence\tlabel", *rows)
    assert read_rows(file) == [row.split("\t") for row in rows]


def test_a_quoted_header_is_found_where_quotes_in_rows_are_damaged(tmp_path):
    file = write_text(tmp_path / "a.csv", '"label","text"', '1,"a "good" film"', '0,"bad"')
    table = read_table(file, TEXT_COLUMNS)
    assert (table.columns, table.key) == (["label", "text"], 1)
    assert [row[0] for row in table.rows] == ["1", "0"]


def test_one_column_needs_no_quotes(tmp_path):
    file = write_text(tmp_path / "a.csv", "text", "good, well made; short", "", "bad\tfilm")
    assert read_rows(file) == [["good, well made; short"], ["bad\tfilm"]]
    file = write_text(tmp_path / "b.csv", "text", '"good, well made"')
    assert read_rows(file) == [["good, well made"]]


def test_files_with_a_mark_and_windows_lines(tmp_path):
    (tmp_path / "a.csv").write_bytes("\ufefftext,label\r\nschön,1\r\n".encode())
    assert read_rows(tmp_path / "a.csv") == [["schön", "1"]]


def test_columns_and_whole_rows(tmp_path):
    file = write_text(tmp_path / "a.csv", "ID, Review ,label", "x,good,1", "y,bad")
    table = read_table(file, TEXT_COLUMNS)
    assert table.columns == ["id", "review", "label"]
    assert (table.key, table.find_column(("class", "label")), table.find_column(("a",))) == (
        1,
        2,
        None,
    )
    assert table.list_whole_rows() == [["x", "good", "1"]]
    assert has_column(file, ("id",))
    assert not has_column(file, ("text",))
    assert not has_column(tmp_path / "none.csv", ("text",))
    assert read_table(file, ("text",)) is None
