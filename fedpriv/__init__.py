"""fedpriv: federated, differentially private fine-tuning of language models.

The library half: configuration, data, models, the private step, the accountant and the
ledger. It imports no Flower; `fedpriv_client`, `fedpriv_server`, `fedpriv_strategies` and
`fedpriv_simulation` put it on the network. Submodules are imported on demand, so that the
ledger, the accountant and the command line never pay for torch.

The names of `__all__` are for everybody. Each is looked up in the entry-point group
``fedpriv.api`` when it is used first, so that a package above this one may bring it; its type is
in `__init__.pyi`.
"""

__version__ = "0.2.0"

# A new name: here, in `__init__.pyi`, and in pyproject.toml under the group "fedpriv.api".
__all__ = [
    "FedprivError",
    "Ledger",
    "PrivateConfig",
    "PrivateStep",
    "PrivateTrainer",
    "audit",
    "compare",
    "forecast",
    "load_job",
    "load_site_model",
    "plan",
    "simulate",
    "verify",
    "write_federation",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'fedpriv' has no attribute {name!r}")
    from importlib.metadata import entry_points

    for point in entry_points(group="fedpriv.api", name=name):
        return globals().setdefault(name, point.load())
    raise AttributeError(f"fedpriv.{name}: no installed package brings it. Install fedpriv again.")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
