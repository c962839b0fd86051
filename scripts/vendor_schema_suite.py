"""Takes the schemas of JSON-Schema-Test-Suite, draft 2020-12 without its optional parts, into one file.

    git clone https://github.com/json-schema-org/JSON-Schema-Test-Suite
    python scripts/vendor_schema_suite.py JSON-Schema-Test-Suite/.git engine/guide/tests/data/schemas.json

The suite is under the MIT licence, which stands beside the file.
"""

import json
import pathlib
import subprocess
import sys


def show(repository, *arguments):
    command = ["git", f"--git-dir={repository}", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    repository, output = sys.argv[1], pathlib.Path(sys.argv[2])
    folder = "tests/draft2020-12/"
    names = show(repository, "ls-tree", "--name-only", "HEAD", folder).split()
    schemas = [
        {"file": pathlib.Path(name).stem, "case": case["description"], "schema": case["schema"]}
        for name in names
        if name.endswith(".json")
        for case in json.loads(show(repository, "show", f"HEAD:{name}"))
    ]
    suite = {
        "source": "https://github.com/json-schema-org/JSON-Schema-Test-Suite",
        "commit": show(repository, "rev-parse", "HEAD").strip(),
        "folder": folder,
    }
    head = json.dumps(suite, indent=1, ensure_ascii=False)[:-2]
    lines = ",\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas)
    output.write_text(f'{head},\n "schemas": [\n{lines}\n]\n}}\n', encoding="utf-8")
    licence = output.with_name("LICENSE-JSON-Schema-Test-Suite")
    licence.write_text(show(repository, "show", "HEAD:LICENSE"), encoding="utf-8")


if __name__ == "__main__":
    main()
