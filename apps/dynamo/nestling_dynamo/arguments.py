"""Arguments of the worker."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

from dynamo.common.backend import WorkerConfig


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the worker's arguments."""
    found = argparse.ArgumentParser(
        prog="nestling_dynamo", description="Serves a model with Nestling as a worker of NVIDIA Dynamo"
    )
    found.add_argument("model", help="store (.nest), GGUF file, folder of a checkpoint, or hf:owner/name")
    found.add_argument("--served-model-name", help="name in requests [default: the file's name without its extension]")
    found.add_argument(
        "--tokenizer", type=Path, help="folder with config.json and tokenizer.json, for models that contain none"
    )
    found.add_argument("--device", help="device that computes [default: the best one]")
    found.add_argument("--memory", type=_memory, help="memory budget in bytes, or 'unlimited' [default: free memory]")
    found.add_argument("--threads", type=int, help="threads that compute [default: one per core]")
    found.add_argument("--ctx-size", type=int, help="maximum number of tokens of a request")
    found.add_argument("--kv-tokens", type=int, help="tokens that the KV cache of all requests holds")
    found.add_argument("--level", type=int, choices=(2, 3, 4, 6, 8), help="bits of every weight to use")
    found.add_argument("--reasoning-parser", help="Dynamo's parser of the model's reasoning")
    found.add_argument("--tool-call-parser", help="Dynamo's parser of the model's tool calls")
    group = found.add_argument_group("Dynamo")
    group.add_argument("--namespace", default=os.environ.get("DYN_NAMESPACE", "dynamo"))
    group.add_argument("--component", default="backend")
    group.add_argument("--endpoint", default="generate")
    for plane, default in (("discovery-backend", "file"), ("request-plane", "tcp"), ("event-plane", "zmq")):
        variable = f"DYN_{plane.upper().replace('-', '_')}"
        text = f"as in the frontend [env: {variable}; default: {default}]"
        group.add_argument(f"--{plane}", default=os.environ.get(variable, default), help=text)
    return found


def _memory(text: str) -> float:
    return math.inf if text == "unlimited" else int(text)


def cache_folder() -> Path:
    """Folder for copies of the frontend's files; the system's cache unless XDG_CACHE_HOME names another one."""
    # Default: as the XDG specification has it.
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "nestling" / "dynamo"


def worker_config(arguments: argparse.Namespace, folder: Path) -> WorkerConfig:
    """Returns Dynamo's configuration of the worker. `folder` has the frontend's files."""
    return WorkerConfig(
        namespace=arguments.namespace,
        component=arguments.component,
        endpoint=arguments.endpoint,
        model_name=str(folder),
        served_model_name=served_name(arguments),
        discovery_backend=arguments.discovery_backend,
        request_plane=arguments.request_plane,
        event_plane=arguments.event_plane,
        reasoning_parser=arguments.reasoning_parser,
        tool_call_parser=arguments.tool_call_parser,
    )


def served_name(arguments: argparse.Namespace) -> str:
    """Returns the model's name in requests."""
    file = Path(arguments.model)
    return str(arguments.served_model_name or (file.stem if file.suffix in (".nest", ".gguf") else file.name))
