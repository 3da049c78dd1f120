"""From a site's files to tokenised examples, grouped by privacy unit.

Preparation is a map over single units with public parameters: no row changes what another
row becomes. `fedpriv.data.batch` turns examples into tensors and is the only file here that
needs torch, so it is not imported by this package.
"""

from fedpriv.data.encode import Example, encode_record
from fedpriv.data.population import (
    Population,
    Tally,
    encode_population,
    load_examples,
    load_population,
    read_labelled,
    tally_records,
)
from fedpriv.data.read import read_records
from fedpriv.data.spec import DataSpec
from fedpriv.data.store import TokenFile, bytes_needed

__all__ = [
    "DataSpec",
    "Example",
    "Population",
    "Tally",
    "TokenFile",
    "bytes_needed",
    "encode_population",
    "encode_record",
    "load_examples",
    "load_population",
    "read_labelled",
    "read_records",
    "tally_records",
]
