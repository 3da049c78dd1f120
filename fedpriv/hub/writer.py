"""Let the model of a run write after a prompt.

Privacy
    The adapter was made from what the sites released and paid for, and what it writes is
    post-processing of that. It costs nothing, however much is written. An adapter that a site
    trained for itself is refused: what that one writes may come from a record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from fedpriv.adapter_facts import read_facts
from fedpriv.errors import ConfigError
from fedpriv.hub.load import check_whole, load, settings_of
from fedpriv.stored_adapter import refuse_own
from fedpriv.synthetic.continuation import continue_prompts


class Writer:
    """Writes with the model of a run, or of an adapter that a job handed over.

    Args:
        run: run directory, or the folder of an adapter.
        where: see `fedpriv.hub.load.load`.

    Attributes:
        job: the job's id.
        columns: field → column, as the job reads records.
        private: false for a run whose noise came from a seed; None for an adapter by itself.

    Raises:
        ConfigError: there is no adapter; a site trained it for itself (law 16); or the model is a
            classifier, which writes nothing.
        ModelError: the base model is not what the run was made with.
    """

    def __init__(self, run: Path, where: str | None = None) -> None:
        check_whole(run)
        folder = run / "adapter" if (run / "run.json").exists() else run
        refuse_own(folder)
        facts = read_facts(folder)
        proposal = facts.proposal
        model = proposal.model
        if model.task != "causal-lm":
            problem = "is a classifier's, which writes no text"
            fix = "The run's report says how good it is."
            raise ConfigError(problem, file=folder, key="model.task", value=model.task, fix=fix)
        self.job = facts.job
        self.columns: Mapping[str, str] = {field: field for field in proposal.fields}
        self.private: bool | None = None
        if folder != run:
            settings = settings_of(run)
            self.columns, self.private = settings.config.data.columns, settings.private
            model = settings.config.model
        base, self._model = load(folder, model, facts, where)
        self._longest = model.max_length
        self._tokenizer: Any = base.tokenizer

    def write(
        self, prompts: Sequence[str], *, base: bool = False, temperature: float = 0.0, seed: int = 0
    ) -> list[str]:
        """Write after each prompt, until the model ends or has written all that it may.

        Prompt and text together may have a record's length (`model.max_length`). The text may
        have half of that in any case.

        Args:
            base: let the base model write, without the adapter.
            temperature: temperature at which tokens are drawn; 0 takes the likeliest each time.
            seed: seed for drawing the tokens.
        """
        how: dict[str, Any] = {"longest": self._longest, "chat": "messages" in self.columns}
        how |= {"temperature": temperature, "seed": str(seed)}
        with self._model.disable_adapter() if base else nullcontext():
            return continue_prompts(self._model, self._tokenizer, prompts, **how)
