"""Keeps one Chromium open for the pages of a file of tests; figures are drawn, but few twice."""

from __future__ import annotations

import pytest
from browser import Browser
from factory import make_audit

from seepage.auditing.report import audit_report
from seepage.auditing.report.audit_report import AuditReport
from seepage.auditing.report.figures import draw_figures


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def blank_figures():
    """Put the figures on paper."""


@pytest.fixture(scope="session")
def figures():
    """Return the figures of the plain audit."""
    return draw_figures(make_audit())


@pytest.fixture(scope="session")
def written(tmp_path_factory, figures):
    """Return the page of the plain audit, in a folder with all that belongs to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit_report, "draw_figures", lambda audit: figures)
        return AuditReport(make_audit()).write(tmp_path_factory.mktemp("report") / "new" / "folder")
