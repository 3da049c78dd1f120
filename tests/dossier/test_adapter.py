"""Which adapter a dossier is about, wherever its files were written."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedpriv.adapter_facts import AdapterFacts
from fedpriv.base_model import CONFIG, FACTS
from fedpriv.dossier.adapter import adapter_digests, check_adapter
from fedpriv.errors import OtherAdapterError
from fedpriv.files import file_digest
from tests.golden_messages import PROPOSAL

SETTINGS: dict[str, Any] = {
    "base_model_name_or_path": "here",
    "r": 4,
    "target_modules": ["v_proj", "q_proj"],
    "rank_pattern": {},
}


def digest(folder: Path, **changes: Any) -> str:
    (folder / CONFIG).write_text(json.dumps({**SETTINGS, **changes}))
    (folder / "README.md").write_text(str(changes))
    return adapter_digests(folder)[CONFIG]


def test_where_the_base_is_and_in_which_order_peft_wrote_names_is_no_matter(tmp_path: Path) -> None:
    known = digest(tmp_path)
    assert digest(tmp_path, base_model_name_or_path="elsewhere") == known
    assert digest(tmp_path, target_modules=["q_proj", "v_proj"]) == known
    assert list(adapter_digests(tmp_path)) == [CONFIG]


def test_any_other_setting_makes_another_adapter(tmp_path: Path) -> None:
    known = digest(tmp_path)
    assert digest(tmp_path, r=8) != known
    assert digest(tmp_path, target_modules=["q_proj"]) != known
    assert digest(tmp_path, rank_pattern={"q_proj": 2}) != known


def facts_of(folder: Path, **changes: Any) -> str:
    facts = AdapterFacts(kind="federated", proposal=PROPOSAL, weights_digest=f"sha256:{'a' * 64}")
    (folder / FACTS).write_text(facts.model_copy(update=changes).as_text())
    return adapter_digests(folder)[FACTS]


def test_what_a_site_notes_of_its_held_out_records_is_no_matter(tmp_path: Path) -> None:
    known = facts_of(tmp_path)
    assert known == file_digest(tmp_path / FACTS)  # as in dossiers of older versions
    assert facts_of(tmp_path, held_out="0.2") == facts_of(tmp_path, held_out="not set") == known
    assert facts_of(tmp_path, kind="personal") != known
    assert facts_of(tmp_path, weights_digest=f"sha256:{'b' * 64}") != known
    (tmp_path / FACTS).write_text("{}")
    assert adapter_digests(tmp_path)[FACTS] == file_digest(tmp_path / FACTS)


def test_a_dossier_of_an_older_version_states_the_file_itself(tmp_path: Path) -> None:
    facts_of(tmp_path)
    path = tmp_path / FACTS
    kept = json.loads(path.read_text())
    path.write_text(json.dumps({key: kept[key] for key in ("kind", "proposal", "weights_digest")}))
    stated: Any = SimpleNamespace(adapter={FACTS: file_digest(path)})
    [found] = check_adapter(stated, Path("run.zip"), tmp_path)
    assert "is the adapter that it is about" in found.text
    path.write_text(path.read_text() + " ")
    with pytest.raises(OtherAdapterError, match="is not the file"):
        [*check_adapter(stated, Path("run.zip"), tmp_path)]
