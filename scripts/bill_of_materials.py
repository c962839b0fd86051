#!/usr/bin/env python3
"""Writes the bill of materials of a package as CycloneDX 1.6 in JSON.

    scripts/bill_of_materials.py PACKAGE TARGET FILE [FEATURE...]
    scripts/bill_of_materials.py --check FILE...     validates files by the schema of CycloneDX
    scripts/bill_of_materials.py --planted FILE      damages a file in several ways, each of which must be found

Crates, features and edges are those of `cargo tree` for the package alone, since `cargo metadata` unites the features of the
workspace. Licences come from `cargo metadata`, checksums from Cargo.lock. Linked crates are `required`; crates that run only
during the build (procedural macros, build scripts and their dependencies) are `excluded`. The Rust standard library and the
bundled model are listed too. The C library of a static target is not listed. Equal sources give equal bytes: the time is
SOURCE_DATE_EPOCH, or that of the commit, and the serial number is computed.

`cyclonedx-python-lib` writes and validates the document:

    pip install 'cyclonedx-python-lib[json-validation]==11.12.0'

`cargo-cyclonedx` 0.5.9 was not chosen: PyPI has no built package of it, its lock file names 179 packages to compile, and it
would have to be built on every machine that makes a release.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "models/nestling-storyteller.nest"
OWN_LICENCE = "MIT OR Apache-2.0"
# Depth, name and version of a line of `cargo tree --prefix depth`.
LINE = re.compile(r"(\d+)([\w-]+) v(\S+)")

Key = tuple[str, str]


def output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def rustc(key: str) -> str:
    """Returns a value that `rustc -vV` prints."""
    return next(line.split()[1] for line in output("rustc", "-vV").splitlines() if line.startswith(f"{key}:"))


def tree(package: str, target: str, features: list[str], kinds: str) -> dict[Key, set[Key]]:
    """Returns the crates that a package needs, by name and version, each with its direct dependencies."""
    wanted = [f"--features={','.join(features)}"] if features else []
    arguments = ["--locked", "--offline", "--target", target, "--edges", kinds, "--prefix", "depth", *wanted]
    found: dict[Key, set[Key]] = {}
    above: list[Key] = []
    for line in output("cargo", "tree", "--package", package, *arguments).splitlines():
        if not (match := LINE.match(line)):
            # Headings of sections, such as "[build-dependencies]", and empty lines.
            continue
        key = (match[2], match[3])
        del above[int(match[1]) :]
        if above:
            found[above[-1]].add(key)
        found.setdefault(key, set())
        above.append(key)
    return found


def checksums() -> dict[Key, str]:
    """Returns the SHA-256 of crates from the registry."""
    packages = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))["package"]
    return {(one["name"], one["version"]): one["checksum"] for one in packages if "checksum" in one}


def licence(expression: str) -> Any:
    """Returns a licence by its SPDX expression. Older manifests separate alternatives by a slash."""
    normal = re.sub(r"\s*/\s*", " OR ", expression)
    return LicenseFactory().make_with_expression(normal)


def component(metadata: dict[str, Any], checksum: str | None, scope: ComponentScope | None, of: ComponentType) -> Component:
    name, version = metadata["name"], metadata["version"]
    addresses = {
        ExternalReferenceType.VCS: metadata["repository"],
        ExternalReferenceType.WEBSITE: metadata["homepage"],
        ExternalReferenceType.DOCUMENTATION: metadata["documentation"],
    }
    return Component(
        type=of,
        name=name,
        version=version,
        bom_ref=f"pkg:cargo/{name}@{version}",
        purl=PackageURL("cargo", name=name, version=version),
        description=metadata["description"],
        scope=scope,
        licenses=[licence(metadata["license"])] if metadata["license"] else [],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=checksum)] if checksum else [],
        external_references=[ExternalReference(type=kind, url=XsUri(url)) for kind, url in addresses.items() if url],
    )


def standard_library() -> Component:
    version = rustc("release")
    return Component(
        type=ComponentType.LIBRARY,
        name="rust-std",
        version=version,
        bom_ref=f"rust-std@{version}",
        purl=PackageURL("github", namespace="rust-lang", name="rust", version=version),
        description="The standard library of Rust",
        scope=ComponentScope.REQUIRED,
        licenses=[licence(OWN_LICENCE)],
    )


def bundled_model(version: str) -> Component:
    return Component(
        type=ComponentType.MACHINE_LEARNING_MODEL,
        name=MODEL.stem,
        version=version,
        bom_ref=MODEL.stem,
        description="The bundled model",
        scope=ComponentScope.OPTIONAL,
        licenses=[licence(OWN_LICENCE)],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(MODEL.read_bytes()).hexdigest())],
    )


def bill(package: str, target: str, features: list[str]) -> Bom:
    # Build scripts run on this machine, so their crates are those of its own target.
    platforms = [f"--filter-platform={one}" for one in {target, rustc("host")}]
    metadata = json.loads(output("cargo", "metadata", "--locked", "--offline", "--format-version=1", *platforms))
    packages = {(one["name"], one["version"]): one for one in metadata["packages"]}
    needed = tree(package, target, features, "normal,build")
    linked = tree(package, target, features, "normal,no-proc-macro")
    sums = checksums()
    root = next(key for key in needed if key[0] == package)
    components: dict[Key, Component] = {}
    for key in needed:
        scope = ComponentScope.REQUIRED if key in linked else ComponentScope.EXCLUDED
        kind = ComponentType.APPLICATION if key == root else ComponentType.LIBRARY
        external = packages[key]["source"] is not None
        assert not external or key in sums, f"Cargo.lock has no checksum of {key}"
        components[key] = component(packages[key], sums.get(key), None if key == root else scope, kind)
    commit = output("git", "rev-parse", "HEAD").strip()
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or output("git", "log", "-1", "--format=%ct"))
    identity = f"{package} {root[1]} {target} {' '.join(features)} {commit}"
    made = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, identity),
        metadata=BomMetaData(
            component=components[root],
            timestamp=datetime.fromtimestamp(seconds, UTC),
            tools=ToolRepository(),
            properties=[
                Property(name="nestling:target", value=target),
                Property(name="nestling:commit", value=commit),
                *([Property(name="nestling:features", value=",".join(features))] if features else []),
            ],
        ),
    )
    others = [standard_library()] + ([bundled_model(root[1])] if package == "nestling-cli" else [])
    for one in [*(value for key, value in components.items() if key != root), *others]:
        made.components.add(one)
    for key, names in needed.items():
        below = [components[name] for name in names]
        made.register_dependency(components[key], below + (others if key == root else []))
    return made


def validate(text: str) -> str | None:
    """Returns the first fault of a bill of materials by the schema, or by edges to components that do not exist."""
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        return str(error)[:500]
    document = json.loads(text)
    if document["specVersion"] != "1.6":
        # The schema allows any version here.
        return f"specVersion is {document['specVersion']}"
    one = document["metadata"]["component"]
    known = {one["bom-ref"], *(one["bom-ref"] for one in document["components"])}
    named = {reference for edge in document["dependencies"] for reference in [edge["ref"], *edge.get("dependsOn", [])]}
    reached, waiting = set(), [one["bom-ref"]]
    edges = {edge["ref"]: edge.get("dependsOn", []) for edge in document["dependencies"]}
    while waiting:
        if (reference := waiting.pop()) not in reached:
            reached.add(reference)
            waiting += edges.get(reference, [])
    if named - known:
        return f"dependencies without a component: {sorted(named - known)}"
    return f"components that nothing needs: {sorted(known - reached)}" if known - reached else None


def check_planted(text: str) -> list[str]:
    """Returns the kinds of damage that validate does not find, in a part of a document, which is faster."""
    part = json.loads(text)
    root = part["metadata"]["component"]["bom-ref"]
    edges = {edge["ref"]: edge.get("dependsOn", []) for edge in part["dependencies"]}
    kept = [one for one in edges[root] if not edges.get(one)][:3]
    part["components"] = [one for one in part["components"] if one["bom-ref"] in kept]
    part["dependencies"] = [{"ref": root, "dependsOn": kept}]
    text = json.dumps(part)

    def damaged(path: str, value: object) -> str:
        document: Any = json.loads(text)
        *folders, last = path.split("/")
        place = document
        for folder in folders:
            place = place[int(folder) if folder.isdigit() else folder]
        place[int(last) if last.isdigit() else last] = value
        return json.dumps(document)

    hashed = next(at for at, one in enumerate(part["components"]) if "hashes" in one)
    plants = {
        "a version of the format that does not exist": damaged("specVersion", "9.9"),
        "a checksum that is too short": damaged(f"components/{hashed}/hashes/0/content", "12ab"),
        "a type that does not exist": damaged("components/0/type", "crate"),
        "an unknown key": damaged("components/0/colour", "red"),
        "an edge to nothing": damaged("dependencies/0/dependsOn", ["pkg:cargo/nonsense@1.0.0"]),
        "a component that nothing needs": damaged("components/0/bom-ref", "pkg:cargo/nonsense@1.0.0"),
    }
    if fault := validate(text):
        return [f"a part is not valid: {fault}"]
    return [f"not found: {what}" for what, planted in plants.items() if validate(planted) is None]


def main() -> None:
    match sys.argv[1:]:
        case ["--check", *files] if files:
            for file in files:
                if fault := validate(Path(file).read_text(encoding="utf-8")):
                    sys.exit(f"{file}: {fault}")
        case ["--planted", file]:
            if missed := check_planted(Path(file).read_text(encoding="utf-8")):
                sys.exit("\n".join(missed))
        case [package, target, file, *features] if not package.startswith("-"):
            text = JsonV1Dot6(bill(package, target, features)).output_as_string(indent=2)
            if fault := validate(text):
                sys.exit(f"{file}: {fault}")
            Path(file).write_text(text + "\n", encoding="utf-8")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
