"""Write the table of models in ``docs/how-to/models.md`` from the registry and the tests' doors.

``python tests/models_page.py`` (``make models-page``) rewrites it; ``tests/test_models_page.py``
fails where it is stale. A model is called audited right only where a door leads to it, and
``tests/glm/adapters/test_doors.py`` holds every door to 1e-6 of refits by the model's own library.
"""

from pathlib import Path

from doors import DOORS, FORMULAS, PIPELINES, SEARCHES
from seepage.core.result import COLUMNS, SETTINGS, held_sentences
from seepage.glm.adapters.kinds import ModelKind, RefusedKind
from seepage.glm.adapters.registry import KINDS
from seepage.glm.preprocessing.transformers import KNOWN

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "models.md"
START, END = "<!-- models: made by `make models-page` -->\n", "<!-- end of models -->\n"
RIGHT = "audited right"
_TITLES = {"sklearn": "scikit-learn", "seepage": "seepage.glm"}


def models_table() -> str:
    """Return the part of the page that is made from the registry."""
    lines = [
        START,
        "Each number is the derivative of the release by one cell or label. It is compared "
        "with refits by the model's own library, one column at a time, to a relative 1e-6 "
        "(`tests/glm/adapters/test_doors.py`).\n",
        "### Supported models\n",
        "| library | model | what it minimises | | what is left out |",
        "|-|-|-|-|-|",
    ]
    for kind in KINDS:
        if isinstance(kind, ModelKind) and kind.library != "seepage":
            assert _door(kind) in DOORS, f"no test opens the door of {kind.name}"
            held = (*[COLUMNS] * kind.selects, *kind.chooses)
            left_out = " ".join([*held_sentences(held), *[kind.note] * bool(kind.note)])
            lines.append(_row(_title(kind), f"`{kind.name}`", kind.objective, RIGHT, left_out))
    (searched,) = held_sentences([SETTINGS])
    lines.extend(
        _row("scikit-learn", f"`{name}`", "that of its best model", RIGHT, searched)
        for name in SEARCHES
    )
    names = " and ".join(f"`{name}`" for name in FORMULAS)
    lines.append(
        _row(
            "statsmodels",
            "formulas",
            "on the data frame as you have it",
            RIGHT,
            f"What a formula itself learnt counts as public ({names} in the tests).",
        )
    )
    lines += [
        "",
        "### Steps before a model\n",
        "| step | frozen | refitted |",
        "|-|-|-|",
    ]
    tested = {name.split(",")[0] for name in PIPELINES}
    for name in KNOWN:
        if name in tested:
            lines.append(f"| `{name}` | {RIGHT} | {RIGHT} |")
    lines += [
        _row("`ColumnTransformer`, `FeatureUnion`, `Pipeline`", *["as their parts"] * 2),
        _row(
            "other transformers that treat every row by itself, your own classes included",
            "by differences",
            "refused: how the numbers they learnt move is not known; freeze them",
        ),
        _row(
            "`TargetEncoder`, `SelectKBest` and others that read the target",
            "risks only, by refits: no derivative follows the labels of the others",
            "the same",
        ),
        _row(
            "`KBinsDiscretizer`, `Binarizer` and others that cut numbers",
            "risks only, by refits: a record moves nothing until it crosses an edge",
            "the same",
        ),
        "",
        "A number moves by its derivative. A category or a yes/no column moves by whole levels: "
        "from the first to each of the others, all else unchanged.\n",
        "### Refused models\n",
        "| library | model | why | instead |",
        "|-|-|-|-|",
    ]
    for kind in KINDS:
        if isinstance(kind, RefusedKind):
            every = "every module" if kind.library == "torch" else "all other estimators"
            name = every if kind.name == "*" else f"`{kind.name}`"
            lines.append(_row(_title(kind), name, kind.why, kind.instead))
    return "\n".join([*lines, "", END])


def _door(kind: ModelKind) -> str:
    return f"skglm {kind.name}" if kind.library == "skglm" else kind.name


def _title(kind: ModelKind | RefusedKind) -> str:
    return _TITLES.get(kind.library, kind.library)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def rewritten(page: str) -> str:
    """Return a page with its table made anew."""
    before, _, rest = page.partition(START)
    return before + models_table() + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text("utf-8")), "utf-8")
