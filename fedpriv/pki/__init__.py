"""Who is who in a federation: keys, certificates, and the enrolment that a site is given.

A federation has its own authority, made by its coordinator. It signs the server's certificate, each
site's certificate, and each site's enrolment. A site's private key is never sent over the network.
A signature here vouches for identity alone, never for privacy.
"""
