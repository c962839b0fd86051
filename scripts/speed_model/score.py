"""The model against a record of a card: what it predicted, beside what was measured."""

import json
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .cards import CARDS, Card, busy
from .kernels import Product, Tiles, matmul_seconds, matvec_seconds
from .predictions import QWEN3, Find, argmax, layer

# Kernels of which there is a model: with one row of activations, and with many.
KERNELS = {"matvec_nested", "matvec_gated_quantize"}
MANY_ROWS = "matmul_nested"


class RecordError(ValueError):
    """A record that is not understood."""


@dataclass(frozen=True)
class Line:
    """Microseconds: measured, and predicted with memory that is idle and busy."""

    name: str
    measured: float
    idle: float
    busy: float

    @property
    def is_within(self) -> bool:
        return self.idle <= self.measured <= self.busy

    @property
    def ratio(self) -> float:
        """Of what was measured to the nearer end of what was predicted; 1 within."""
        nearest = min(max(self.measured, self.idle), self.busy)
        return self.measured / nearest


def card_of(record: dict, path: Path, name: str | None) -> Card:
    """The card by its name, the record's word, or the file's name."""
    card = record.get("card")
    card = card.get("name") if isinstance(card, dict) else card
    for text in (name, card, path.stem):
        plain = re.sub(r"[^a-z0-9]", "", str(text or "").lower())
        for known in CARDS:
            if re.sub(r"[^a-z0-9]", "", known.name.lower().removeprefix("rtx").removesuffix("sxm")) in plain:
                return known
    raise RecordError(f"no card of {', '.join(card.name for card in CARDS)} is named")


def number(record: dict, key: str) -> float:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e15:
        raise RecordError(f"{key} is not a positive number: {value!r}")
    return float(value)


def product_of(one: dict) -> Product:
    """A launch of a record. How many matrices it has follows from its bytes."""
    level = str(one.get("level", "")).lower().removeprefix("l")
    planes = one.get("planes")
    if level not in ("2", "3", "4", "6", "8") or planes not in ("merged", "apart"):
        raise RecordError(f"level {one.get('level')!r}, planes {planes!r}")
    rows, cols = int(number(one, "rows")), int(number(one, "columns"))
    single = Product(one["kernel"], level, planes == "apart", rows, cols)
    matrices = max(1, round(number(one, "bytes") / single.bytes))
    return Product(one["kernel"], level, planes == "apart", rows, cols, matrices)


def read_record(path: Path) -> dict:
    try:
        record = json.loads(path.read_text())
    except ValueError as error:
        raise RecordError(f"{path}: {error}") from error
    if not isinstance(record, dict) or not isinstance(record.get("bandwidth", []), list):
        raise RecordError(f"{path}: no record of a card")
    return record


def product_line(one: dict, card: Card, find: Find, seconds: Callable) -> Line | None:
    kernel = one.get("kernel")
    rows = int(number(one, "input_rows")) if "input_rows" in one else 1
    if kernel not in KERNELS | {MANY_ROWS} or (kernel in KERNELS) != (rows == 1):
        return None
    product = product_of(one)
    work: Product | Tiles = product
    if kernel == MANY_ROWS:
        seconds, work = matmul_seconds, Tiles(product.level, product.rows, product.cols, rows, product.matrices)
    ends = [1e6 * seconds(find(kernel, at.target), at, work) for at in (card, busy(card))]
    name = f"{kernel}, level {product.level}, {one['planes']}, {rows} rows"
    return Line(name, number(one, "microseconds"), min(ends), max(ends))


def score(record: dict, card: Card, find: Find, seconds: Callable = matvec_seconds) -> tuple[list[Line], list[str]]:
    """Lines of what there is a model for, and what there is none for."""
    lines, without = [], []
    for one in record.get("bandwidth", []):
        if not isinstance(one, dict):
            raise RecordError(f"no product: {one!r}")
        line = product_line(one, card, find, seconds)
        if line is None:
            without.append(str(one.get("kernel")))
        else:
            lines.append(line)
    if record.get("layer_microseconds") is not None:
        context = int(number(record, "layer_context")) if "layer_context" in record else 1024
        ends = [sum(layer(find, at, context=context).values()) for at in (card, busy(card))]
        lines.append(Line(f"a layer of {QWEN3.name}", number(record, "layer_microseconds"), min(ends), max(ends)))
    if record.get("argmax_microseconds") is not None:
        ends = [argmax(find, at) for at in (card, busy(card))]
        lines.append(Line("argmax", number(record, "argmax_microseconds"), min(ends), max(ends)))
    return lines, without


def to_text(lines: list[Line], without: list[str]) -> str:
    text = ["| what | measured us | predicted us | measured by predicted |", "|---|---:|---:|---:|"]
    text += [f"| {one.name} | {one.measured:.1f} | {one.idle:.1f} to {one.busy:.1f} | {one.ratio:.2f} |" for one in lines]
    if lines:
        within = sum(one.is_within for one in lines)
        far = statistics.median(max(one.ratio, 1 / one.ratio) for one in lines)
        text.append(f"\n{within} of {len(lines)} within the prediction; half of them within a factor of {far:.2f}")
    if without:
        text.append(f"without a model: {', '.join(sorted(set(without)))}")
    return "\n".join(text)
