"""Trees in the format of the Penn Treebank."""

import gzip
import os
from pathlib import Path

import pytest

from heedful.data.trees.treebank import IGNORE_INDEX, MAX_DEPTH, SentimentTrees, Tree, parse_tree, read_trees
from heedful.errors import UserError

DATA = Path(os.environ.get("HEEDFUL_DATA", "../shared/data"))
SST = DATA / "sst-trees"
LINE = "(3 (2 It) (4 (2 's) (4 great)))"


def test_trees_are_parsed_children_first() -> None:
    tree = parse_tree(LINE, "here", 5)
    assert tree.labels == (2, 2, 4, 4, 3)
    assert tree.words == ("It", "'s", "great", None, None)
    assert tree.children == ((), (), (), (1, 2), (0, 3))
    assert tree.text == "It 's great"
    assert len(tree) == 5


def test_whitespace_around_words_is_ignored() -> None:
    assert parse_tree("  (3(2 It)\t(4 (2   's) (4 great) ) ) ", "here", 5) == parse_tree(LINE, "here", 5)
    assert parse_tree("(2 8\xa01\\/2)", "here", 5).words == ("8\xa01/2",)


def test_treebank_escapes_are_decoded() -> None:
    tree = parse_tree("(2 (2 -LRB-) (2 (2 ``) (2 (2 and\\/or) (2 -RRB-))))", "here", 5)
    assert tree.text == '( " and/or )'


def test_without_classes_any_label_is_accepted() -> None:
    tree = parse_tree("(S (NP It) (VP (V 's) (ADJ great)))", "here", None)
    assert set(tree.labels) == {IGNORE_INDEX}
    assert tree.children == parse_tree(LINE, "here", 5).children


BAD = [
    ("3 (2 It))", 1, "'3'", "begins with a bracket"),
    ("(3 (2 It) (4 great)", 1, "1 bracket still open", "not closed"),
    ("(3 (2 It) (4 (2 a) (1 b", 20, "3 brackets still open", "not closed"),
    ("(3 (2 It)) )", 12, "')'", "after the tree"),
    ("(3 (2 It)) (2 more)", 12, "'(2 more)'", "after the tree"),
    ("(3 (2 It)) word", 12, "'word'", "after the tree"),
    ("((2 It))", 2, "'('", "label is missing"),
    ("(3 (2 It) ())", 12, "')'", "label is missing"),
    ("()", 2, "')'", "label is missing"),
    ("(", 1, "1 bracket still", "not closed"),
    ("(3)", 1, "'(3)'", "empty"),
    ("(3 (2 It) (2 ))", 11, "'(2 )'", "empty"),
    ("(x It)", 2, "'x'", "not a label"),
    ("(5 It)", 2, "'5'", "not a label"),
    ("(-1 It)", 2, "'-1'", "not a label"),
    ("(2.0 It)", 2, "'2.0'", "not a label"),
    ("(² It)", 2, "'²'", "not a label"),
    (f"({'9' * 5000} It)", 2, "999", "not a label"),
    ("(3 It is)", 7, "'is' besides", "one word"),
    ("(3 (2 It) is)", 11, "'is' besides", "one word"),
    ("(3 It (2 is))", 7, "a node after 'It'", "a word or nodes"),
    ("(1 " * (MAX_DEPTH + 1) + "a" + ")" * (MAX_DEPTH + 1), 3 * MAX_DEPTH + 1, "level 1,001", "too deep"),
    ("(1 " * 33_000, 3 * MAX_DEPTH + 1, "level 1,001", "too deep"),
]


@pytest.mark.parametrize(("line", "column", "found", "message"), BAD, ids=[line[:24] for line, *_ in BAD])
def test_malformed_trees_are_located(line: str, column: int, found: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "trees.txt"
    path.write_text(f"{LINE}\n\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match=message) as caught:
        read_trees(path, 100_000, 5)
    assert caught.value.where == f"{path}:3:{column}"
    assert found in (caught.value.found or "")
    assert caught.value.expected


def test_maximum_depth_is_accepted() -> None:
    assert len(parse_tree("(1 " * MAX_DEPTH + "a" + ")" * MAX_DEPTH, "here", 5)) == MAX_DEPTH


def test_plain_and_gzip_files_are_equal_and_blank_lines_counted(tmp_path: Path) -> None:
    text = f"{LINE}\n\n(2 word)\r\n"
    (tmp_path / "plain.txt").write_bytes(text.encode())
    (tmp_path / "packed.txt.gz").write_bytes(gzip.compress(text.encode()))
    source = SentimentTrees(root=str(tmp_path), train="plain.txt", valid="packed.txt.gz")
    assert source.read("train") == source.read("valid")
    assert source.read("train").skipped == 1
    assert source.read("train").trees[1] == Tree((2,), ("word",), ((),))
    with pytest.raises(UserError, match="no test data"):
        source.read("test")


def test_number_of_classes_is_a_setting(tmp_path: Path) -> None:
    (tmp_path / "trees.txt").write_text("(6 word)\n")
    source = SentimentTrees(root=str(tmp_path), train="trees.txt", valid="trees.txt", classes=7)
    assert source.read("train").trees[0].labels == (6,)


def test_file_without_a_tree_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text("\n \n")
    with pytest.raises(UserError, match="no tree") as caught:
        read_trees(tmp_path / "blank.txt", 100, 5)
    assert caught.value.found == "2 blank lines"


def test_every_missing_file_is_named(tmp_path: Path) -> None:
    source = SentimentTrees(root=str(tmp_path), train="a", valid="b", test="c", vectors="d")
    assert [error.where for error in source.problems()] == [str(tmp_path / name) for name in "abcd"]
    assert [error.where for error in source.problems(["test"])] == [
        str(tmp_path / "c")
    ]  # the test split needs no vectors
    nowhere = SentimentTrees(root=str(tmp_path / "none"), train="a", valid="b")
    assert [error.where for error in nowhere.problems()] == ["data.root"]


@pytest.mark.skipif(not SST.is_dir(), reason=f"no sentiment trees in {SST}; set HEEDFUL_DATA")
def test_sentiment_treebank_has_its_published_counts() -> None:
    source = SentimentTrees(root=str(SST), train="train.txt.gz", valid="dev.txt.gz", test="test.txt.gz")
    splits = [source.read(split).trees for split in ("train", "valid", "test")]
    assert [len(trees) for trees in splits] == [8544, 1101, 2210]
    assert [sum(tree.labels[-1] != 2 for tree in trees) for trees in splits] == [6920, 872, 1821]
    roots = [tree.labels[-1] for tree in splits[0]]
    assert [roots.count(label) for label in range(5)] == [1092, 2218, 1624, 2322, 1288]
    assert {len(children) for trees in splits for tree in trees for children in tree.children} == {0, 2}
