"""Budgets, texts for later devices, and banks of shared memory: what is worse is said."""

import copy
import json
import random
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

from . import banks, ptx
from .budgets import compare, images_of, table, to_text

LOOP = {"instructions": 190, "instructions_apart": 190, "alu": 93, "fma": 64, "lsu": 21, "in_flight": 6}
LOOP |= {"weight_loads": 1, "loads": 15, "waits_before_weights": 7}
ONE = {"compiler": "12.6", "registers": 80, "stack_bytes": 0, "shared_bytes": 20608, "barriers": 1}
MEASURED = {
    "matvec_nested": {"sm_90": ONE | {"loops": {"level 2": LOOP}}, "sm_120": ONE},
    "scale": {"sm_90": {"compiler": "12.6", "registers": 8}},
}


class Budgets(unittest.TestCase):
    def changed(self, change) -> tuple[list[str], list[str]]:
        found = copy.deepcopy(MEASURED)
        change(found)
        return compare(MEASURED, found)

    def test_what_is_as_it_was_passes(self):
        self.assertEqual(compare(MEASURED, MEASURED), ([], []))

    def test_text_is_read_back(self):
        self.assertEqual(json.loads(to_text(MEASURED)), MEASURED)
        self.assertIn("level 2", table(MEASURED))

    def test_more_registers(self):
        worse, better = self.changed(lambda all: all["scale"]["sm_90"].update(registers=9))
        self.assertEqual((worse, better), (["scale sm_90: registers 8 -> 9"], []))

    def test_fewer_registers(self):
        worse, better = self.changed(lambda all: all["scale"]["sm_90"].update(registers=7))
        self.assertEqual((worse, better), ([], ["scale sm_90: registers 8 -> 7"]))

    def test_a_longer_loop(self):
        loop = lambda all: all["matvec_nested"]["sm_90"]["loops"]["level 2"]  # noqa: E731
        worse, _ = self.changed(lambda all: loop(all).update(instructions=191, alu=94))
        self.assertEqual(len(worse), 2)

    def test_fewer_loads_under_way(self):
        loop = lambda all: all["matvec_nested"]["sm_90"]["loops"]["level 2"]  # noqa: E731
        self.assertEqual(len(self.changed(lambda all: loop(all).update(in_flight=5))[0]), 1)
        self.assertEqual(len(self.changed(lambda all: loop(all).update(in_flight=7))[1]), 1)

    def test_loops_kernels_and_targets_that_are_gone_or_new(self):
        for change in [
            lambda all: all["matvec_nested"]["sm_90"]["loops"].clear(),
            lambda all: all["matvec_nested"]["sm_90"]["loops"].update({"level 3": LOOP}),
            lambda all: all["matvec_nested"].pop("sm_120"),
            lambda all: all.pop("scale"),
            lambda all: all.update(other={"sm_90": ONE}),
            lambda all: all["scale"]["sm_90"].update(compiler="12.8"),
            lambda all: all["scale"]["sm_90"].pop("registers"),
        ]:
            self.assertEqual(len(self.changed(change)[0]), 1)

    def test_images_are_found_by_their_names(self):
        with tempfile.TemporaryDirectory() as folder:
            name = f"attend_split_f16-{'0a' * 16}-sm_120-12.8"
            Path(folder, name).write_bytes(b"0123456789abcdefthe image")
            Path(folder, ".tmp123").write_bytes(b"half of one")
            (found,) = images_of([Path(folder)])
        expected = ("attend_split_f16", "sm_120", "12.8", b"the image")
        self.assertEqual((found.kernel, found.target, found.compiler, found.data), expected)

    def test_the_committed_budgets_have_no_spill_in_a_loop(self):
        path = Path(__file__).resolve().parent.parent.parent / "kernels" / "budgets.json"
        for kernel, targets in json.loads(path.read_text()).items():
            for target, found in targets.items():
                for name, loop in found.get("loops", {}).items():
                    self.assertEqual(loop["local"], 0, f"{kernel} {target} {name}")


def text(number: int, kernel: str, body: str) -> bytes:
    return f".version 8.5\n.target sm_{number}\n.visible .entry {kernel}(\n{body}\n\0".encode()


class Texts(unittest.TestCase):
    NEWER = "mma.sync.aligned.m16n8k32.row.col"
    OLDER = "mma.sync.aligned.m8n8k16.row.col"

    def test_each_way_for_its_architecture(self):
        for number, body in [(75, self.OLDER), (80, self.NEWER), (90, self.NEWER)]:
            found = ptx.faults("matmul_nested", f"compute_{number}", text(number, "matmul_nested", body))
            self.assertEqual(found, [])

    def test_the_way_of_another_architecture(self):
        for number, body in [(75, self.NEWER), (80, self.OLDER), (90, self.OLDER)]:
            found = ptx.faults("matmul_nested", f"compute_{number}", text(number, "matmul_nested", body))
            self.assertEqual(len(found), 2)

    def test_another_target_kernel_or_load(self):
        self.assertEqual(len(ptx.faults("scale", "compute_80", text(75, "scale", ""))), 1)
        self.assertEqual(len(ptx.faults("scale", "compute_80", text(80, "route", ""))), 1)
        self.assertEqual(len(ptx.faults("matvec_nested", "compute_80", text(80, "matvec_nested", "ld.global"))), 1)


class Banks(unittest.TestCase):
    def test_passes_of_a_warp(self):
        for size, address, expected in [
            (4, lambda lane: 4 * lane, 1),
            (4, lambda _: 0, 1),
            (4, lambda lane: 8 * lane, 2),
            (4, lambda lane: 128 * lane, 32),
            (4, lambda lane: 132 * lane, 1),
            (2, lambda lane: 2 * lane, 1),
            (8, lambda lane: 8 * lane, 2),
            (16, lambda lane: 16 * lane, 4),
            (16, lambda _: 0, 1),
        ]:
            self.assertEqual(banks.wavefronts([address(lane) for lane in range(32)], size), expected)

    def test_the_kernels_meet_no_more_often_than_before(self):
        self.assertEqual(banks.faults(), [])

    def test_constants_are_those_of_the_kernels(self):
        numbers = banks.Constants("nested.cuh", "matmul.cuh")
        self.assertEqual((numbers["FINE_COPIES"], numbers["MATMUL_GROUPS"], numbers["X_STRIDE"]), (8, 4, 36))
        with self.assertRaises(KeyError):
            numbers["OTHER"]

    def test_a_formula_that_the_kernel_no_longer_has(self):
        changed = banks.Access("x", "matmul.cuh", ("shared.x[lane]",), 1, lambda: 1.0)
        self.assertEqual(len(banks.faults([changed])), 1)

    def test_rows_that_lie_without_a_group_between(self):
        rows = banks.fixed(4, lambda lane: 4 * (lane // 4 * 32 + lane % 4))
        meeting = banks.Access("x", "matmul.cuh", (), 1, rows)
        self.assertEqual(banks.faults([meeting]), ["x: 8.00 passes of a warp, at most 1 before"])

    def test_a_table_of_which_lanes_use_one_copy(self):
        draw = random.Random(1)
        alone = banks.fixed(2, lambda _: 2 * 8 * draw.randrange(64))
        meeting = replace(banks.ACCESSES[0], passes=alone)
        self.assertEqual(len(banks.faults([meeting])), 1)

    def test_digits_of_level_6_would_not_meet_without_copies(self):
        draw = random.Random(1)
        for _ in range(100):
            self.assertEqual(banks.wavefronts([2 * draw.randrange(64) for _ in range(32)], 2), 1)


if __name__ == "__main__":
    unittest.main()
