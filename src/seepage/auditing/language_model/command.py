"""Implementation of ``seepage attack``."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seepage.attacks.extraction.secrets import KINDS
from seepage.auditing.audit import find_versions
from seepage.auditing.findings import Gate
from seepage.auditing.intake.text_records import read_text_records
from seepage.auditing.language_model.loading import check_model_folders, load_model, load_models
from seepage.auditing.questions import ExtractionQuestion
from seepage.errors import InputError
from seepage.support.files import check_folder
from seepage.support.number_check import check_choice, check_count, check_positive, check_share
from seepage.tables.names import shown

if TYPE_CHECKING:
    from seepage.auditing.language_model.comparison import AttackedModel
    from seepage.auditing.language_model.report import ExtractionReport


def run_extraction(question: ExtractionQuestion, *, out: Path | None, as_json: bool) -> bool:
    """Attack a model, and write and print the report; return whether every gate was passed."""
    _check(question)
    given = (question.model_folder, question.records, question.base, question.held_out)
    others = (*map(Path, question.reference), *_compared(question).values())
    check_model_folders(others)
    inputs = tuple(path for path in (*given, question.marked, *others) if path is not None)
    if out is not None:
        check_folder(out, "report", inputs)
    report = _report(question)
    page = None if out is None else report.write(out, inputs)
    private = "the secrets of the training text" if question.show_values else None
    return report.tell(page, as_json=as_json, private=private)


def _check(question: ExtractionQuestion) -> None:
    if find_spec("torch") is None or find_spec("transformers") is None:
        raise InputError(
            "Attacks on language models need torch and transformers; run: pip install "
            "'seepage[transformers]'"
        )
    if question.max_probability is not None:
        check_share(question.max_probability, "--max-probability")
    if question.max_exposure is not None:
        check_positive(question.max_exposure, "--max-exposure")
        if not question.exposure:
            raise InputError("--max-exposure needs --exposure, such as --exposure 10000.")
    if question.max_tpr is not None:
        check_share(question.max_tpr, "--max-tpr")
    for option, given in (("--max-tpr", question.max_tpr), ("--reference", question.reference)):
        if given not in (None, ()) and question.held_out is None:
            raise InputError(
                f"{option} needs --held-out, a file of records that the model was not trained on."
            )
    _compared(question)
    for kind in _kinds(question):
        check_choice(kind, "--kinds", KINDS)
    if question.limit is not None:
        check_count(question.limit, "--limit")


def _kinds(question: ExtractionQuestion) -> list[str]:
    return [kind.strip() for kind in question.kinds.split(",") if kind.strip()]


def _compared(question: ExtractionQuestion) -> dict[str, Path]:
    """Return the folders of other models by the change that was made."""
    folders = {}
    for given in question.compare:
        name, mark, folder = given.partition("=")
        if not (mark and name.strip() and folder.strip()) or name.strip() in folders:
            raise InputError(
                f"--compare must be name=folder with a different name each time, such as 'fewer "
                f"epochs=run/checkpoint-100', not {shown(given)}."
            )
        folders[name.strip()] = Path(folder.strip())
    return folders


def _report(question: ExtractionQuestion) -> ExtractionReport:
    records = read_text_records(question.records, question.limit)
    outside = (
        [] if question.held_out is None else read_text_records(question.held_out, question.limit)
    )
    marked = [] if question.marked is None else read_text_records(question.marked)
    if not all(isinstance(secret, str) for secret in marked):
        raise InputError("--marked must name a .txt file with one secret per line.")
    # What needs torch is imported once it is known to be there.
    from seepage.attacks.extraction.attack import Extraction, model_before
    from seepage.auditing.language_model.comparison import TextRecognition
    from seepage.auditing.language_model.report import ExtractionReport

    loaded = load_models(question.model_folder, question.base, question.device)
    seen = {_key(record) for record in records}
    new = [record for record in outside if _key(record) not in seen]
    if outside and not new:
        raise InputError(
            "Every held-out record is also a training record; --held-out must name records that "
            "the model was not trained on."
        )
    sampler = _sampler(question)
    search: dict[str, Any] = {"marked": marked, "kinds": _kinds(question)}
    result = Extraction(loaded.model, loaded.tokenizer, base=loaded.base, sampler=sampler).attack(
        records,
        held_out=new,
        near=question.near,
        exposure=question.exposure,
        passes=question.passes,
        seed=question.seed,
        **search,
    )
    references = [
        load_model(Path(folder), question.base, question.device) for folder in question.reference
    ]
    before = model_before(loaded.model, loaded.base)
    if not references and before is not None:
        references = [before]
    recognition = TextRecognition(records, new, loaded.tokenizer, references)
    models = [recognition.measured("this model", loaded.model, result)]
    for name, folder in _compared(question).items():
        net = load_model(folder, question.base, question.device)
        other = Extraction(net, loaded.tokenizer, sampler=sampler).attack(records, **search)
        models.append(recognition.measured(name, net, other))
    return ExtractionReport(
        result=result,
        source=question.model_folder.name,
        records=question.records.name,
        models=tuple(models),
        before=None if before is None else recognition.measured_before(before, result),
        repeated=len(outside) - len(new),
        gates=tuple(_gates(question, result, models[0])),
        shows_values=question.show_values,
        versions=find_versions() | _versions(),
    )


def _key(record: Any) -> str:
    """Return a text that is the same for equal records."""
    return json.dumps(record, sort_keys=True, default=str)


def _sampler(question: ExtractionQuestion) -> Any:
    """Return the sampler that the options set, or ``None`` for the model's default."""
    from seepage.attacks.extraction.sampler import TokenSampler

    given = {"temperature": question.temperature, "top_k": question.top_k, "top_p": question.top_p}
    given = {name: value for name, value in given.items() if value is not None}
    return TokenSampler(**given) if given else None  # type: ignore[arg-type]


def _gates(question: ExtractionQuestion, result: Any, model: AttackedModel) -> list[Gate]:
    """Return a gate for each limit; an attack can exceed a limit, but never prove it is met."""
    gates = []
    if (limit := question.max_probability) is not None:
        over = [each for each in result.ranked if each.probability > limit]
        worst = result.ranked[0]
        gates.append(
            Gate(
                "--max-probability",
                limit,
                worst.probability,
                not over,
                over=len(over),
                rows=tuple(each.record for each in over[:5]),
                low=worst.probability,
                high=math.exp(worst.high if worst.text_high is None else worst.text_high),
            )
        )
    if (limit := question.max_exposure) is not None:
        measured = [each for each in result.secrets if each.exposure is not None]
        most = max(measured, key=lambda each: each.exposure.bits, default=None)
        found = None if most is None else most.exposure
        ends = (None,) * 3 if found is None else (found.bits, found.low, found.high)
        over = [each for each in measured if each.exposure.bits > limit]
        gates.append(
            Gate(
                "--max-exposure",
                limit,
                ends[0],
                bool(measured) and not over,
                over=len(over),
                rows=tuple(each.record for each in over[:5]),
                low=ends[1],
                high=ends[2],
            )
        )
    if (limit := question.max_tpr) is not None and model.membership is not None:
        recognised = model.membership.tpr(0.01)
        rows = tuple(each.record for each in model.membership.exposed(5))
        gates.append(
            Gate(
                "--max-tpr",
                limit,
                recognised.rate,
                recognised.rate <= limit,
                rows=rows,
                low=recognised.interval.low,
                high=recognised.interval.high,
            )
        )
    return gates


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers")}
