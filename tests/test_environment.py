"""Nothing that is imported or loaded here fetches code from a hub and runs it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import import_utils

from fedpriv.environment import without_hub_code
from fedpriv.errors import NotPrivateError
from fedpriv.hub import export
from fedpriv.loop import trainer
from fedpriv.models import base
from fedpriv.models.base import load_base
from fedpriv.models.config import ModelSection
from fedpriv.models.stored import linear_sizes

Make = Callable[..., Any]
VERSION = getattr(import_utils, "KERNELS_MIN_VERSION", "0.12.0")
ASKS = """
import os

__version__ = {version!r}

def note(what):
    with open({asked!r}, "a") as file:
        file.write(what + os.linesep)

note("imported")

def get_kernel(name, *_, **__):
    note(name)
    raise FileNotFoundError(name)

class Anything:
    ALL = None
    def __init__(self, *_, **__): pass
    def __call__(self, decorated=None, *_, **__): return decorated

def __getattr__(name):
    if name.startswith("_"):
        raise AttributeError(name)
    return Anything
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[[str], list[str]]:
    """Run a script where the package kernels is installed; gives what that was asked for."""
    asked, packages = tmp_path / "asked", tmp_path / "packages"
    for name, text in {
        "kernels/__init__.py": ASKS.format(version=VERSION, asked=str(asked)),
        "kernels/layer/__init__.py": "",
        "kernels/layer/mode.py": "class Mode: pass",
        f"kernels-{VERSION}.dist-info/METADATA": f"Name: kernels\nVersion: {VERSION}\n",
    }.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(text)

    def of(script: str) -> list[str]:
        asked.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return asked.read_text().split() if asked.exists() else []

    return of


@pytest.fixture
def named(model_folder: Make, tmp_path: Path) -> Callable[[Any], Path]:
    """A factory of model folders whose config.json names an attention."""

    def make(attention: Any) -> Path:
        folder = tmp_path / "named"
        shutil.copytree(model_folder("llama"), folder)
        config = json.loads((folder / "config.json").read_text())
        config["attn_implementation"] = attention
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return make


# On a processor with bfloat16 products, this asks for a kernel of bitsandbytes at once.
TRANSFORMERS_FIRST = "import transformers.trainer\n"
FROM_A_HUB = "kernels-community/flash-attn2"
USED = """
from fedpriv.errors import FedprivError

try:
    {use}
except FedprivError as error:
    assert "which would be fetched from a hub and run" in str(error), error
else:
    raise AssertionError("loaded")
"""
_ALONE = (
    "import fedpriv.loop.step, fedpriv.loop.arguments, fedpriv.loop.trainer",
    "import fedpriv_client.serve, fedpriv_client.site, fedpriv_client.cli",
    "import fedpriv_simulation.simulate, fedpriv_server.serve, fedpriv_audit.pipeline",
    "import fedpriv.private_training.team, fedpriv.methods.pe_sgd.site_half, fedpriv.hub.export",
)
SECTION = "from fedpriv.models.config import ModelSection as S; s = S(name={folder!r}); "
TRAINER = (
    "import fedpriv; fedpriv.PrivateTrainer({folder!r}, fedpriv.PrivateConfig(output_dir='out',"
    " epsilon=4, delta=1e-5, size=9, per_device_train_batch_size=3), [{{'text': 'a'}}])"
)


@pytest.mark.slow
def test_without_us_there_is_something_to_find(run: Any, named: Any) -> None:
    """Else the tests below would say nothing."""
    assert "imported" in run(TRANSFORMERS_FIRST)
    script = (
        "from transformers import AutoModelForCausalLM\n"
        "try:\n"
        f"    AutoModelForCausalLM.from_pretrained({str(named(FROM_A_HUB))!r})\n"
        "except Exception:\n"
        "    pass\n"
    )
    assert FROM_A_HUB in run(script)


@pytest.mark.slow
@pytest.mark.parametrize(
    "imported",
    [
        "import fedpriv; [getattr(fedpriv, name) for name in fedpriv.__all__]",
        *(pytest.param(one, marks=pytest.mark.slow) for one in _ALONE),
    ],
)
def test_imports_ask_for_nothing(run: Any, imported: str) -> None:
    assert run(imported) == []


@pytest.mark.slow
def test_a_model_and_its_adapter_ask_for_nothing_and_load_no_compiler(run: Any) -> None:
    script = (
        "import sys, torch\n"
        "from fedpriv.models.config import LoraSection, ModelSection\n"
        "from fedpriv.private_training.config import ComputeSection\n"
        "from fedpriv.private_training.pool import make_worker\n"
        "from fedpriv.private_training.worker import ModelRecipe\n"
        "from fedpriv.models.stored import linear_sizes\n"
        "for quantize in (None, '4bit'):\n"
        "    section = ModelSection(name='embedded', quantize=quantize, max_length=32)\n"
        "    linear_sizes(section)\n"
        "    make_worker(ModelRecipe(section, LoraSection(), 0, ComputeSection()))\n"
        "assert 'bitsandbytes' in sys.modules, 'the test has lost its object'\n"
        "assert 'torch._inductor.compile_fx' not in sys.modules, 'the compiler was loaded'\n"
        "assert torch.compile.__module__ == 'torch'\n"
    )
    assert run(script) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "use",
    [
        SECTION + "from fedpriv.models.base import load_base; load_base(s)",
        TRAINER,
    ],
    ids=["a site", "a trainer"],
)
@pytest.mark.parametrize("first", ["", TRANSFORMERS_FIRST], ids=["first", "after transformers"])
def test_a_model_whose_configuration_names_code_is_refused(
    run: Any, named: Any, use: str, first: str
) -> None:
    """Also where transformers was imported before, which then knows the package."""
    script = first + USED.format(use=use.format(folder=str(named(FROM_A_HUB))))
    assert run(script) == run(first)


@pytest.mark.slow
@pytest.mark.parametrize(
    "use",
    [
        SECTION + "from fedpriv.models.stored import linear_sizes; linear_sizes(s)",
        SECTION + "from fedpriv.hub.export import load_merged; load_merged({folder!r}, s)",
        SECTION + "from fedpriv.hub.export import load_adapter; load_adapter('no', {folder!r}, s)",
    ],
)
def test_whatever_loads_a_model_asks_for_nothing(run: Any, named: Any, use: str) -> None:
    script = (
        TRANSFORMERS_FIRST + "import transformers.integrations.hub_kernels as hub\n"
        "known = hub.get_kernel_hub\n"
        "try:\n"
        f"    {use.format(folder=str(named(FROM_A_HUB)))}\n"
        "except Exception as error:\n"
        "    print(error)\n"
        "assert hub.get_kernel_hub is known\n"
    )
    assert run(script) == run(TRANSFORMERS_FIRST)


def test_nested_attention_is_found(named: Any) -> None:
    folder = named({"": "sdpa", "text_config": FROM_A_HUB})
    with pytest.raises(NotPrivateError, match=r"says attn_implementation = .*flash-attn2"):
        load_base(ModelSection(name=str(folder)))


@pytest.mark.parametrize("load", ["a site", "sizes", "alone", "a trainer", "merged", "adapter"])
def test_what_loads_a_model_does_so_without_the_package(
    monkeypatch: pytest.MonkeyPatch, load: str
) -> None:
    class Found(BaseException):
        pass

    class Looking(str):
        """Stands for a model's name and settings, and looks as soon as somebody asks for them."""

        def __getattr__(self, name: str) -> Any:
            raise Found(sys.modules["kernels"])

        def __str__(self) -> str:
            raise Found(sys.modules["kernels"])

    named: Any = Looking()
    ways: dict[str, Callable[[], Any]] = {
        "a site": lambda: load_base(named),
        "sizes": lambda: linear_sizes(named),
        "alone": lambda: base.compute_alone(named, None, 9, "model"),
        "a trainer": lambda: trainer._with_adapter(named, None, trainer.PrivateConfig(), None),
        "merged": lambda: export.load_merged(named, named),
        "adapter": lambda: export.load_adapter(named, "", named),
    }
    monkeypatch.setitem(sys.modules, "kernels", json)
    with pytest.raises(Found) as found:
        ways[load]()
    assert found.value.args == (None,)


def test_one_within_another_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kernels", json)
    with without_hub_code():
        with without_hub_code():
            pass
        assert sys.modules["kernels"] is None
    assert sys.modules["kernels"] is json
    monkeypatch.delitem(sys.modules, "kernels")
    with without_hub_code():
        pass
    assert "kernels" not in sys.modules
