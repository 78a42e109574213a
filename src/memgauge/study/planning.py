"""Writing many trials into Optuna's tables at once.

Optuna's own call takes one trial per transaction, some 20 ms each and more on a busy disk: minutes for the ten
thousand trials of a large study. Here all go in by one transaction, so a plan is in the ledger whole or not at all.
Tables and meaning of their columns: optuna/storages/_rdb/models.py, 5.0.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def write_trials(storage: Any, study_id: int, trials: Sequence[Any]) -> list[tuple[int, int]]:
    """Write trials of a study; returns the number and Optuna's id of each.

    Args:
        storage: Optuna's `RDBStorage`.
        study_id: Optuna's id of the study.
        trials: Optuna's `FrozenTrial`, without number and id.

    Raises:
        ValueError: A parameter has another distribution than in the trials that are there.
    """
    if not trials:
        return []
    from optuna.distributions import (
        check_distribution_compatibility,
        distribution_to_json,
        json_to_distribution,
    )
    from optuna.storages._rdb import models
    from optuna.storages._rdb.storage import _create_scoped_session
    from sqlalchemy import func, insert, select

    table, params, values = models.TrialModel, models.TrialParamModel, models.TrialValueModel
    with _create_scoped_session(storage.scoped_session) as session:
        models.StudyModel.find_or_raise_by_id(study_id, session, for_update=True)  # numbers are ours to give
        for name, distribution in {n: d for t in trials for n, d in t.distributions.items()}.items():
            before = session.scalars(
                select(params.distribution_json)
                .join(table, table.trial_id == params.trial_id)
                .where(table.study_id == study_id, params.param_name == name)
                .limit(1)
            ).first()
            if before is not None:
                check_distribution_compatibility(json_to_distribution(before), distribution)
        first = session.scalar(select(func.count()).where(table.study_id == study_id)) or 0
        rows = [
            {
                "number": first + i,
                "study_id": study_id,
                "state": t.state,
                "datetime_start": t.datetime_start,
                "datetime_complete": t.datetime_complete,
            }
            for i, t in enumerate(trials)
        ]
        made = insert(table.__table__).returning(table.trial_id, sort_by_parameter_order=True)
        ids = list(session.execute(made, rows).scalars())
        pairs = list(zip(ids, trials, strict=True))
        texts: dict[int, str] = {}
        for distribution in {id(d): d for t in trials for d in t.distributions.values()}.values():
            texts[id(distribution)] = distribution_to_json(distribution)
        _insert(
            session,
            params,
            [
                {
                    "trial_id": i,
                    "param_name": n,
                    "param_value": t.distributions[n].to_internal_repr(v),
                    "distribution_json": texts[id(t.distributions[n])],
                }
                for i, t in pairs
                for n, v in t.params.items()
            ],
        )
        _insert(
            session,
            models.TrialUserAttributeModel,
            [
                {"trial_id": i, "key": key, "value_json": json.dumps(v)}
                for i, t in pairs
                for key, v in t.user_attrs.items()
            ],
        )
        stored = [(i, values.value_to_stored_repr(t.value)) for i, t in pairs if t.value is not None]
        _insert(
            session,
            values,
            [{"trial_id": i, "objective": 0, "value": v, "value_type": kind} for i, (v, kind) in stored],
        )
    return [(first + place, i) for place, i in enumerate(ids)]


def _insert(session: Any, model: Any, rows: list[dict[str, Any]]) -> None:
    from sqlalchemy import insert

    if rows:
        session.execute(insert(model.__table__), rows)
