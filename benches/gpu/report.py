#!/usr/bin/env python3
"""Turn what the GPU kit wrote into a record and tables: report.py RESULT.json [FOLDER OF RECORDS]

Copies the file to FOLDER/DATE/gpu-CARD.json (benches/records by default), writes the tables beside it, and prints
them for PERF.md. Needs nothing but Python 3.
"""
import csv
import datetime
import io
import json
import os
import re
import shutil
import sys

FORMAT = "nestling-gpu-kit 1"
METRICS = ["Duration", "DRAM Throughput", "Compute (SM) Throughput", "Achieved Occupancy",
           "Registers Per Thread", "L2 Hit Rate"]


def read(path):
    """The record; SystemExit where it is none."""
    try:
        with open(path) as file:
            result = json.load(file)
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path}: {error}")
    if not isinstance(result, dict) or result.get("format") != FORMAT:
        raise SystemExit(f"{path}: no record of the GPU kit ({FORMAT})")
    return result


def card_name(result):
    name = result.get("card", {}).get("name")
    if name is None or name.startswith("emulated"):
        adapters = result.get("vulkan", {}).get("card", {}).get("adapters") or [{}]
        name = name or adapters[0].get("name")
    return name or "unknown"


def slug(name):
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def date_of(result):
    moment = datetime.datetime.fromtimestamp(result.get("started_unix", 0), datetime.timezone.utc)
    return moment.strftime("%Y-%m-%d")


def table(heading, rows):
    """A table of Markdown; the first column is text."""
    out = ["| " + " | ".join(heading) + " |", "|---" + "|---:" * (len(heading) - 1) + "|"]
    out += ["| " + " | ".join(str(cell).replace("|", "/").replace("\n", " ") for cell in row) + " |"
            for row in rows]
    return "\n".join(out)


def number(value, digits=1):
    if not isinstance(value, (int, float)):
        return "-"
    return f"{value:,.{digits}f}" if abs(value) < 1000 else f"{value:,.0f}"


def peak(part):
    """Bytes per second that the memory was measured at, of everything that was tried."""
    rates = [row.get("bytes_per_second", 0) for row in part.get("memory", [])]
    return max(rates, default=0)


def card(result):
    found, host, kit = (result.get(key) or {} for key in ("card", "host", "kit"))
    smi = (result.get("nvidia_smi") or [{}])[0]
    lines = [f"Card: {card_name(result)}; compute capability {found.get('compute_capability', '-')}, "
             f"{found.get('multiprocessors', '-')} multiprocessors, "
             f"{number(found.get('memory_bytes', 0) / 2**30)} GiB, L2 {number(found.get('l2_bytes', 0) / 2**20)} MiB; "
             f"driver {smi.get('driver_version', '-')} (CUDA {found.get('cuda_of_driver', '-')})."]
    for adapter in result.get("vulkan", {}).get("card", {}).get("adapters", []):
        lines.append(f"Vulkan: {adapter.get('name')} ({adapter.get('kind')}), {adapter.get('driver')}, subgroups "
                     f"{adapter.get('subgroup_sizes')}.")
    lines.append(f"Host: {host.get('cpu', '-')}, {host.get('threads', '-')} threads, {host.get('system', '-')}. "
                 f"Kit: {kit.get('commit', '-')} ({kit.get('mode', '-')}).")
    return "\n".join(lines)


def steps(result):
    rows = [(step["name"], step["outcome"], number(step["seconds"]), step.get("message", ""))
            for step in result.get("steps", [])]
    return "## Steps\n\n" + table(["step", "outcome", "seconds", "what it said"], rows) if rows else ""


def cases(result):
    out = []
    for backend, found in result.get("cases", {}).items():
        outcomes = [case["outcome"] for case in found]
        counts = ", ".join(f"{outcomes.count(each)} {each}" for each in dict.fromkeys(outcomes))
        out.append(f"{backend}: {len(found)} cases: {counts}.")
        out += [f"- `{case['name']}`: {case['outcome']}"
                + (f", alone {case['alone']}" if "alone" in case else "")
                + f": {case.get('message') or case.get('alone_message') or ''}".replace("\n", " ")
                for case in found if case["outcome"] != "passed"]
    return "## Cases\n\n" + "\n".join(out) if out else ""


def memory(part, by_clock=0):
    rows = [(row["what"], number(row["bytes"] / 1e6), number(row["microseconds"]),
             number(row["bytes_per_second"] / 1e9)) for row in part.get("memory", [])]
    if by_clock:
        rows.append(("by clock and width", "", "", number(by_clock / 1e9)))
    return table(["memory", "MB", "us", "GB/s"], rows) if rows else ""


def bandwidth(part):
    best = peak(part)
    rows = []
    for row in part.get("bandwidth", []):
        rate = row["bytes"] / max(row["microseconds"], 1e-3) * 1e6
        share = f"{100 * rate / best:.0f} %" if best else "-"
        rows.append((row["kernel"], row["level"], row["planes"], row.get("input_rows", 1), number(row["bytes"] / 1e6),
                     number(row["microseconds"]), row["launches"], number(rate / 1e9), share))
    heading = ["kernel", "level", "planes", "rows", "MB", "us", "launches", "GB/s", "of the measured memory"]
    return table(heading, rows) if rows else ""


def layer(part):
    rows = part.get("layer", [])
    contexts = sorted({row["context"] for row in rows})
    found = {(row["part"], row["context"]): row["microseconds"] for row in rows}
    parts = list(dict.fromkeys(row["part"] for row in rows))
    body = [[name] + [number(found.get((name, context)), 2) for context in contexts] for name in parts]
    return table(["one layer, one token, us"] + [f"context {each}" for each in contexts], body) if rows else ""


def tokens(part):
    rows = [(row["experts"], row["test"], number(row["tokens_per_second"], 2),
             number(row.get("median_milliseconds"), 2)) for row in part.get("tokens", [])]
    return table(["experts", "test", "tokens/s", "ms a token, median"], rows) if rows else ""


def measured(part, by_clock=0):
    argmax = part.get("argmax_microseconds")
    found = [memory(part, by_clock), bandwidth(part), layer(part),
             f"`argmax` of {part['argmax']['tokens']:,} logits: {number(argmax)} us." if argmax is not None else "",
             tokens(part)]
    return "\n\n".join(text for text in found if text)


def sanitizer(result):
    rows = [(tool, found["summary"], found["cases_begun"], found["ending"])
            for tool, found in result.get("sanitizer", {}).items()]
    return "## compute-sanitizer\n\n" + table(["tool", "summary", "cases begun", "ending"], rows) if rows else ""


def profile(result):
    text = result.get("ncu", {}).get("csv", "")
    launches = {}
    for row in csv.DictReader(io.StringIO(text)):
        key = (row.get("ID"), row.get("Kernel Name"))
        if row.get("Metric Name") in METRICS:
            unit = row.get("Metric Unit") or ""
            launches.setdefault(key, {})[row["Metric Name"]] = f"{row.get('Metric Value')} {unit}".strip()
    rows = [[name] + [found.get(metric, "-") for metric in METRICS] for (_, name), found in launches.items()]
    return "## Nsight Compute\n\n" + table(["kernel"] + METRICS, rows) if rows else ""


def report(result):
    """All tables as Markdown."""
    title = f"# GPU kit on {card_name(result)}, {date_of(result)}"
    if result.get("dry_run"):
        title += "\n\n**A dry run: nothing real was measured, and its figures mean nothing.**"
    whole = "whole" if result.get("finished") else "INTERRUPTED"
    verdict = f"{whole}, {'all passed' if result.get('passed') else 'not all passed'}, " \
              f"{number(result.get('seconds'))} s."
    by_clock = result.get("card", {}).get("bandwidth_by_clock") or 0
    cuda, vulkan = measured(result, by_clock), measured(result.get("vulkan", {}))
    parts = [title, card(result), verdict, steps(result), cases(result),
             cuda and "## CUDA\n\n" + cuda, vulkan and "## Vulkan\n\n" + vulkan,
             sanitizer(result), profile(result)]
    return "\n\n".join(part for part in parts if part) + "\n"


def keep(path, result, records):
    """Puts the record and its tables where records are; gives the stem of their names."""
    folder = os.path.join(records, date_of(result))
    os.makedirs(folder, exist_ok=True)
    stem = base = os.path.join(folder, f"gpu-{slug(card_name(result))}")
    count = 1
    while os.path.exists(stem + ".json"):
        count += 1
        stem = f"{base}-{count}"
    shutil.copyfile(path, stem + ".json")
    with open(stem + ".md", "w") as file:
        file.write(report(result))
    return stem


def main(words):
    if not 1 <= len(words) <= 2:
        raise SystemExit(__doc__)
    here = os.path.dirname(os.path.abspath(__file__))
    records = words[1] if len(words) == 2 else os.path.join(here, "../records")
    result = read(words[0])
    stem = keep(words[0], result, records)
    print(report(result))
    print(f"kept as {os.path.normpath(stem)}.json and .md", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
