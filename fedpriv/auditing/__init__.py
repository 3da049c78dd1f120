"""What an attacker could tell: statistics of audits, and the file that keeps what one found.

An audit bounds ε from below, by attacks, where the accountant bounds it from above. What runs the
attacks is `fedpriv_audit`; nothing here needs torch.
"""
