#!/usr/bin/env python3
"""Writes the licences of the crates that a package links: third_party.py PACKAGE FILE [FEATURE...].

The list is that of `cargo metadata` for this machine's target, without build dependencies and procedural macros, which
are not linked. The texts are the files of the crates themselves. Equal texts are
written once, whatever their line breaks.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LICENCE_FILE = re.compile(r"(un)?licen[cs]e|copying|copyright|notice", re.IGNORECASE)
HEAD = """Third-party software in {package} {version}

{package} links the crates of the Rust language that are listed below, and the Rust standard library (MIT OR Apache-2.0,
https://www.rust-lang.org/policies/licenses). The texts below the list are those that the crates contain.
"""
RULE = "-" * 100


def output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def linked(metadata: dict[str, Any], root: str) -> list[dict[str, Any]]:
    """Returns the external packages that a package links, by name."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    found, waiting = {root}, [root]
    while waiting:
        for dependency in nodes[waiting.pop()]["deps"]:
            id_ = dependency["pkg"]
            is_normal = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            is_macro = any("proc-macro" in target["kind"] for target in packages[id_]["targets"])
            if is_normal and not is_macro and id_ not in found:
                found.add(id_)
                waiting.append(id_)
    external = (packages[id_] for id_ in found if packages[id_]["source"] is not None)
    return sorted(external, key=lambda package: (package["name"], package["version"]))


def texts(package: dict[str, Any]) -> tuple[str, ...]:
    """Returns the licence texts of a crate, without trailing white space."""
    folder = Path(package["manifest_path"]).parent
    files = sorted(file for file in folder.iterdir() if LICENCE_FILE.match(file.name) and file.is_file())
    if package["license_file"]:
        files.append(folder / package["license_file"])
    found = dict.fromkeys(file.read_text(encoding="utf-8", errors="replace").strip() for file in files)
    return tuple("\n".join(line.rstrip() for line in text.splitlines()) for text in found)


def main() -> None:
    name, path, *features = sys.argv[1:]
    host = next(line.split()[1] for line in output("rustc", "-vV").splitlines() if line.startswith("host:"))
    wanted = [f"--features={','.join(f'{name}/{feature}' for feature in features)}"] if features else []
    metadata = json.loads(
        output("cargo", "metadata", "--locked", "--format-version=1", f"--filter-platform={host}", *wanted)
    )
    package = next(one for one in metadata["packages"] if one["name"] == name and one["source"] is None)
    written: dict[str, tuple[int, str]] = {}
    lines = [HEAD.format(package=name, version=package["version"])]
    for crate in linked(metadata, package["id"]):
        found = texts(crate)
        if not found:
            # Every licence of these crates offers the terms of Apache 2.0.
            assert "Apache-2.0" in (crate["license"] or ""), f"{crate['name']}: no licence text"
            found = ((ROOT / "LICENSE-APACHE").read_text(encoding="utf-8").strip(),)
        key = [" ".join(text.split()) for text in found]
        known = [str(written.setdefault(one, (len(written) + 1, text))[0]) for one, text in zip(key, found, strict=True)]
        terms = crate["license"] or "see its text"
        lines.append(f"    {crate['name']} {crate['version']}: {terms} (text {', '.join(known)})")
    for number, text in written.values():
        lines.append(f"\n{RULE}\nText {number}\n{RULE}\n\n{text}")
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
