"""Cubins, listings, control flow: on machine code of our own kernels and on small made-up code."""

import unittest
from dataclasses import replace
from pathlib import Path

from .cubin import Control, CubinError, read_cubin
from .facts import barriers_of, loop_facts, resources
from .flow import loops_of, path_through
from .listing import Instruction, read_listing

EXCERPTS = Path(__file__).resolve().parent / "excerpts"
SCALE = (EXCERPTS / "scale.sm_90.cubin").read_bytes()


def read_excerpt(name: str) -> tuple[list[Instruction], list[Control]]:
    code, controls = [], []
    for line in (EXCERPTS / name).read_text().splitlines():
        if line.startswith("#"):
            continue
        listed, scheduled = line.split(" ; ")
        address, predicate, opcode, *operands = listed.split()
        code.append(Instruction(int(address, 16), predicate.strip("-"), opcode, " ".join(operands)))
        stall, written, read, waits = scheduled.split()
        counters = [None if one == "-" else int(one) for one in (written, read)]
        controls.append(Control(int(stall), counters[0], counters[1], int(waits)))
    return code, controls


def level_2() -> tuple[list[Instruction], list[Control]]:
    return read_excerpt("matvec_nested.level_2.sm_90.txt")


def code_of(*lines: str) -> list[Instruction]:
    """`predicate opcode operands`, or `opcode operands`."""
    code = []
    for place, line in enumerate(lines):
        parts = line.split()
        predicate = parts.pop(0) if parts[0].startswith("@") else ""
        code.append(Instruction(16 * place, predicate, parts[0], " ".join(parts[1:])))
    return code


def facts_of(code: list[Instruction], controls: list[Control]) -> dict[str, int]:
    blocks, loops = loops_of(code)
    innermost = [loop for loop in loops if loop.is_innermost]
    return loop_facts(code, controls, blocks, innermost[0])


class Cubins(unittest.TestCase):
    def test_resources_of_a_kernel(self):
        cubin = read_cubin(SCALE)
        self.assertEqual(cubin.kernel, "scale")
        expected = {"registers": 8, "stack_bytes": 0, "shared_bytes": 0, "barriers": 0, "code_bytes": len(cubin.code)}
        self.assertEqual(resources(cubin, "sm_90"), expected)

    def test_scheduling_of_its_instructions(self):
        code, controls = read_listing((EXCERPTS / "scale.sm_90.json").read_text()), read_cubin(SCALE).controls()
        self.assertEqual(len(code), len(controls))
        # Each load of global memory takes up a counter, and something waits for it.
        loads = [place for place, one in enumerate(code) if one.is_global_load]
        self.assertEqual(len(loads), 2)
        for place in loads:
            counter = controls[place].written
            self.assertIsNotNone(counter)
            self.assertTrue(any(later.waits >> counter & 1 for later in controls[place + 1 :]))

    def test_what_is_no_cubin(self):
        for data in [b"", b"PTX", b"\x7fELF", SCALE[:70], b"\x7fELF" + b"\xff" * 200]:
            with self.assertRaises(CubinError):
                read_cubin(data)
        for length in range(0, len(SCALE), 97):
            try:
                read_cubin(SCALE[:length])
            except CubinError:
                pass

    def test_what_is_no_listing(self):
        for text in ["", "[]", "{}", '[{}, []]', '[{}, [{"function-name": "a"}]]', "nvdisasm fatal"]:
            with self.assertRaises(CubinError):
                read_listing(text)


class Units(unittest.TestCase):
    def test_units_and_widths(self):
        for opcode, unit, bits in [
            ("LDG.E.NA.128.CONSTANT", "lsu", 128),
            ("LDS.U16", "lsu", 16),
            ("IDP.4A.S8.S8", "fma", 32),
            ("IMMA.16832.S8.S8", "tensor", 32),
            ("PRMT", "alu", 32),
            ("I2FP.F32.S32", "alu", 32),
            ("I2F.U32.RP", "xu", 32),
            ("BAR.SYNC.DEFER_BLOCKING", "control", 32),
            ("LDC.64", "constant", 32),
        ]:
            one = Instruction(0, "", opcode, "")
            self.assertEqual((one.unit, one.bits), (unit, bits), opcode)

    def test_a_barrier_by_register_takes_all(self):
        self.assertEqual(barriers_of(code_of("BAR.SYNC.DEFER_BLOCKING 0x0", "EXIT")), 1)
        self.assertEqual(barriers_of(code_of("BAR.SYNC 0x1,0x80", "BAR.SYNC 0x2,0x80", "BAR.SYNC 0x0")), 3)
        self.assertEqual(barriers_of(code_of("BAR.SYNC.DEFER_BLOCKING R5,0x80", "BAR.SYNC 0x0")), 16)


class Loops(unittest.TestCase):
    def test_the_loop_of_level_2(self):
        facts = facts_of(*level_2())
        expected = {
            "instructions": 190,
            "instructions_apart": 190,
            "weight_loads": 1,
            "loads": 15,
            "local": 0,
            "shared_loads": 2,
            "waits_before_weights": 7,
            # By an instruction that needs another load, of the same counter.
            "weights_awaited_after": 11,
            "weights_behind_products": 0,
        }
        self.assertEqual({key: facts[key] for key in expected}, expected)
        self.assertEqual(sum(one.base == "IDP" for one in level_2()[0]), 16)

    def test_weights_loaded_by_less_than_16_bytes_are_noticed(self):
        code, controls = level_2()
        narrow = [
            Instruction(one.address, one.predicate, one.opcode.replace("NA.128", "NA.64"), one.operands) for one in code
        ]
        self.assertEqual(facts_of(narrow, controls)["weight_loads"], 0)

    def test_weights_loaded_behind_the_products_are_noticed(self):
        code, controls = level_2()
        at = next(place for place, one in enumerate(code) if one.is_weight_load)
        late = [*code[:at], *code[at + 1 : -1], code[at], code[-1]]
        late = [Instruction(old.address, one.predicate, one.opcode, one.operands) for old, one in zip(code, late)]
        self.assertEqual(facts_of(late, controls)["weights_behind_products"], 1)

    def test_weights_with_a_counter_of_their_own_are_awaited_later(self):
        code, controls = level_2()
        at = next(place for place, one in enumerate(code) if one.is_weight_load)
        alone = [replace(one, waits=one.waits & ~1) for one in controls]
        alone[at] = replace(alone[at], written=0)
        alone[-2] = replace(alone[-2], waits=1)
        self.assertEqual(facts_of(code, alone)["weights_awaited_after"], len(code) - 2 - at)

    def test_spills_are_noticed(self):
        code, controls = level_2()
        place = next(place for place, one in enumerate(code) if one.base == "PRMT")
        code[place] = Instruction(code[place].address, "", "STL", "[R1],R4")
        self.assertEqual(facts_of(code, controls)["local"], 1)

    def test_paths_with_all_the_work(self):
        code = code_of(
            "MOV R0,RZ",
            "LDS R1,[R0]",  # 0x10: the loop
            "@P0 BRA 0x50",
            "LOP3 R1,R1",
            "LOP3 R1,R1",
            "@P1 BRA 0x70",  # 0x50
            "IDP.4A R2,R1",
            "@P2 BRA 0x10",  # 0x70
            "EXIT",
        )
        blocks, loops = loops_of(code)
        self.assertEqual([(loop.header, loop.depth, loop.is_innermost) for loop in loops], [(1, 1, True)])
        # Products are on both; what stands between is on one.
        self.assertEqual(path_through(code, blocks, loops[0], False), [1, 2, 5, 6, 7])
        self.assertEqual(path_through(code, blocks, loops[0], True), [1, 2, 3, 4, 5, 6, 7])

    def test_loops_in_loops_and_lanes_that_parted(self):
        code = code_of(
            "MOV R0,RZ",
            "LDS R1,[R0]",  # 0x10: the outer loop
            "BRA.DIV UR4,0x70",
            "FFMA R1,R1,R1,R1",  # 0x30: the inner loop
            "@P0 BRA 0x30",
            "@P1 BRA 0x10",
            "EXIT",
            "WARPSYNC.COLLECTIVE R0,0x30",  # 0x70: not reached
            "BRA 0x30",
        )
        _, loops = loops_of(code)
        self.assertEqual([(loop.header, loop.depth, loop.is_innermost) for loop in loops], [(1, 1, False), (3, 2, True)])

    def test_branches_by_table(self):
        code = code_of("BRX R2,-0x10", "EXIT", "LDS R1,[R0]", "FFMA R1,R1,R1,R1", "@P0 BRA 0x30", "EXIT")
        self.assertEqual(loops_of(code)[1], [])
        self.assertEqual([loop.header for loop in loops_of(code, (0x20,))[1]], [3])
        # Other constants of the table's section lead nowhere.
        self.assertEqual([loop.header for loop in loops_of(code, (0x20, 0x40))[1]], [3])


if __name__ == "__main__":
    unittest.main()
