"""``sp.audit``, which audits a model of any kind, or a table and its target."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seepage.attacks.membership.signals import check_estimator
from seepage.auditing.any_model.attack_audit import audit_estimator
from seepage.auditing.any_model.findings import AttackAudit
from seepage.auditing.entry.tables import audit_file, audit_frame
from seepage.auditing.findings import Audit
from seepage.auditing.pipeline import audit_linear
from seepage.core.noise import Attacker, Gaussian
from seepage.errors import InputError, accepts_other_names
from seepage.glm.adapters.registry import kind_inside
from seepage.glm.preprocessing.raw_columns import read_frame
from seepage.support.library_classes import is_network
from seepage.tables.frames import is_frame
from seepage.tables.source import check_column

_GIVEN = "the given table"


@accepts_other_names
def audit(
    model: Any,
    X: Any = None,
    y: Any = None,
    *,
    target: str | None = None,
    noise: float | Gaussian | None = None,
    target_eta: float | None = None,
    attacker: Attacker | None = None,
    sensitive: Sequence[str] = (),
    groups: Mapping[str, Any] | Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    quantities: Sequence[str] = (),
    drop: Sequence[str] = (),
    missing: str | None = None,
    person: Any = None,
    sample_weight: Any = None,
    preprocessing: str = "frozen",
    refit: str | None = None,
    preset: str | None = None,
    source: str = _GIVEN,
    seed: int = 0,
    shadows: int | None = None,
    jobs: int | None = None,
    train: Callable[[Any, Any], Any] | None = None,
) -> Audit | AttackAudit:
    """Audit a model or a table: who can be recognised, what can be inferred, which remedies help.

    Linear models, and pipelines that end in one, are measured exactly (:class:`Audit`). For a
    pipeline, the leakage is about the raw columns. All other estimators and networks are audited by
    attack with shadow models (:class:`AttackAudit`), as by :func:`seepage.audit_estimator`. An
    attack shows what can be achieved; it cannot show that no attack achieves more.
    :func:`seepage.report` writes a report of either result.

    Parameters
    ----------
    model
        A fitted model of any kind: a linear model (as for :func:`seepage.leakage`), a pipeline, a
        search, a forest or any other scikit-learn estimator, or a torch network. Without ``X``,
        pass a data frame or the path of a table, with ``target=``; a linear model is then fitted to
        it, as by ``seepage audit``.
    X, y
        The raw table and the labels that the model was fitted on; a statsmodels formula includes
        its labels.
    target
        The column to predict, in a data frame passed instead of a model, or in ``X`` if there is no
        ``y``. Otherwise, the name of the labels in the result.
    noise
        The standard deviation of the Gaussian noise on every released number; by default the
        smallest noise that meets ``target_eta``.
    target_eta
        The leakage η that no record should exceed. With the default of 1, an unbiased attack on a
        value has a standard error of at least one standard deviation of the value's column.
    attacker
        An attacker who does not know all other records, such as ``sp.Attacker(knows=0.0)``. The
        success rate of membership inference is then also estimated for this attacker
        (``result.outsider``). With neither ``noise`` nor ``target_eta``, the estimate is for a
        release without noise.
    sensitive
        Columns of ``X`` for which the error on every record is reported.
    groups
        Groups whose leakage is compared: columns of ``X``, or a mapping of names to the group of
        every record.
    categorical
        Columns whose numbers are category codes.
    quantities
        Two-valued numeric columns that are quantities, such as doses. Other two-valued columns
        count as categories, and are measured in whole levels.
    drop, missing
        For a table passed instead of a model: the columns to leave out, and how missing values are
        treated. Missing values raise an error (``"refuse"``, the default), are dropped with their
        rows (``"drop"``), or are imputed (``"impute"``).
    person
        The person of every record, if people may have several records: an identity per record, or a
        column of ``X`` that is not a feature. All records of a person then count together, in every
        result.
    sample_weight
        The weights that the model was fitted with.
    preprocessing
        Whether the values that the pipeline's steps learnt from the data count as public
        (``"frozen"``), or are learnt again when a record changes (``"refitted"``).
    refit
        By default, the whole procedure is refitted without each of the most exposed records if the
        data also determined anything besides the model (scaling, levels, class weights, a penalty).
        The risk of membership inference is then that of the whole procedure. ``"model"`` keeps
        everything but the model fixed; ``risks.held`` of the audit lists the fixed quantities.
        ``"pipeline"`` always refits the whole procedure, and raises an error for a model without
        preceding steps.
    preset
        The limits for the recipients of the release: ``"open"``, ``"partners"`` or ``"internal"``.
        The audit's ``gates`` state whether the limits are met. The presets are recommendations of
        seepage, not law.
    source
        The name of the table in the result.
    seed
        The seed of the held-out rows and of the noise in the privacy–utility curve; for an audit by
        attack, that of the random halves. No released number depends on the seed.
    shadows, jobs
        For an audit by attack: how many shadow models to fit (16 by default), and how many at a
        time.
    train
        For a network: a function ``train(X, y)`` of tensors that returns a network trained like
        yours. Without ``train``, copies with new weights are trained with Adam until they fit their
        records as well as your network does.

    Examples
    --------
    >>> import seepage as sp
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    >>> model = make_pipeline(StandardScaler(), Ridge(1.0)).fit(X, y)
    >>> result = sp.audit(model, X, y, sensitive=["bmi"])
    >>> result.cell_errors["bmi"].shape
    (442,)

    A table alone, and a forest:

    >>> table = X[["age", "bmi"]].assign(ill=y > 140)[:60]
    >>> sp.audit(table, target="ill").model
    'logistic'
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> tree = DecisionTreeClassifier(random_state=0).fit(X, y > 140)
    >>> found = sp.audit(tree, X, y > 140, shadows=4, random_state=1)
    >>> found.model, found.strongest.auc > 0.7
    ('DecisionTreeClassifier', True)
    """
    linear = {
        "noise": noise,
        "target_eta": target_eta,
        "attacker": attacker,
        "sensitive": tuple(sensitive) or None,
        "categorical": tuple(categorical) or None,
        "quantities": tuple(quantities) or None,
        "person": person,
        "sample_weight": sample_weight,
        "preprocessing": None if preprocessing == "frozen" else preprocessing,
        "refit": refit,
    }
    by_attack = {"shadows": shadows, "jobs": jobs, "train": train}
    common: dict[str, Any] = {"preset": preset, "seed": seed}
    if isinstance(model, str | os.PathLike) or (is_frame(model) and not hasattr(model, "predict")):
        refused = ("sample_weight", "preprocessing", "refit")
        whom = "a fitted model; leave it out, as a model will be fitted on the table"
        _refuse(by_attack | {name: linear.pop(name) for name in refused}, whom)
        if X is not None or y is not None or target is None:
            raise InputError(
                "Without a model, pass the whole table and the name of the column to predict: "
                "sp.audit(table, target='y'). With a model, use sp.audit(model, X, y)."
            )
        linear |= {"drop": drop, "missing": missing}
        options = {name: value for name, value in linear.items() if value is not None} | common
        if isinstance(model, str | os.PathLike):
            return audit_file(Path(model), target, groups, **options)
        return audit_frame(model, target, groups, source=source, **options)
    of_tables = {"drop": tuple(drop) or None, "missing": missing}
    _refuse(of_tables, "a table that is given without a model; prepare X before the fit instead")
    if X is None:
        raise InputError(
            "Pass the data that the model was fitted on: sp.audit(model, X, y). To fit a model "
            "instead, pass a data frame and the column to predict: sp.audit(table, target='y')."
        )
    if isinstance(model, type):
        check_estimator(model)  # which says that it is a class
    if y is None and target is not None:
        X, y = _parted(X, target)
    if y is None and not hasattr(model, "model"):  # results of statsmodels have their own labels
        raise InputError(
            "y, the labels that the model was fitted on, is missing: use sp.audit(model, X, y), or "
            "name the label column of X with target=."
        )
    if is_network(model):
        from seepage.auditing.any_model.network import as_estimator

        _refuse(linear, "linear models; leave it out, as a network is audited by attack")
        model, X, y, steps = as_estimator(model, X, y, train=train, seed=seed)
    elif train is None and _is_linear(model):
        _refuse(by_attack, "models audited by attack; leave it out for a linear model")
        return audit_linear(
            model,
            X,
            y,
            noise=noise,
            target_eta=target_eta,
            attacker=attacker,
            sensitive=sensitive,
            groups=groups,
            categorical=categorical,
            quantities=quantities,
            person=person,
            sample_weight=sample_weight,
            preprocessing=preprocessing,
            refit=refit,
            source=source,
            target=target,
            **common,
        )
    else:
        called = type(model).__name__
        _refuse({"train": train}, f"networks; leave it out, as {called} has its own method fit")
        _refuse(linear, f"linear models; leave it out, as {called} is audited by attack")
        steps = ()
    return audit_estimator(
        model,
        X,
        y,
        source=source,
        target=target or str(getattr(y, "name", None) or "label"),
        shadows=16 if shadows is None else shadows,
        jobs=1 if jobs is None else jobs,
        groups=_labels(groups, X),
        steps=steps,
        **common,
    )


def _refuse(options: Mapping[str, Any], whom: str) -> None:
    """Raise an error if one of the given options does not apply to this kind of model."""
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name}= applies only to {whom}.")


def _is_linear(model: Any) -> bool:
    """Return whether a model is measured exactly; raise an error if it cannot be audited.

    A linear model with unsupported settings raises an error later, which suggests a remedy.
    """
    try:
        kind_inside(model)
    except InputError as problem:
        try:
            check_estimator(model)
        except InputError:
            raise problem from None
        return False
    return True


def _parted(X: Any, target: str) -> tuple[Any, Any]:
    """Return a data frame without its target column, and that column (``None`` if it has none)."""
    if not is_frame(X):
        return X, None
    frame, _ = read_frame(X)
    if target not in frame.columns:
        return X, None
    return frame.drop(target).to_native(), frame[target].to_native()


def _labels(groups: Mapping[str, Any] | Sequence[str] | None, X: Any) -> Mapping[str, Any] | None:
    """Return the group of every record, by name; named columns are read from the table."""
    if groups is None or isinstance(groups, Mapping):
        return groups
    frame, _ = read_frame(X)
    names = [groups] if isinstance(groups, str) else list(groups)
    for name in names:
        check_column(name, frame.columns)
    return {name: frame[name].to_numpy() for name in names}
