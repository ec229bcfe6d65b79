"""The Optuna study on disk: opened, set aside when it cannot serve, begun anew."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TypeAlias

import optuna
import sqlalchemy
import sqlalchemy.exc
from sqlalchemy.engine import URL

from cptune.domain.study import STUDY_WORDS
from cptune.errors import LedgerError, SpecError
from cptune.search.sampler.journal import JournalFile, open_journal
from cptune.search.sampler.legal_set import LegalSetSampler
from topology.words import suggestion

_SPACE_ATTR = "cptune_space"
_BROKEN = (optuna.exceptions.OptunaError, sqlalchemy.exc.SQLAlchemyError, ImportError)  # driver
_URL_MARK = "://"

#: A SQLite file, a journal, a SQLAlchemy URL, or None: in memory, for a search that keeps nothing.
Place: TypeAlias = Path | JournalFile | str | None


def check_storage(study: str) -> None:
    """Refuse a `storage.study` that is no word, and no URL that an installed driver can serve.

    Nothing is connected.

    Raises:
        SpecError: naming the URL without its password.
    """
    if study in STUDY_WORDS:
        return
    if _URL_MARK not in study:
        words = ", ".join(f'"{word}"' for word in STUDY_WORDS)
        raise SpecError(
            f"storage.study | {study!r} is no URL; wanted {words} or a SQLAlchemy URL"
            f"{suggestion(study, STUDY_WORDS)}"
        )
    try:
        sqlalchemy.create_engine(study).dispose()
    except (sqlalchemy.exc.ArgumentError, ImportError) as exc:
        raise SpecError(
            f"storage.study | {exc}",
            hint='wanted "sqlite" or "journal" (in the run directory) or a SQLAlchemy URL; '
            "PostgreSQL needs the extra cptune[postgres]",
        ) from exc


def open_study(name: str, place: Place, sampler: LegalSetSampler) -> optuna.Study:
    """Open or create the study; a file that cannot serve is set aside, never deleted."""
    space = repr(sorted((key, str(value)) for key, value in sampler.distributions.items()))
    try:
        study = _create(name, place, sampler)
        if study.user_attrs.get(_SPACE_ATTR, space) != space:
            raise LedgerError(f"study {name!r} in {place} was made for another search space")
    except (LedgerError, *_BROKEN) as exc:
        if place is None or isinstance(place, str):
            raise LedgerError(f"cannot use the Optuna storage: {exc}") from exc
        _set_aside(place if isinstance(place, Path) else place.path)
        study = _create(name, place, sampler)
    study.set_user_attr(_SPACE_ATTR, space)
    return study


@contextmanager
def kept_in_storage() -> Generator[None]:
    """What a storage that was lost while the search runs raises, as one kind of error.

    Raises:
        LedgerError: with what to do.
    """
    try:
        yield
    except (*_BROKEN, OSError, KeyError) as exc:  # KeyError: somebody deleted the study
        raise LedgerError(
            f"the Optuna storage was lost: {exc}",
            hint="every finished trial is in the run directory: go on with --resume",
        ) from exc


def _opened(place: Place) -> str | optuna.storages.BaseStorage:
    if isinstance(place, JournalFile):
        return open_journal(place.path)
    if place is None:
        return optuna.storages.InMemoryStorage()
    return _sqlite_url(place) if isinstance(place, Path) else place


def _sqlite_url(path: Path) -> str:
    """Quoted, since a path may hold '?' or '%'."""
    return URL.create("sqlite", database=str(path)).render_as_string()


def _create(name: str, place: Place, sampler: LegalSetSampler) -> optuna.Study:
    return optuna.create_study(
        study_name=name,
        storage=_opened(place),
        sampler=sampler,
        direction="minimize",
        load_if_exists=True,
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
