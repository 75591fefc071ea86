"""The rooms and who may import whom."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
EVERYWHERE = {"settings", "processes"}
MAY_IMPORT = {
    "settings": set(),
    "processes": set(),
    "hub": EVERYWHERE,
    "lake": EVERYWHERE,
    "ml": EVERYWHERE,
    "streaming": EVERYWHERE | {"hub", "lake", "ml"},
    "assets": EVERYWHERE | {"lake", "streaming", "ml"},
    "orchestration": EVERYWHERE | {"hub", "lake", "streaming", "ml", "assets", "bench"},
    "bench": EVERYWHERE | {"hub", "lake", "streaming", "ml", "assets", "orchestration"},
}
WITHOUT_DAGSTER = {"settings", "processes", "hub", "lake", "ml", "streaming"}
WITHOUT_DATAFRAMES = {"assets", "orchestration"}


def imports(room: str) -> Iterator[tuple[Path, str]]:
    for file in (REPOSITORY / room).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                yield from ((file, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield file, node.module


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_the_rooms_it_may(room: str) -> None:
    allowed = MAY_IMPORT[room] | {room}
    wrong = [
        f"{file.relative_to(REPOSITORY)} imports {module}"
        for file, module in imports(room)
        if (top := module.split(".")[0]) in MAY_IMPORT and top not in allowed
    ]
    assert not wrong


@pytest.mark.parametrize("room", WITHOUT_DAGSTER)
def test_these_rooms_know_no_dagster(room: str) -> None:
    assert not [module for _, module in imports(room) if module.split(".")[0].startswith("dagster")]


@pytest.mark.parametrize("room", WITHOUT_DATAFRAMES)
def test_these_rooms_build_no_dataframe(room: str) -> None:
    assert not [module for _, module in imports(room) if module.split(".")[0] in {"pyspark", "delta", "pandas"}]


def test_nobody_reads_or_writes_code_as_data() -> None:
    """Models are JSON: loading a pickle runs whatever is in it."""
    forbidden = {"pickle", "joblib", "cloudpickle", "dill", "shelve"}
    wrong = [
        f"{file.relative_to(REPOSITORY)} imports {module}"
        for room in MAY_IMPORT
        for file, module in imports(room)
        if forbidden & set(module.split("."))
    ]
    assert not wrong


def test_every_room_is_listed_here() -> None:
    rooms = {file.parent.name for file in REPOSITORY.glob("*/__init__.py")} - {"tests"}
    assert rooms == set(MAY_IMPORT)
