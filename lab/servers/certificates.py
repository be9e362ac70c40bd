"""Certificates of our own, for servers and clients that speak TLS on loopback."""

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
    """ca.pem, and what it signed: server.pem with server.key for 127.0.0.1 and localhost, and
    client.pem with client.key for who must show one."""
    (folder / "openssl.cnf").write_text(CERTIFICATES)
    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -config openssl.cnf"
    commands = [f"req -x509 {key} -extensions ca -days 2 -keyout ca.key -out ca.pem"]
    for who in ("server", "client"):
        commands += [
            f"req -new {key} -keyout {who}.key -out {who}.csr",
            f"x509 -req -in {who}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2"
            f" -extfile openssl.cnf -extensions {who} -out {who}.pem",
        ]
    for command in commands:
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
