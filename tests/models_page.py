"""Write the table of models in ``docs/how-to/models.md`` from the registry and the tests' doors.

``python tests/models_page.py`` (``make models-page``) rewrites it; ``tests/test_models_page.py``
fails where it is stale. A model is listed as supported only where a door leads to it, and
``tests/glm/adapters/test_doors.py`` holds every door to 1e-6 of refits by the model's own library.
"""

from pathlib import Path

from doors import DOORS, FORMULAS, PIPELINES, SEARCHES
from seepage.core.result import COLUMNS, SETTINGS
from seepage.glm.adapters.registry import (
    KINDS,
    ModelKind,
    RefusedKind,
)
from seepage.glm.preprocessing.transformers import KNOWN

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "models.md"
START, END = "<!-- models: made by `make models-page` -->\n", "<!-- end of models -->\n"
_TITLES = {"sklearn": "scikit-learn", "seepage": "seepage.glm"}


def models_table() -> str:
    """Return the part of the page that is made from the registry."""
    lines = [
        START,
        "### Supported models\n",
        "Derivatives agree with refits by the model's own library to a relative error of 1e-6 "
        "(`tests/glm/adapters/test_doors.py`). ω are sample weights, ℓ the loss of one record; "
        "leakage through what η [holds fixed](risks.md#what-is-held-fixed) is not counted.\n",
        "|library|models and their objectives|held fixed|",
        "|-|-|-|",
    ]
    kinds = [kind for kind in KINDS if isinstance(kind, ModelKind) and kind.library != "seepage"]
    supported: dict[tuple[str, str], dict[str, list[str]]] = {}
    for kind in kinds:
        assert _door(kind) in DOORS, f"no test opens the door of {kind.name}"
        held = ", ".join((*[COLUMNS] * kind.selects, *kind.chooses))
        objectives = supported.setdefault((_title(kind), held), {})
        objectives.setdefault(kind.objective, []).append(kind.name)
    supported["scikit-learn", SETTINGS] = {"that of its best model": list(SEARCHES)}
    formulas = f"formulas of {_names([name.split()[0] for name in FORMULAS])}"
    lines += [
        *(
            _row(library, "<br>".join(f"{_names(n)}: {o}" for o, n in models.items()), held)
            for (library, held), models in supported.items()
        ),
        _row("statsmodels", formulas, "estimates of the formula"),
        "",
    ]
    notes: dict[str, list[str]] = {}
    for kind in kinds:
        if kind.note:
            notes.setdefault(kind.note, []).append(kind.name)
    lines += [f"- {_names(names)}: {note}" for note, names in notes.items()]
    tested = {name.split(",")[0] for name in PIPELINES}
    lines += [
        "",
        "### Steps before a model\n",
        "|step|frozen|refitted|",
        "|-|-|-|",
        _row(_names([name for name in KNOWN if name in tested]), "exact", "exact"),
        _row("`ColumnTransformer`, `FeatureUnion`, `Pipeline`", *["as their parts"] * 2),
        _row(
            "other transformers that treat each row separately, your own included",
            "finite differences",
            "error; freeze them",
        ),
        _row(
            "`TargetEncoder`, `SelectKBest` and others that use the target; "
            "`KBinsDiscretizer`, `Binarizer` and others that bin numbers",
            *["no η; risks by refits"] * 2,
        ),
        "",
        "For categories and yes/no columns, η measures the change from the first level to each "
        "other level, not a derivative.\n",
        "### Unsupported models\n",
        "The error message states the reason.\n",
        "|model|use instead|",
        "|-|-|",
    ]
    refused: dict[str, dict[str, list[str]]] = {}
    for kind in KINDS:
        if isinstance(kind, RefusedKind):
            refused.setdefault(kind.instead, {}).setdefault(_title(kind), []).append(kind.name)
    lines += [
        _row("; ".join(_refused(*models) for models in libraries.items()), instead)
        for instead, libraries in refused.items()
    ]
    return "\n".join([*lines, "", END])


def _refused(library: str, names: list[str]) -> str:
    """Return the unsupported models of a library for one reason."""
    if names == ["*"]:
        return f"all others of {library}" if library == "skglm" else f"all of {library}"
    return f"{library}: {_names(names)}"


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _door(kind: ModelKind) -> str:
    return f"skglm {kind.name}" if kind.library == "skglm" else kind.name


def _title(kind: ModelKind | RefusedKind) -> str:
    return _TITLES.get(kind.library, kind.library)


def _row(*cells: str) -> str:
    return "|" + "|".join(cell.replace("|", "\\|") for cell in cells) + "|"


def rewritten(page: str) -> str:
    """Return a page with its table made anew."""
    before, _, rest = page.partition(START)
    return before + models_table() + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text("utf-8")), "utf-8")
