"""Which model judges: the current one, or, where that can't be used, the last before it that can."""

from dataclasses import dataclass

from ml.model import Model, ModelRefused
from ml.registry import Record, Registry, RegistryError
from ml.scoring import check_fits


@dataclass(frozen=True)
class InUse:
    model: Model | None
    """None where no model was ever promoted that can be used."""
    refusal: str | None
    """Why it is not the current one."""


def model_in_use(registry: Registry) -> InUse:
    """Reads models, the newest promoted first, until one can be used."""
    refusal = None
    for version in _newest_first(registry):
        try:
            model = registry.model(version)
            check_fits(model)
        except (ModelRefused, RegistryError) as error:
            refusal = refusal or str(error)
        else:
            return InUse(model, refusal)
    return InUse(None, refusal)


class ModelWatch:
    """The model in use, looked for anew only when another one became current."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._current: Record | str | None = "nobody looked yet"
        self._found = InUse(None, None)

    def look(self) -> InUse:
        """An unusable model changes nothing: what was in use goes on."""
        current = self._current_record()
        if current != self._current:
            found = model_in_use(self._registry)
            self._found = found if found.model else InUse(self._found.model, found.refusal)
            self._current = current
        return self._found

    def _current_record(self) -> Record | str | None:
        try:
            return self._registry.current()
        except RegistryError as error:
            return str(error)


def _newest_first(registry: Registry) -> list[str]:
    """What `current` names, though a crash kept it from being noted as a promotion or the other way round; then all
    that was current before."""
    current = registry.current_or_none()
    promoted = [record.version for record in reversed(registry.promotions())]
    return list(dict.fromkeys([*([current.version] if current else []), *promoted]))
