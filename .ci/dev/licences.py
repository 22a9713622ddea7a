"""Holds the licences and sources of the Rust dependencies to deny.toml, for machines without cargo-deny."""

import json
import re
import subprocess
import tomllib

from phases import ROOT, PhaseFailed, Phases, capture


def audit(phases: Phases) -> None:
    """Check licences, sources and, where the list can be had, advisories."""
    if capture(["cargo", "deny", "--version"]) is None:
        try:
            _audit_metadata()
        except PhaseFailed as error:
            phases.failures.append(str(error))
        print("advisories: not checked, cargo-deny is not installed (cargo install cargo-deny)")
        return
    phases.check("cargo deny", ["cargo", "deny", "--locked", "check", "licenses", "bans", "sources"])
    if capture(["cargo", "deny", "fetch", "db"], limit=120) is None:
        print("advisories: not checked, the list cannot be reached from here")
        return
    phases.check("cargo deny advisories", ["cargo", "deny", "--locked", "check", "--disable-fetch", "advisories"])


def _audit_metadata() -> None:
    with (ROOT / "deny.toml").open("rb") as file:
        rules = tomllib.load(file)
    allowed = set(rules["licenses"]["allow"])
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--all-features"]
    packages = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)["packages"]
    faults = []
    for package in packages:
        name, licence, source = f"{package['name']} {package['version']}", package["license"], package["source"]
        if not permitted(licence or "", allowed):
            faults.append(f"{name}: licence {licence!r}")
        if source is not None and not source.endswith("github.com/rust-lang/crates.io-index"):
            faults.append(f"{name}: source {source}")
    if faults:
        raise PhaseFailed("deny.toml does not allow\n  " + "\n  ".join(faults))
    print(f"licences and sources of {len(packages)} Rust packages: allowed by deny.toml")


def permitted(expression: str, allowed: set[str]) -> bool:
    """Whether an SPDX expression can be satisfied by the allowed licences alone. AND binds closer than OR."""
    tokens: list[str] = re.findall(r"[()]|[\w.+-]+", expression.replace("/", " OR "))
    at = 0

    def peek() -> str:
        return tokens[at] if at < len(tokens) else ""

    def take() -> str:
        nonlocal at
        at += 1
        return tokens[at - 1]

    def either() -> bool:
        good = both()
        while peek() == "OR":
            take()
            good |= both()
        return good

    def both() -> bool:
        good = one()
        while peek() == "AND":
            take()
            good &= one()
        return good

    def one() -> bool:
        if peek() == "(":
            take()
            good = either()
            return take() == ")" and good
        name = take()
        if peek() == "WITH":
            take()
            name += f" WITH {take()}"
        return name in allowed

    try:
        return either() and at == len(tokens)
    except IndexError:  # an empty or cut expression allows nothing
        return False
