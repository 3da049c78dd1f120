"""The dossier of a run: one signed file from which anybody can check what was spent.

`collect` takes it from a run directory, `package` is the file, `verify` checks it on a machine that
never saw the run. Nothing here needs torch.

Privacy
    A dossier holds public numbers of ledgers, what sites signed to be shown, digests, and scores on
    records that are public or the coordinator's own, or that sites released and paid for.
"""
