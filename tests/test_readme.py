"""The README tells the truth: its calls exist, its links lead somewhere."""

import re
import shlex
from pathlib import Path

import click
import pytest

from orchestration.command import tidewatch
from settings.load import each_setting

REPOSITORY = Path(__file__).parents[1]
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
README = PAGES[0].read_text()


def calls() -> list[str]:
    return re.findall(r"^\.venv/bin/tidewatch (.+)$", README, re.MULTILINE)


@pytest.mark.parametrize("call", calls())
def test_a_call_in_the_readme_is_understood(call: str) -> None:
    name, *arguments = shlex.split(call)
    command = tidewatch.commands[name]
    if isinstance(command, click.Group):
        command = command.commands[arguments.pop(0)]
    with click.Context(command) as context:
        command.make_parser(context).parse_args(list(arguments))


def test_the_readme_shows_calls_and_every_command_is_in_it() -> None:
    assert len(calls()) >= 3
    assert set(re.findall(r"^\| `tidewatch ([\w-]+)", README, re.MULTILINE)) == set(tidewatch.commands)


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"`make\s([\w-]+)`", page.read_text())}
    assert {"up", "test", "test-fast", "check"} <= named <= targets


def test_every_setting_that_is_named_exists() -> None:
    known = {variable for variable, _ in each_setting()}
    named = {name for page in PAGES for name in re.findall(r"TIDEWATCH_[A-Z_]+[A-Z]", page.read_text())}
    assert named <= known


def test_every_folder_of_the_layout_exists() -> None:
    layout = README.partition("| folder |")[2]
    folders = re.findall(r"`(\w+)/`", layout)
    assert len(folders) >= 9
    assert all((REPOSITORY / folder).is_dir() for folder in folders)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
        assert (page.parent / link).exists(), link
