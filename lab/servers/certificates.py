"""Test certificates for servers and clients that use TLS on loopback."""

from __future__ import annotations

import subprocess
from pathlib import Path

CERTIFICATES = """
[req]
distinguished_name = name
prompt = no
[name]
CN = lockfast tests
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = IP:127.0.0.1, DNS:localhost
[client]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


def make_certificates(folder: Path) -> None:
    """Create ca.pem, and signed by it server.pem with server.key (for 127.0.0.1 and localhost) and
    client.pem with client.key (for servers that require a client certificate)."""
    (folder / "openssl.cnf").write_text(CERTIFICATES)
    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -config openssl.cnf"
    commands = [f"req -x509 {key} -extensions ca -days 2 -keyout ca.key -out ca.pem"]
    for role in ("server", "client"):
        commands += [
            f"req -new {key} -keyout {role}.key -out {role}.csr",
            f"x509 -req -in {role}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2"
            f" -extfile openssl.cnf -extensions {role} -out {role}.pem",
        ]
    for command in commands:
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
