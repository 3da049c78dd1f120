"""fedpriv: federated, differentially private fine-tuning of language models.

The library half: configuration, data, models, the private step, the accountant and the
ledger. It imports no Flower; `fedpriv_client`, `fedpriv_server`, `fedpriv_strategies` and
`fedpriv_simulation` put it on the network. Submodules are imported on demand, so that the
ledger, the accountant and the command line never pay for torch.
"""

__version__ = "0.1.0"
