"""Which adapter a dossier is about, wherever its files were written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedpriv.base_model import CONFIG
from fedpriv.dossier.adapter import adapter_digests

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
