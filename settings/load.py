"""Reads the settings, and refuses wrong ones by name."""

import difflib
import json
import os
from collections.abc import Iterator, Mapping
from typing import get_origin

from dotenv import dotenv_values
from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import SettingsError as UnreadableSetting

from settings.model import PREFIX, Settings, SettingsGroup


class SettingsError(Exception):
    """One or more settings are wrong; the message names each and says what is allowed."""


def load_settings(env_file: str = ".env") -> Settings:
    """The settings of this process. Variables of the environment win over those in the file.

    Nothing of the file stays in the environment: a child process reads the file itself, as it is then, so that what a
    person corrects there counts at the next launch.
    """
    added = {
        name: value
        for name, value in dotenv_values(env_file).items()
        if name.startswith(PREFIX) and value is not None and name not in os.environ
    }
    os.environ.update(added)
    try:
        return _settings()
    finally:
        for name in added:
            del os.environ[name]


def _settings() -> Settings:
    _refuse_unknown(os.environ)
    try:
        return Settings()
    except ValidationError as error:
        raise SettingsError("\n".join(_sentences(error))) from None
    except UnreadableSetting as error:
        raise SettingsError("\n".join(_unreadable()) or f"{error}.") from None


def each_setting() -> Iterator[tuple[str, FieldInfo]]:
    """Every setting as its variable and its field, in the order of the documentation."""
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, SettingsGroup):
            for inner_name, inner in field.annotation.model_fields.items():
                yield _variable(name, inner_name), inner
        else:
            yield _variable(name), field


def _variable(*path: str | int) -> str:
    return PREFIX + "_".join(str(part) for part in path).upper()


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    known = {variable for variable, _ in each_setting()}
    unknown = sorted(name for name in environment if name.startswith(PREFIX) and name not in known)
    if unknown:
        sentences = []
        for name in unknown:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "docs/settings.md lists them all."
            sentences.append(f"{name} is not a setting: {hint}")
        raise SettingsError("\n".join(sentences))


def _unreadable() -> Iterator[str]:
    """A sentence for each setting that has to be JSON and is not."""
    forms = {dict: 'a JSON object like {"name": "value"}', list: 'a JSON array like ["one", "another"]'}
    for variable, field in each_setting():
        kind = get_origin(field.annotation)
        if kind in forms and variable in os.environ and not _is_json(os.environ[variable], kind):
            yield f"{variable} is refused: write {forms[kind]}."


def _is_json(text: str, kind: type) -> bool:
    try:
        return isinstance(json.loads(text), kind)
    except ValueError:
        return False


def _sentences(error: ValidationError) -> Iterator[str]:
    secrets = {variable for variable, field in each_setting() if SecretStr.__name__ in str(field.annotation)}
    for wrong in error.errors():
        name = _variable(*wrong["loc"])
        problem = wrong["msg"].removeprefix("Value error, ")
        if not isinstance(wrong["input"], str):
            yield f"{problem}." if PREFIX in problem else f"{name} is refused: {problem}."
        elif name in secrets:
            yield f"{name} is refused: {problem}."
        else:
            yield f"{name}={wrong['input']} is refused: {problem}."
