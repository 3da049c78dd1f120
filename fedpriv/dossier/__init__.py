"""The dossier of a run: one signed file from which anybody can check what was spent.

`export` makes it from a run directory, `package` is the file, and `verify` checks it on a machine
that never saw the run. Nothing here needs torch.

Privacy
    A dossier holds public numbers of ledgers, what sites signed to be shown, and digests. It also
    holds scores on records that are public or the coordinator's own, or scores that sites released
    and paid for.
"""
