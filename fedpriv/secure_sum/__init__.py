"""The sum of several sites' vectors, of which nobody learns more than the sum.

    roster     who may add up together, and their keys
    ready      a key for one slot, signed: a site can take part
    members    the set of a slot, and the tag of everything that its sum is about
    masks      what hides a site's share from everybody but the whole set
    total      what the masked shares come to

Nothing here knows a network, a model or a ledger. What a share has to hold for the sum to be
private, and that a site releases one set's share for a slot, is for its users to see to: see
`docs/explanation/secure-sum.md`.
"""
