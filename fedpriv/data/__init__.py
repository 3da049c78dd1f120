"""Turn a site's files into tokenised examples, grouped by privacy unit.

Preparation is a map over single units with public parameters: no row changes what another
row becomes. `fedpriv.data.batch` turns examples into tensors and is the only file here that
needs torch.
"""
