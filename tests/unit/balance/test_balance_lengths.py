"""Lengths out of every kind of file, and what is said of a bad one."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cptune.errors import SpecError
from cptune.store.balance import open_lengths


def read(path, column=None):
    return [int(one) for block in open_lengths(path, column) for one in block]


def written(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.txt", "100\n\n200\n", [100, 200]),
        ("a.txt", "100 200\n300", [100, 200, 300]),
        ("a.txt", "12.0\n", [12]),
        ("a.csv", "id,length\n1,100\n2,200\n", [100, 200]),
        ("a.csv", "100\n200\n", [100, 200]),
        ("a.csv", "whatever\n7\n", [7]),
        ("a.tsv", "tokens\tid\n100\tx\n", [100]),
        ("a.jsonl", '5\n{"tokens": 6}\n[7, 8]\n{"lengths": [9]}\n', [5, 6, 7, 8, 9]),
    ],
)
def test_a_file_gives_its_lengths_in_order(tmp_path, name, text, expected):
    assert read(written(tmp_path, name, text)) == expected


def test_gzip_is_seen_whatever_the_name(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(gzip.compress(b"1\n2\n"))
    packed = tmp_path / "a.csv.gz"
    packed.write_bytes(gzip.compress(b"n,len\n1,2\n"))
    assert (read(path), read(packed)) == ([1, 2], [2])


def test_a_column_is_read_by_name(tmp_path):
    table = written(tmp_path, "a.csv", "a,b\n1,2\n")
    lines = written(tmp_path, "a.jsonl", '{"a": 1, "b": 2}\n')
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "a.parquet")
    assert read(table, "b") == read(lines, "b") == read(tmp_path / "a.parquet", "b") == [2]


@pytest.mark.parametrize(
    "values", [[10, 20, 30], [[10, 20], [30]], [10.0, 20.0, 30.0]], ids=["whole", "rows", "real"]
)
def test_a_parquet_column_is_read(tmp_path, values):
    pq.write_table(pa.table({"length": values}), tmp_path / "lengths")
    assert read(tmp_path / "lengths") == [10, 20, 30]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", "", "a.txt is empty"),
        ("a.txt", "\n\n", "a.txt is empty"),
        ("a.txt", "10\n-5\n", "a.txt:2: '-5' is no document length; wanted a whole number from 1"),
        ("a.txt", "10\nabc\n", "a.txt:2: 'abc'"),
        ("a.txt", "10\n20 x\n", "a.txt:2: 'x'"),
        ("a.txt", "10\nNaN\n", "a.txt:2: 'NaN'"),
        ("a.txt", "inf\n", "a.txt:1: 'inf'"),
        ("a.txt", "12.5\n", "a.txt:1: '12.5'"),
        ("a.txt", "0\n", "a.txt:1: '0'"),
        ("a.txt", "99999999999999999999\n", "a.txt:1: '99999999999999999999'"),
        ("a.csv", "length\n", "a.csv is empty"),
        ("a.csv", "id,length\n1,5\n2,\n", "a.csv:3: ''"),
        ("a.csv", "id,length\n1,5\n2\n", "a.csv:3: ''"),
        ("a.csv", "id,length\n1,NaN\n", "a.csv:2: 'NaN'"),
        ("a.csv", "a,b\n1,2\n", "which of the columns a, b"),
        ("a.jsonl", '5\n"x"\n', "a.jsonl:2: 'x'"),
        ("a.jsonl", "5\nnull\n", "a.jsonl:2: None"),
        ("a.jsonl", "5\nNaN\n", "a.jsonl:2: nan"),
        ("a.jsonl", "5\ntrue\n", "a.jsonl:2: True"),
        ("a.jsonl", "5\n{\n", "a.jsonl:2: '{' is not JSON"),
        ("a.jsonl", '{"n": 5}\n', "has no key length or"),
        ("a.jsonl", "[" * 100_000, "is not JSON"),
        ("a.csv", "id,length\n1,5\n2,x\n", "a.csv:3: 'x' of column 'length' is no document"),
        ("a.txt", "2000000000000\n", "wanted a whole number from 1 to 1,099,511,627,776"),
    ],
)
def test_a_bad_file_is_refused_with_line_and_value(tmp_path, name, text, said):
    with pytest.raises(SpecError) as refused:
        read(written(tmp_path, name, text))
    assert said in str(refused.value)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([5, -3], "row 2: -3"),
        ([5, None], "row 2: None"),
        ([5.0, float("nan")], "row 2: nan"),
        (["5", "x"], "row 2: 'x' of column 'length' is no document length; wanted a whole"),
        (pa.array([5, (1 << 64) - 5], pa.uint64()), "row 2: 18446744073709551611 of column"),
        (pa.array([5, 1 << 41], pa.uint64()), "row 2: 2199023255552 of column"),
        (pa.array([5, None], pa.uint64()), "row 2: None of column"),
        (pa.array([b"x"]), "row 1: b'x' of column"),
        (pa.array([[5], [0]]), "row 2: 0 of column"),
        (pa.array([5], pa.timestamp("s")), "row 1: datetime"),
        (pa.array([], pa.int64()), "is empty"),
    ],
)
def test_a_bad_parquet_column_is_refused_with_row_and_value(tmp_path, values, said):
    pq.write_table(pa.table({"length": values}), tmp_path / "a.parquet")
    with pytest.raises(SpecError, match=said):
        read(tmp_path / "a.parquet")


def test_a_wrong_column_is_refused_with_those_there(tmp_path):
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "a.parquet")
    for path, column in (
        (written(tmp_path, "a.csv", "a,b\n1,2\n"), "c"),
        (tmp_path / "a.parquet", "c"),
        (tmp_path / "a.parquet", None),
    ):
        with pytest.raises(SpecError, match="a, b"):
            read(path, column)
    with pytest.raises(SpecError, match="no column 'c'"):
        read(written(tmp_path, "a.txt", "1\n"), "c")


@pytest.mark.parametrize("column", [None, "tokns"])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_every_format_says_how_to_name_the_column(tmp_path, name, column):
    written(tmp_path, "a.csv", "tok,b\n1,2\n")
    written(tmp_path, "a.jsonl", '{"tok": 1, "b": 2}\n')
    pq.write_table(pa.table({"tok": [1], "b": [2]}), tmp_path / "a.parquet")

    with pytest.raises(SpecError) as refused:
        read(tmp_path / name, column)

    whole = f"{refused.value} {refused.value.hint}"
    assert "--column NAME" in whole
    assert "tok, b" in whole
    assert column is None or "did you mean 'tok'?" in whole


def test_what_is_no_file_of_ours_is_refused(tmp_path):
    cut = tmp_path / "cut.txt"
    cut.write_bytes(gzip.compress(b"1\n2\n")[:15])
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\x00\xff\xfe")
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 and no more")
    for path in (cut, binary, broken, tmp_path / "absent"):
        with pytest.raises(SpecError, match="cannot read"):
            read(path)


def test_lines_are_counted_over_blocks(tmp_path):
    good = [str(n) for n in range(1, (1 << 16) + 9)]
    assert len(list(open_lengths(written(tmp_path, "a.txt", "\n".join(good))))) == 2
    for name, lines, at in (
        ("b.txt", [*good, "x"], len(good) + 1),
        ("b.jsonl", [*good, '"x"'], len(good) + 1),
        ("b.csv", ["length", *good, "x"], len(good) + 2),
    ):
        with pytest.raises(SpecError, match=rf":{at}: 'x'"):
            read(written(tmp_path, name, "\n".join(lines)))


def test_json_numbers_keep_their_precision(tmp_path):
    big = (1 << 40) - 1
    assert read(written(tmp_path, "a.jsonl", json.dumps(big))) == [big]
    assert next(open_lengths(written(tmp_path, "a.txt", "3\n"))).dtype == np.int64


def held_bytes(blocks):
    """What Arrow holds after each block but the last, at most."""
    return max(pa.total_allocated_bytes() for _ in blocks)


@pytest.mark.parametrize("row_group_size", [1 << 17, 1 << 21], ids=["many groups", "one group"])
def test_a_parquet_column_is_never_held_whole(tmp_path, row_group_size):
    path = tmp_path / "long.parquet"
    lengths = np.random.default_rng(0).integers(1, 1 << 40, size=1 << 21)
    table = pa.table({"length": lengths})
    pq.write_table(table, path, row_group_size=row_group_size, use_dictionary=False)
    del table
    before = pa.total_allocated_bytes()
    assert held_bytes(open_lengths(path)) - before < lengths.nbytes / 2
    with pq.ParquetFile(path) as buffered:  # what a plain reader holds
        assert held_bytes(buffered.iter_batches(1 << 17)) - before > lengths.nbytes / 2
