"""What a site trains for itself stays: a server hears the same with it and without it (law 16)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedpriv.adapter_facts import read_facts
from fedpriv.base_model import WEIGHTS
from fedpriv.personal.own_models import TRAINED
from fedpriv.privacy.mechanism.csprng import SystemCsprng
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.private_training.pool import WorkerPool
from fedpriv.protocol import Body, Handover, ReportRequest, StepRequest, values_digest
from fedpriv_client.app import client_app
from fedpriv_client.evaluate import PAGE, own_view
from fedpriv_client.personalise import personalise
from fedpriv_client.settings import site_settings
from fedpriv_client.site import Site
from fedpriv_simulation.inline import InlineGrid
from fedpriv_strategies.messages import ADAPTER, QUERY, REPORT, TRAIN, as_arrays, message
from tests.client.own_setting import OwnSetting, invoke, notes, tree

Make = Callable[..., Any]
OWN = ("site-model/", PAGE)  # what may hold something of it


@pytest.fixture
def setting(tmp_path: Path, model_folder: Make) -> OwnSetting:
    return OwnSetting(tmp_path, model_folder("llama"), {"text": "note"}, notes())


def heard(setting: OwnSetting, proposal: Any, pool: WorkerPool) -> dict[str, Any]:
    """All that a site says to a server in a job, as it is sent."""
    settings = site_settings(setting.file, setting.config)
    site = Site(settings, pool, lambda job, slot: SystemCsprng())
    weights = load_file(setting.state / "adapters" / "job-1" / WEIGHTS)
    vector = np.zeros(sum(tensor.size for tensor in weights.values()), np.float32)
    handover = Handover(proposal=proposal, values_digest=values_digest(vector))
    asked: list[tuple[Body, str]] = [
        (proposal, QUERY),
        (StepRequest(job_id="job-2", slot=0), TRAIN),
        (ReportRequest(job_id="job-2"), REPORT),
        (handover, ADAPTER),
    ]
    said = {}
    with InlineGrid({2: client_app(site)}, 1) as grid:
        for body, kind in asked:
            arrays = as_arrays(public(vector)) if kind in (TRAIN, ADAPTER) else None
            [reply] = grid.send_and_receive([message(body, 2, kind, "1", arrays)], timeout=60)
            assert not reply.has_error()
            answer = json.loads(reply.content["fedpriv"]["body"])
            assert "refused" not in answer
            sent = reply.content.array_records.get("arrays")
            said[kind] = answer, sent and {name: array.data for name, array in sent.items()}
    site.close()
    return said


@pytest.mark.slow
def test_a_server_hears_the_same_and_reports_and_status_say_the_same(setting: OwnSetting) -> None:
    proposal = read_facts(setting.hand_over()).proposal.model_copy(update={"job_id": "job-2"})
    pool = WorkerPool()
    heard(setting, proposal, pool)  # pays
    before, status = heard(setting, proposal, pool), invoke(setting, "status", "--json").stdout
    files = tree(setting.state)
    made = personalise(setting.file, setting.config, setting.state / "adapters" / "job-1")
    invoke(setting, "evaluate", "--adapter", str(setting.state / "adapters" / "job-1"))
    assert heard(setting, proposal, pool) == before
    assert invoke(setting, "status", "--json").stdout == status
    after = tree(setting.state)
    assert {name for name in after.keys() - files.keys() if not name.startswith(OWN)} == set()
    assert {name for name in files if files[name] != after[name]} == set()
    assert made.folder.exists()


@pytest.mark.slow
def test_no_file_beside_it_names_it_or_holds_a_figure_of_it(setting: OwnSetting) -> None:
    """Ledger, reports, status and whatever else the site has."""
    proposal = read_facts(setting.hand_over()).proposal.model_copy(update={"job_id": "job-2"})
    made = personalise(setting.file, setting.config)
    found = own_view(setting.file, setting.config)
    heard(setting, proposal, WorkerPool())
    of_own = [row for row in found.rows if row.name not in ("base", "federated")]
    assert len(of_own) == 8
    seen = [row.scores.eval_loss for row in of_own]
    figures = [*(one.best.loss for one in made.models.trained.values()), *seen]
    figures += [*made.models.answer.losses.values(), made.models.answer.spread]
    digests = [read_facts(made.folder / kind).weights_digest for kind in TRAINED]
    secrets = [*(digest.removeprefix("sha256:") for digest in digests), *map(repr, figures)]
    secrets += ["personal", "site-model"]
    others = {k: v for k, v in tree(setting.state).items() if not k.startswith(OWN)}
    assert {"budget.json"} < others.keys()
    for name, content in others.items():
        assert not [word for word in secrets if word.encode() in content], name
    for figure in seen:
        assert repr(figure) in repr(found)  # it would be seen
