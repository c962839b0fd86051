"""Dynamo's requests as options of Nestling.

Fields that change the output are honoured or refused by name. Dynamo's frontend refuses fields that it does not know, and
drops some that it knows; the README lists them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

#: Sampling options with the same name and meaning in Nestling.
_SAMPLING = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed")

#: Top-level fields without effect on the output of one worker, besides the groups that are read below.
_WITHOUT_EFFECT = frozenset(
    """model token_ids annotations eos_token_ids mdc_sum routing router_config_override request_timestamp_ms agent_context
    agent_hints tracker request_id _HEALTH_CHECK""".split()
)

#: Options with the values that ask for what happens anyway.
_REFUSED: dict[str, dict[str, tuple[Any, ...]]] = {
    "sampling_options": {
        "n": (1,),
        "best_of": (1,),
        "use_beam_search": (False,),
        "length_penalty": (1,),
        "include_stop_str_in_output": (False,),
    },
    "stop_conditions": {"min_tokens": (0,), "max_thinking_tokens": (), "stop_token_ids_visible": ([],)},
    # The frontend sets `prompt_logprobs` for `echo`.
    "output_options": {"prompt_logprobs": ()},
    "guided_decoding": {"backend": (), "whitespace_pattern": (), "structural_tag": ()},
}

#: Options that `options` reads, or that the frontend applies when it turns tokens into text.
_HONOURED: dict[str, frozenset[str]] = {
    "sampling_options": frozenset((*_SAMPLING, "top_k", "guided_decoding")),
    "stop_conditions": frozenset(("max_tokens", "stop", "stop_token_ids", "stop_token_ids_hidden", "ignore_eos")),
    "output_options": frozenset(
        ("logprobs", "skip_special_tokens", "formatted_prompt", "return_tokens_as_token_ids")
    ),
    "guided_decoding": frozenset(("json", "regex", "choice", "grammar")),
}


class RefusedField(ValueError):
    """A field of a request that is not supported, or whose value is not."""


def options(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of `Session.generate` for a request of Dynamo. Raises RefusedField."""
    sampling = _group(request, "sampling_options")
    stops = _group(request, "stop_conditions")
    output = _group(request, "output_options")
    _refuse_others(request)
    found: dict[str, Any] = {name: sampling[name] for name in _SAMPLING if name in sampling}
    # In Dynamo -1 is all tokens, which is 0 here.
    if (top_k := sampling.get("top_k")) is not None:
        found["top_k"] = max(top_k, 0)
    found |= _constraint(sampling)
    found["max_tokens"] = stops.get("max_tokens")
    found["ignore_end"] = bool(stops.get("ignore_eos"))
    # Text before a stop sequence is cut by the frontend; here it ends the computation.
    found["stop"] = stops.get("stop")
    found["stop_tokens"] = [*stops.get("stop_token_ids", ()), *stops.get("stop_token_ids_hidden", ())]
    found["top_logprobs"] = output.get("logprobs")
    found["cache_salt"] = (request.get("routing") or {}).get("cache_salt")
    return {name: value for name, value in found.items() if value is not None}


def _refuse_others(request: Mapping[str, Any]) -> None:
    """Raises RefusedField for a field besides the groups that changes the output, such as an image."""
    for name, value in request.items():
        if name in _HONOURED or name in _WITHOUT_EFFECT or value is None or value == [] or value == {}:
            continue
        # The frontend repeats some extensions here, such as a cache salt, which `routing` has too.
        extensions = value.get("nvext") if name == "extra_args" and isinstance(value, Mapping) else None
        refused = name if extensions is None else next((key for key in extensions if key != "cache_salt"), None)
        if refused is not None:
            raise RefusedField(f"`{refused}` is not supported by Nestling's worker")


def _group(parent: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the options of a group that are set. Raises RefusedField for those that are not supported."""
    group = parent.get(name) or {}
    if not isinstance(group, Mapping):
        raise RefusedField(f"`{name}`: expected an object")
    found = {key: value for key, value in group.items() if value is not None}
    for key, value in found.items():
        if key in _HONOURED[name]:
            continue
        if value not in _REFUSED[name].get(key, ()):
            raise RefusedField(f"`{key}` of {json.dumps(value)} is not supported by Nestling's worker")
    return found


def _constraint(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the option that constrains the output, if there is one."""
    guided = _group(sampling, "guided_decoding")
    found: dict[str, Any] = {}
    if "json" in guided:
        schema = guided["json"]
        found["schema"] = schema if isinstance(schema, str) else json.dumps(schema)
    if "regex" in guided:
        found["regex"] = guided["regex"]
    if guided.get("choice"):
        found["regex"] = "|".join(re.escape(choice) for choice in guided["choice"])
    if "grammar" in guided:
        found["lark"] = guided["grammar"]
    if len(found) > 1 or ("regex" in guided and guided.get("choice")):
        raise RefusedField("`guided_decoding`: only one constraint at a time is supported")
    return found
