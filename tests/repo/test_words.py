"""No name that we define uses a word that CONTEXT.md says to avoid.

Only a bare single word after `_Avoid_` counts; one with a bracket has an honest other use, so it
is advice. Plurals count as their singular.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.repo.tree import python_files, read

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def avoided_words(glossary: str) -> frozenset[str]:
    lists = re.findall(r"_Avoid_: (.+)$", glossary, flags=re.MULTILINE)
    words = (word.strip() for line in lists for word in line.split(","))
    return frozenset(word for word in words if word.isalpha())


def singular(word: str) -> str:
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def words_of(name: str) -> frozenset[str]:
    return frozenset(singular(word.lower()) for word in _WORD.findall(name))


def defined_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names that this code defines, with their lines; a name it only uses is others' choice."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=str(name))
                | ast.AsyncFunctionDef(name=str(name))
                | ast.ClassDef(name=str(name))
                | ast.arg(arg=str(name))
                | ast.alias(asname=str(name))
                | ast.ExceptHandler(name=str(name))
                | ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
            ):
                yield name, getattr(node, "lineno", 0)
            case _:
                pass


def _findings(path: Path, avoided: frozenset[str]) -> Iterator[str]:
    names = [*defined_names(ast.parse(read(path))), (path.stem, 1)]
    for name, line in names:
        for word in words_of(name) & avoided:
            yield f"{path}:{line}: {name} uses {word!r}"


def test_no_defined_name_uses_a_word_to_avoid() -> None:
    avoided = avoided_words(read(Path("CONTEXT.md")))
    assert [finding for path in python_files() for finding in _findings(path, avoided)] == []


def test_a_bare_word_is_avoided_and_a_bracketed_one_is_advice() -> None:
    glossary = "**Route**: _Avoid_: pipeline, path (of a Session)\n**Tail**: _Avoid_: last worker"
    assert avoided_words(glossary) == {"pipeline"}


def test_plurals_and_camel_case_are_seen_through() -> None:
    source = ast.parse("class PacketCount:\n    def f(self, stages): self.holes = 1\n")
    words = {word for name, _ in defined_names(source) for word in words_of(name)}
    assert {"packet", "stage", "hole"} <= words
