"""The Optuna study on disk: opened, set aside when it cannot serve, begun anew."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import optuna
import sqlalchemy
import sqlalchemy.exc
from sqlalchemy.engine import URL

from cptune.errors import LedgerError, SpecError
from cptune.search.sampler.legal_set import LegalSetSampler

_SPACE_ATTR = "cptune_space"
_BROKEN = (optuna.exceptions.OptunaError, sqlalchemy.exc.SQLAlchemyError, ImportError)  # driver


def check_storage(url: str) -> None:
    """Refuse a storage URL that no installed driver can serve; nothing is connected.

    Raises:
        SpecError: naming the URL without its password.
    """
    try:
        sqlalchemy.create_engine(url).dispose()
    except (sqlalchemy.exc.ArgumentError, ImportError) as exc:
        raise SpecError(
            f"storage.study | {exc}",
            hint='wanted "sqlite" (in the run directory) or a SQLAlchemy URL; PostgreSQL needs '
            "the extra cptune[postgres]",
        ) from exc


def open_study(name: str, storage: Path | str, sampler: LegalSetSampler) -> optuna.Study:
    """Open or create the study; a SQLite file that cannot serve is set aside, never deleted."""
    space = repr(sorted((key, str(value)) for key, value in sampler.distributions.items()))
    url = _sqlite_url(storage) if isinstance(storage, Path) else storage
    try:
        study = _create(name, url, sampler)
        if study.user_attrs.get(_SPACE_ATTR, space) != space:
            raise LedgerError(f"study {name!r} in {storage} was made for another search space")
    except (LedgerError, *_BROKEN) as exc:
        if not isinstance(storage, Path):
            raise LedgerError(f"cannot use the Optuna storage: {exc}") from exc
        _set_aside(storage)
        study = _create(name, url, sampler)
    study.set_user_attr(_SPACE_ATTR, space)
    return study


def _sqlite_url(path: Path) -> str:
    """Quoted, since a path may hold '?' or '%'."""
    return URL.create("sqlite", database=str(path)).render_as_string()


def _create(name: str, url: str, sampler: LegalSetSampler) -> optuna.Study:
    return optuna.create_study(
        study_name=name, storage=url, sampler=sampler, direction="minimize", load_if_exists=True
    )


def _set_aside(path: Path) -> None:
    names = (path.with_name(f"{path.name}.aside-{number}") for number in count(1))
    if path.exists():
        path.rename(next(name for name in names if not name.exists()))


def begin_anew(study: optuna.Study, sampler: LegalSetSampler) -> optuna.Study:
    """An empty study in the place of one that cannot be mended: finished trials are fixed."""
    storage, name = study._storage, study.study_name
    attributes = study.user_attrs
    optuna.delete_study(study_name=name, storage=storage)
    fresh = optuna.create_study(
        study_name=name, storage=storage, sampler=sampler, direction="minimize"
    )
    for key, value in attributes.items():
        fresh.set_user_attr(key, value)
    return fresh
