"""Who is who in a federation: keys, certificates, and the enrolment that a site is given.

A federation has an authority of its own, made by its coordinator: it signs the server's
certificate, each site's, and each site's enrolment. A site's private key is never sent over the
network. What a signature here vouches for is identity alone, never privacy.
"""
