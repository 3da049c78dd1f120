"""README.md of an exported model: a header for model hubs, then use, privacy and evaluation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpriv.models.config import ModelSection
from fedpriv.report import received
from fedpriv.report.alike import assumptions, shared
from fedpriv.report.figures import score, small, upper
from fedpriv.report.page_parts import score_rows
from fedpriv.report.participation import older_reports
from fedpriv.report.rundir import RunDirectory, finite

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True)
class Contents:
    """What the exported folder holds.

    Attributes:
        private: whether it needs no stamp NOT PRIVATE.
        merged: whether it holds the whole model, and not only an adapter.
        base: the base model's name at a hub; None if it is known only by its digest.
        base_here: whether the base model lies beside the adapter.
        model: the model's settings in the federation file.
        license: the licence's identifier at a hub, as stated by the person who publishes it.
        weights_digest: digest of the weights of the adapter that the run made.
    """

    private: bool
    merged: bool
    base: str | None
    base_here: bool
    model: ModelSection
    license: str | None
    weights_digest: str


_TAGS = ("fedpriv", "federated-learning", "differential-privacy", "lora")
_PIPELINES = {"causal-lm": "text-generation", "classification": "text-classification"}
_METRICS = {  # field of a round → (type at a hub, name)
    "eval_loss": ("loss", "Loss"),
    "eval_accuracy": ("accuracy", "Accuracy"),
    "eval_auc": ("roc_auc", "AUC"),
}


def card(directory: RunDirectory, contents: Contents) -> str:
    """Return the card of what `contents` describes, in Markdown.

    Privacy:
        Made from what the run directory holds for others: signed reports, and scores on records
        that are public or the coordinator's own.
    """
    reports = directory.reports
    reporting = {report.site for report in reports}
    text = _templates().get_template("card.md.j2")
    return _header(directory, contents) + text.render(
        run=directory.run,
        rounds=len(directory.rounds),
        contents=contents,
        base=_base(contents),
        use="\n".join(lines_of_use(contents)),
        reports=reports,
        older=older_reports(directory),
        silent=[name for name in directory.site_names if name not in reporting],
        simulated=any(report.simulated for report in reports),
        two_claims=[report for report in reports if report.budget_alone is not None],
        shared=lambda field: shared(reports, field),
        assumptions=assumptions(reports),
        totals=received.totals(reports),
        scores=score_rows(contents.model.task, directory.run.baseline, directory.last_evaluation),
        evaluated=directory.last_evaluation,
    )


def _header(directory: RunDirectory, contents: Contents) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    last, task = directory.last_evaluation, _PIPELINES[contents.model.task]
    results = [
        EvalResult(
            task_type=task,
            dataset_type="held-out",
            dataset_name="Held-out records, public or the coordinator's own",
            metric_type=kind,
            metric_name=name,
            metric_value=getattr(last, field),
        )
        for field, (kind, name) in _METRICS.items()
        if finite(getattr(last, field, None))
    ]
    data = ModelCardData(
        base_model=contents.base,
        library_name="transformers" if contents.merged else "peft",
        license=contents.license,
        pipeline_tag=task,
        tags=[*_TAGS] if contents.private else [*_TAGS, "not-private"],
        model_name=directory.run.job.name,
        eval_results=results or None,
    )
    if contents.base is not None:
        data["base_model_relation"] = "finetune" if contents.merged else "adapter"
    return f"---\n{data.to_yaml()}\n---\n"


def _base(contents: Contents) -> str:
    """Name the base model, as part of a sentence in Markdown."""
    if contents.base is not None:
        return _code(contents.base)
    if contents.model.name == "embedded":
        beside = ", which is in the folder `base`" if contents.base_here else ""
        return f"the small model that comes with fedpriv{beside}"
    return "a base model that is known by its digest"


class _Markdown(str):
    """A text that is Markdown already."""


def _plain(value: object) -> str:
    """Return a value as plain text on one line, with Markdown escaped: others wrote much of it."""
    if isinstance(value, _Markdown):
        return value
    return re.sub(r"([\\`*_\[\]<>|#$&~])", r"\\\1", " ".join(str(value).split()))


def _code(value: object) -> _Markdown:
    """Return a value as code on one line and in one table cell. Code can have no escapes."""
    return _Markdown("`" + " ".join(str(value).replace("`", "'").replace("|", "/").split()) + "`")


def _templates() -> Environment:
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("fedpriv.hub", "."),
        autoescape=False,  # that would escape for HTML; `finalize` escapes every value for Markdown
        finalize=_plain,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters.update(
        upper=upper, small=small, score=score, code=_code, listed=", ".join, as_it_is=_Markdown
    )
    return made


AUTO = {
    "causal-lm": "AutoModelForCausalLM",
    "classification": "AutoModelForSequenceClassification",
}


def lines_of_use(contents: Contents) -> list[str]:
    """Return Python lines that load `model` and `tokenizer`, without fedpriv where possible."""
    model, here = contents.model, 'folder = "."  # where this card is'
    if not contents.base_here:  # no class looks for a second model in a hub's repository
        here += ", or its name at a hub"
    auto, tokenizer = AUTO[model.task], "tokenizer = AutoTokenizer.from_pretrained(folder)"
    lines = [f"from transformers import {auto}, AutoTokenizer", "", here, tokenizer]
    if contents.merged:
        return [*lines, f"model = {auto}.from_pretrained(folder).eval()"]
    source = 'f"{folder}/base"' if contents.base_here else "name"
    lines = [
        "from peft import PeftModel",
        *lines,
        f"base = {auto}.from_pretrained({source}{_head(contents)})",
        "model = PeftModel.from_pretrained(base, folder).eval()",
    ]
    if model.pooling == "mean":  # no class of transformers
        lines[1:2] = [
            "from transformers import AutoTokenizer",
            "from fedpriv.models.pooled import MeanPooledClassifier",
        ]
        lines[-2] = f"base, _ = MeanPooledClassifier.from_encoder({source}{_head(contents)})"
    if not contents.base_here:
        lines.insert(-3, f"name = {contents.base or 'the base model, by its digest above'!r}")
    if model.quantize is not None:  # else the base would have other weights than in training
        lines.insert(-1, f"round_weights(base, {model.quantize!r})")
        lines.insert(0, "from fedpriv.models.quantised import round_weights")
    return lines


def _head(contents: Contents) -> str:
    """Return arguments that give a classifier a head of the right size. The adapter fills it."""
    if contents.model.task != "classification":
        return ""
    labels = contents.model.labels
    if contents.model.pooling == "mean":
        return f", num_labels={len(labels)}, output_loading_info=True"
    padding = "pad_token_id=tokenizer.pad_token_id"  # a decoder reads the last token before it
    return f", id2label={dict(enumerate(labels))!r}, {padding}, ignore_mismatched_sizes=True"
