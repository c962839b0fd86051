"""The model of speed: on machine code of our own, and against a made-up record."""

import json
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

from sass.flow import loops_of, path_through
from sass.test_reading import level_2

from . import machine, score
from .cards import CARDS, H100, H200, RTX_4090, busy
from .kernels import Product
from .machine import Step, Where, wait

RECORD = {
    "card": {"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85520830600},
    "bandwidth": [
        {
            "kernel": "matvec_nested",
            "level": 4,
            "planes": "merged",
            "rows": 14336,
            "columns": 4096,
            "bytes": 488_000_000,
            "microseconds": 300.0,
            "launches": 50,
        },
        {"kernel": "matvec_nested_rows", "level": 4, "planes": "merged", "input_rows": 4},
    ],
}


def product_seconds(_, card, product: Product) -> float:
    """Half of the bandwidth with memory that is idle, a quarter with memory that is busy."""
    share = 0.5 if card.memory < 1000 else 0.25
    return product.bytes / (share * card.bandwidth)


def turn(card) -> list[Step]:
    """One pass through the loop of level 2."""
    code, controls = level_2()
    blocks, loops = loops_of(code)
    path = path_through(code, blocks, loops[0], False)
    return [machine.step_of(code[at], controls[at], card, Where()) for at in path]


class Machine(unittest.TestCase):
    def test_an_instruction_after_another(self):
        alone = Step("alu", 2, 4, None, None, 0, 0)
        self.assertEqual(machine.cycles_of([([alone], 10)], H100, 1, 1), 40)
        # Four warps take turns; a fifth waits for the unit.
        self.assertEqual(machine.cycles_of([([alone], 10)], H100, 2, 2), 42)
        self.assertGreaterEqual(machine.cycles_of([([alone], 10)], H100, 4, 4), 80)

    def test_a_load_is_waited_for(self):
        load = Step("lsu", 4, 1, 0, None, 0, 500)
        use = Step("alu", 2, 1, None, None, 1, 0)
        self.assertEqual(machine.cycles_of([([load, use], 1)], H100, 1, 1), 501)

    def test_loads_share_the_bandwidth(self):
        load = Step("lsu", 4, 1, 0, None, 0, 500, memory_bytes=512)
        program = [([load, wait(1)], 100)]
        slow = machine.cycles_of(program, replace(H100, bandwidth=1e11), 8, 8)
        self.assertAlmostEqual(slow, 800 * 512 / (1e11 * 0.92 / (4 * 132 * 1.755e9)), delta=slow * 0.02)
        self.assertLess(machine.cycles_of(program, H100, 8, 8), slow / 5)

    def test_the_loop_of_level_2(self):
        one = machine.cycles_of([(turn(H100), 8)], H100, 1, 1)
        # Longer than its instructions take, and than one latency of memory a pass.
        self.assertGreater(one, 8 * (190 + H100.memory))
        self.assertLess(one, 8 * 2500)
        later = busy(H100)
        self.assertGreater(machine.cycles_of([(turn(later), 8)], later, 1, 1), one + 8 * 500)
        # Six warps hide some of it from each other.
        six = machine.cycles_of([(turn(H100), 8)], H100, 6, 6)
        self.assertTrue(one < six < 3 * one)

    def test_many_blocks_go_on_as_the_last_ones(self):
        program = [(turn(H100), 4), ([wait(100)], 1)]
        many = machine.cycles_of_many(program, H100, 4, 48, 1, 132)
        self.assertAlmostEqual(many, machine.cycles_of(program, H100, 4, 48), delta=0.05 * many)

    def test_how_many_blocks_are_resident(self):
        for card, registers, shared, threads, expected in [
            (H100, 80, 20608, 128, 6),
            (H100, 108, 41344, 256, 2),
            (H100, 196, 36992, 128, 2),
            (RTX_4090, 81, 20608, 128, 4),
            (H100, 16, 0, 32, 32),
        ]:
            self.assertEqual(machine.resident_blocks(card, registers, shared, threads), expected)


class Scores(unittest.TestCase):
    def test_a_record_is_scored(self):
        lines, without = score.score(RECORD, H100, lambda *_: None, product_seconds)
        (line,) = lines
        self.assertEqual(without, ["matvec_nested_rows"])
        self.assertEqual(line.name, "matvec_nested, level 4, merged, 1 rows")
        # 16 matrices: 488 MB at 1.675 TB/s and at half of that.
        self.assertAlmostEqual(line.idle, 291.7, delta=1)
        self.assertAlmostEqual(line.busy, 583.4, delta=2)
        self.assertTrue(line.is_within)
        self.assertIn("1 of 1 within", score.to_text(lines, without))

    def test_what_is_off_is_said(self):
        record = {"bandwidth": [RECORD["bandwidth"][0] | {"microseconds": 1200.0}]}
        (line,), _ = score.score(record, H100, lambda *_: None, product_seconds)
        self.assertAlmostEqual(line.ratio, 2.06, delta=0.02)
        self.assertIn("0 of 1 within", score.to_text([line], []))

    def test_cards_by_name(self):
        path = Path("gpu-nvidia-h200.json")
        self.assertEqual(score.card_of(RECORD, path, None), H100)
        self.assertEqual(score.card_of({}, path, None), H200)
        self.assertEqual(score.card_of(RECORD, path, "NVIDIA GeForce RTX 4090"), RTX_4090)
        self.assertEqual(score.card_of({}, Path("gpu-nvidia-geforce-rtx-3060.json"), None), CARDS[3])
        with self.assertRaises(score.RecordError):
            score.card_of({}, Path("gpu-other.json"), None)

    def test_records_that_are_none(self):
        for changed in [{"level": 5}, {"planes": "both"}, {"rows": 0}, {"bytes": "many"}, {"microseconds": True}]:
            record = {"bandwidth": [RECORD["bandwidth"][0] | changed]}
            with self.assertRaises(score.RecordError):
                score.score(record, H100, lambda *_: None, product_seconds)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "gpu-h100.json")
            with self.assertRaises(score.RecordError):
                score.score({"bandwidth": ["matvec_nested"]}, H100, lambda *_: None, product_seconds)
            for text in ["", "[]", '{"bandwidth": 1}']:
                path.write_text(text)
                with self.assertRaises(score.RecordError):
                    score.read_record(path)
            path.write_text(json.dumps(RECORD))
            self.assertEqual(score.read_record(path), RECORD)


if __name__ == "__main__":
    unittest.main()
