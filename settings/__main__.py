"""Prints docs/settings.md."""

import json
from typing import Any, cast

from pydantic_core import PydanticUndefined

from settings.load import each_setting
from settings.model import REPOSITORY

HEAD = """\
# Settings

Each is an environment variable, or a line `NAME=value` in a file `.env` in the folder that the command is called from;
the environment wins. A wrong value or an unknown name is refused at the start. `python -m settings` writes this page.

| variable | default | in production | what it does |
|---|---|---|---|"""


def settings_page() -> str:
    lines = [HEAD]
    for variable, field in each_setting():
        production = cast("dict[str, Any]", field.json_schema_extra or {}).get("production", "")
        default = "" if field.default in (None, PydanticUndefined, {}) else f"`{_as_written(field.default)}`"
        default = default.replace(f"{REPOSITORY}/", "")
        lines.append(f"| `{variable}` | {default} | {production} | {field.description} |")
    return "\n".join(lines) + "\n"


def _as_written(default: object) -> str:
    return json.dumps(default) if isinstance(default, list) else str(default)


if __name__ == "__main__":
    print(settings_page(), end="")
