"""TLS for tests: a certificate for this host that only the tests trust, and its key, which is no secret."""

from __future__ import annotations

import ssl
import tempfile

CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBrTCCAVSgAwIBAgIUaqn3puxoE26KCj54euYevVAR0bMwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyOTE5MDkwOFoYDzIxMjYxMTA1
MTkwOTA4WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAQU+xMC1USPobKnx5cMWEW5+UkKpDlbR2D4jourP1sfygU7mdh2CcXq
TyNCh2QlgmKuILDgqbZO+cIGEMfu++qfo4GBMH8wHQYDVR0OBBYEFAndd9bzI9Yx
YdCv3UCcD8G+57IvMB8GA1UdIwQYMBaAFAndd9bzI9YxYdCv3UCcD8G+57IvMA8G
A1UdEwEB/wQFMAMBAf8wLAYDVR0RBCUwI4IJbG9jYWxob3N0hwR/AAABhxAAAAAA
AAAAAAAAAAAAAAABMAoGCCqGSM49BAMCA0cAMEQCIFqgC6uF0SgYWglY/GKK76UY
otUxEFq454I17xvM6EnwAiBcKdHqX4AMY8grLupWLwjWgIolH0j+Mfoaaqv4En70
PQ==
-----END CERTIFICATE-----
"""

KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgKLoqXR3TvL3i8Zr3
wvcUH952vnqB/W2ezaXlrsXnOpihRANCAAQU+xMC1USPobKnx5cMWEW5+UkKpDlb
R2D4jourP1sfygU7mdh2CcXqTyNCh2QlgmKuILDgqbZO+cIGEMfu++qf
-----END PRIVATE KEY-----
"""


def server_context() -> ssl.SSLContext:
    """For a server that shows the certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(CERTIFICATE + KEY)
        file.flush()
        context.load_cert_chain(file.name)
    return context


def client_context() -> ssl.SSLContext:
    """For a client that trusts it."""
    return ssl.create_default_context(cadata=CERTIFICATE)
