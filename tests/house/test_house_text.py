"""What the project's own text may hold: ASCII, finished code, nothing of one person's machine."""

import re
from collections.abc import Iterator

import pytest
from house_sources import ROOT, product_sources, written_files

# [brackets] keep each pattern from finding itself
PRIVATE = {
    "an absolute path of one machine": r"(?<![\w.~-])/(?:wor[k]|roo[t]|home/(?!ray\b)\w+)/",
    "a temporary folder of one machine": r"/tm[p]/[a-z]+/",
    "the number of an issue": r"\bissu[e] #?[0-9]+",
}
UNFINISHED = r"\b(?:TODO|FIXME|XXX|NotImplementedError)\b"


def matches(text: str, pattern: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.search(pattern, line, re.IGNORECASE):
            yield f"{number}: {found[0]}"


def unfinished(text: str) -> list[str]:
    return [found[0] for line in text.splitlines() if (found := re.search(UNFINISHED, line))]


@pytest.mark.parametrize("what", PRIVATE)
def test_text_holds_nothing_private(what):
    found = {
        path: lines
        for path in written_files()
        if (lines := list(matches((ROOT / path).read_text(), PRIVATE[what])))
    }
    assert found == {}, what


@pytest.mark.parametrize(
    ("what", "samples"),
    [
        (
            "an absolute path of one machine",
            ["/wor" + "k/main", "see /hom" + "e/ann/x", "/roo" + "t/"],
        ),
        ("a temporary folder of one machine", ["/tm" + "p/abc/x"]),
        ("the number of an issue", ["Issu" + "e #12", "see issu" + "e 7"]),
    ],
)
def test_private_text_is_found(what, samples):
    assert all(list(matches(sample, PRIVATE[what])) for sample in samples)


def test_ordinary_paths_and_citations_are_not_private():
    for sample in ("https://a.b/c/work/d", "ray#21075", "/home/ray/x", "$TMPDIR/a", "./work/x"):
        assert not any(list(matches(sample, pattern)) for pattern in PRIVATE.values()), sample


def test_text_is_ascii():
    assert [p for p in written_files() if not (ROOT / p).read_bytes().isascii()] == []


def test_product_code_is_finished():
    assert {s.path: found for s in product_sources() if (found := unfinished(s.text))} == {}


def test_unfinished_code_is_found():
    assert unfinished("x = 1  # TODO: y\nraise NotImplementedError(x)\n") == [
        "TODO",
        "NotImplementedError",
    ]


def test_written_files_hold_the_projects_text():
    assert {"Makefile", "LICENSE", "pyproject.toml", ".ci/run"} <= set(written_files())
