"""What every file goes through: marks, encodings, depth, one line that says what is wrong."""

from __future__ import annotations

import codecs
import os
from pathlib import Path

import msgspec
import pytest

from ridgeline.errors import InputError
from ridgeline.records.input_file import (
    DEEPEST,
    csv_rows,
    parse_json,
    read_bytes,
    read_json,
    read_text,
    read_toml,
)


class Small(msgspec.Struct, forbid_unknown_fields=True):
    one: int


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "given"


def test_the_mark_of_utf8_is_no_part_of_any_format(path: Path) -> None:
    path.write_bytes(codecs.BOM_UTF8 + b'{"one": 1}')
    assert read_json(path, Small) == Small(1)
    assert read_text(path) == '{"one": 1}'
    path.write_bytes(codecs.BOM_UTF8 + b"one = 1")
    assert read_toml(path, Small) == Small(1)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_another_encoding_is_named(path: Path, encoding: str) -> None:
    path.write_bytes('{"one": 1}'.encode(encoding))
    for read in (lambda: read_json(path, Small), lambda: read_text(path)):
        with pytest.raises(InputError, match=f"is {encoding.upper()} text; save it as UTF-8"):
            read()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty; give it"),
        (b"{}\0", "byte 2 is NUL"),
        (b'{"\xff": 1}', "is not UTF-8 text; give it"),
        (b'{"one"', "not JSON (Input data was truncated); give it"),
        (b'{"one": 1} x', "not JSON (JSON is malformed: trailing characters (byte 12)); give it"),
        (b'{"one": "a"}', "Expected `int`, got `str` - at `$.one`; give it"),
        (b"[" * 10**6, f"nested deeper than {DEEPEST} levels; give it"),
        (b'{"one":' * 10**5 + b"1" + b"}" * 10**5, f"nested deeper than {DEEPEST} levels; give it"),
        (b'{"one":' + b"9" * 5000 + b"}", "give it"),
    ],
)
def test_what_is_no_json_says_what_where_and_the_cure(
    path: Path, content: bytes, complaint: str
) -> None:
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_json(path, Small, option="--one", cure="give it")
    assert str(caught.value).startswith(f"--one {path}: ")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_depth_is_of_brackets_and_not_of_what_strings_hold() -> None:
    deepest = b"[" * DEEPEST + b"]" * DEEPEST
    assert parse_json(deepest, object, where="x")
    with pytest.raises(InputError, match="nested deeper"):
        parse_json(b"[" + deepest + b"]", object, where="x")
    wide = b"[" + b",".join([b'{"a": [[], "]]{{\\"[[["]}'] * 1000) + b"]"
    assert len(parse_json(wide, list, where="x")) == 1000


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"one = \n", "not TOML (Invalid value (at line 1, column 7))"),
        (b"one = 1\ntwo = 2\n", "Object contains unknown field `two`"),
        (b"one = " + b"[" * 10**5, "nested deeper than"),
        (b"a" + b".a" * 3000 + b" = 1", "give it"),
        (b"one = '\xe9'", "byte 7 is not UTF-8 text"),
    ],
)
def test_what_is_no_toml_says_what_where_and_the_cure(
    path: Path, content: bytes, complaint: str
) -> None:
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_toml(path, Small, cure="give it")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_cell_that_never_ends_names_its_line() -> None:
    rows = list(csv_rows('a,b\n\n"1\n2",3\n', where="x"))
    assert rows == [(1, ["a", "b"]), (4, ["1\n2", "3"])]
    with pytest.raises(InputError, match=r"^x, line 2: not CSV \(field larger than field limit"):
        list(csv_rows("a,b\n" + "1" * 200_000, where="x"))


def test_what_is_no_file_is_told_apart(path: Path, tmp_path: Path) -> None:
    for other, complaint in (
        (path, "no such file"),
        (tmp_path, "is a folder"),
        (Path("/dev/zero"), "is a device"),
        (Path("a\0b"), "embedded null"),
        (tmp_path / ("y" * 300), "File name too long"),
    ):
        with pytest.raises(InputError, match=complaint):
            read_bytes(other)
    path.write_bytes(b"x")
    with pytest.raises(InputError, match="Not a directory"):
        read_bytes(path / "x")
    os.truncate(path, 2**33)  # a hole, which takes no room
    with pytest.raises(InputError, match=r"has 8\.59 GB"):
        read_bytes(path)
