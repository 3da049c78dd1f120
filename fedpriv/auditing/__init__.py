"""Statistics of audits: what an attacker could tell; and the file that keeps an audit's result.

An audit bounds ε from below, by attacks. The accountant bounds it from above. The attacks are run
by `fedpriv_audit`. Nothing here needs torch.
"""
