"""``sp.report`` writes an audit for its owner, and ``sp.check`` for an output checker."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seepage.auditing.any_model.findings import AttackAudit
from seepage.auditing.any_model.report import AttackReport
from seepage.auditing.audit import find_versions
from seepage.auditing.decision.check import LEAVES, PendingCheck
from seepage.auditing.findings import Audit
from seepage.auditing.pipeline import audit_linear
from seepage.auditing.report.audit_report import AuditReport
from seepage.core.leakage import Leakage
from seepage.errors import InputError
from seepage.glm.outsider.leakage import OutsiderLeakage

if TYPE_CHECKING:
    from seepage.layers.recording_audit import RecordingAudit


def report(
    audit: Audit | AttackAudit | RecordingAudit | Leakage[Any] | OutsiderLeakage,
    folder: str | os.PathLike[str] = "seepage-audit",
) -> Path:
    """Write the report of an audit into a private folder; return the path of its page.

    The folder contains the files that :func:`~seepage.auditing.report.rendering.Report.write`
    lists; for an audit by attack, these are the page, ``summary.json`` and ``records.parquet``. In
    a notebook, an audit of a linear model shows the same page.

    If ``audit`` is a leakage, its model is first audited with the same noise and attacker;
    ``leak.report(folder)`` does the same.

    Examples
    --------
    >>> import tempfile, seepage as sp
    >>> wine = sp.data.load_bundled("wine")
    >>> model = sp.glm.LogisticRegression(l2=0.1).fit(wine.X, wine.y == 0)
    >>> found = sp.audit(model, wine.X, wine.y == 0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sp.report(found, f"{folder}/report").name
    'report.html'
    """
    if isinstance(audit, Leakage | OutsiderLeakage):
        audit = _audit_of(audit)
    rounds = sys.modules.get("seepage.layers.recording_audit")  # tables need no torch
    if rounds is not None and isinstance(audit, rounds.RecordingAudit):
        from seepage.auditing.rounds.report import RecordingReport

        source, about = "recorded updates", "the property"
        return RecordingReport(audit, source, about, versions=find_versions()).write(folder)
    return _report_of(audit, "sp.report").write(folder)


def _audit_of(leak: Leakage[Any] | OutsiderLeakage) -> Audit:
    """Return an audit of the model whose leakage was measured."""
    inputs, noise = leak.inputs, leak.noise
    if inputs is None or len(noise) > 1 or any(one.on for one in noise):
        raise InputError(
            "A report covers the released parameters of one linear model on a table in memory; for "
            "other models, use sp.report(sp.audit(model, X, y), folder)."
        )
    options = dict(inputs.options)
    if options.pop("attributes") is not None:
        raise InputError(
            "A report determines which columns belong together; leave out attributes=, and fit a "
            "pipeline with OneHotEncoder on the raw table: sp.audit(pipeline, X, y)."
        )
    sigma: Any = noise[0] if noise else None
    return audit_linear(inputs.model, inputs.X, inputs.y, noise=sigma, **options)


def check(
    audit: Audit | AttackAudit,
    path: str | os.PathLike[str] = "seepage-check.json",
    *,
    files: Mapping[str, str | os.PathLike[str]] | None = None,
) -> Path:
    """Write a check of an audit, for an output checker; return the path of the text sheet.

    The check consists of a JSON file and a text sheet in the same folder, which only their owner
    can read. Both files contain a recommendation (``refuse``, ``review`` or ``release``), its
    reasons, the command, and a list of the audited files.

    Parameters
    ----------
    audit
        The result of :func:`seepage.audit` or :func:`seepage.audit_estimator`; with ``preset=`` it
        is checked against limits.
    path
        The JSON file.
    files
        The audited files by role, such as ``{"table": "ward.csv"}``; the check records the SHA-256
        of each.
        None of these files may be published: only ``seepage release`` makes files to publish, and
        only its check can recommend ``release``.

    Notes
    -----
    An existing file is replaced only if it is a check. The keys of the JSON file:

    - ``schema``: ``seepage-check/1``. The number increases when a key changes its meaning or is
      removed; new keys may appear without a new number.
    - ``notice``, ``when``: a warning that the numbers are sensitive, and the time of writing (UTC).
    - ``recommendation``, ``reasons``: ``release``, ``review`` or ``refuse``, and the reasons, one
      sentence each, the most important first.
    - ``verdict``: ``tone`` (``good``, ``caution``, ``bad``) and ``label`` of the report.
    - ``preset``, ``limits``, ``passed``: the preset, if one was named; one entry per limit, as in
      ``gates`` of ``summary.json``; whether all are met, or ``null`` without limits.
    - ``answers``: the report's first questions, each with its answer.
    - ``run``: the ``command`` and the ``settings`` that were given; files by name, without their
      folders.
    - ``files``: the ``role`` of every file (``table``, ``model_file``, ``public``, ``plan``;
      ``release`` if it is to be published), its ``name``, size in ``bytes`` and ``sha256``; for a
      folder, all files in it.
    - ``found``: the numbers, under the keys of ``summary.json``: ``source``, ``unit``, ``model``,
      ``release`` or ``sigma``, ``risks``, ``outsider``, ``attacks``, ``structure``,
      ``disclosures``, ``ledger``, ``usefulness``, ``steps``, ``versions``, if measured.

    Examples
    --------
    >>> import tempfile, seepage as sp
    >>> wine = sp.data.load_bundled("wine")
    >>> model = sp.glm.LogisticRegression(l2=0.1).fit(wine.X, wine.y == 0)
    >>> found = sp.audit(model, wine.X, wine.y == 0, preset="open")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sp.check(found, f"{folder}/check.json").name
    'check.txt'
    """
    report = _report_of(audit, "sp.check")
    named = {role: Path(file) for role, file in (files or {}).items()}
    if LEAVES in named:
        raise InputError(
            f"No file of an audit can have the role {LEAVES!r}, because an audit publishes "
            "nothing. Leave this role out, or use `seepage release --check` to publish and check "
            "files."
        )
    PendingCheck(Path(path), named, ()).write(report, "audit")
    return Path(path).with_suffix(".txt")


def _report_of(audit: Any, call: str) -> AuditReport | AttackReport:
    if isinstance(audit, Audit):
        return AuditReport(audit)
    if isinstance(audit, AttackAudit):
        return AttackReport(audit)
    raise InputError(
        f"{call} requires the result of sp.audit(model, X, y) or sp.audit_estimator(model, X, y), "
        f"not an object of type {type(audit).__name__}."
    )
