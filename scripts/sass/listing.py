"""Instructions of a kernel, as nvdisasm lists them, and the unit of a multiprocessor that takes each."""

import json
import re
import subprocess
from dataclasses import dataclass

from .cubin import INSTRUCTION_BYTES, CubinError

# Opcodes by the unit that takes them (Nsight Compute's names); what is not here is in ALU.
UNITS = {
    "fma": "FFMA FADD FMUL FMUL32I FADD32I FFMA32I IMAD IDP HADD2 HMUL2 HFMA2 IMUL FSWZADD",
    "tensor": "IMMA HMMA BMMA DMMA",
    "lsu": "LDS STS LDG STG LD ST LDL STL ATOM ATOMG ATOMS RED SHFL LDSM LDGSTS CCTL MEMBAR ERRBAR ATOMCAS",
    "xu": "MUFU I2F F2I F2F FLO POPC FRND BREV",
    "fp64": "DADD DMUL DFMA DSETP DMNMX",
    "control": "BRA BRX BSSY BSYNC EXIT RET CALL BAR WARPSYNC NOP YIELD BREAK BMOV DEPBAR KILL JMP BPT NANOSLEEP"
    " NANOTRAP ELECT ACQBULK ENDCOLLECTIVE RPCMOV PREEXIT",
    "constant": "LDC S2R CS2R S2UR LDCU B2R",
    "uniform": "ULDC UMOV UIADD3 UIMAD USHF ULOP3 UISETP ULEA USEL UPLOP3 UPRMT UFLO UP2UR UR2UP R2UR USGXT UVIADD"
    " UIADD3X UVIMNMX UBMSK UF2FP UI2FP UFADD UFMUL UFFMA UFSETP UIMNMX VOTEU REDUX UCGABAR_ARV UCGABAR_WAIT",
}
UNIT_OF = {opcode: unit for unit, opcodes in UNITS.items() for opcode in opcodes.split()}
# Floats and integers that pass through the ALU from Ampere on.
IN_ALU = {"I2FP", "F2FP", "FSEL", "FSETP", "FMNMX"}

GLOBAL_LOADS = {"LDG", "LD"}
LOCAL_ACCESSES = {"LDL", "STL"}
JUMPS = {"BRA", "BRX", "JMP", "EXIT", "RET"}


@dataclass(frozen=True)
class Instruction:
    address: int
    predicate: str  # "@P0", or empty
    opcode: str  # with its suffixes
    operands: str

    @property
    def base(self) -> str:
        return self.opcode.split(".", 1)[0]

    @property
    def unit(self) -> str:
        if self.base in IN_ALU:
            return "alu"
        return UNIT_OF.get(self.base, "alu")

    @property
    def bits(self) -> int:
        """What a lane loads or stores; 32 of what does neither."""
        for part in self.opcode.split("."):
            if self.unit != "lsu":
                break
            if part in ("128", "64"):
                return int(part)
            if part in ("U16", "S16"):
                return 16
            if part in ("U8", "S8"):
                return 8
        return 32

    @property
    def is_global_load(self) -> bool:
        return self.base in GLOBAL_LOADS

    @property
    def is_weight_load(self) -> bool:
        """Reads what nobody writes meanwhile: `load_once` of the kernels, 16 bytes a lane."""
        return self.base == "LDG" and self.bits == 128 and "CONSTANT" in self.opcode

    @property
    def is_diverging(self) -> bool:
        """A branch to what a warp does whose lanes have parted: never taken by these kernels."""
        return self.base == "BRA" and ("DIV" in self.opcode or "CONV" in self.opcode)

    @property
    def is_jump(self) -> bool:
        return self.base in JUMPS and not self.is_diverging

    @property
    def is_conditional(self) -> bool:
        return bool(self.predicate) or ".U" in self.opcode

    @property
    def target(self) -> int | None:
        if self.base not in ("BRA", "JMP"):
            return None
        found = re.findall(r"0x[0-9a-f]+", self.operands)
        return int(found[-1], 16) if found else None


def read_listing(text: str) -> list[Instruction]:
    """From nvdisasm's JSON of a cubin with one kernel.

    Raises CubinError for anything else.
    """
    try:
        functions = json.loads(text)[1]
        listed = functions[0]["sass-instructions"]
    except (ValueError, LookupError, TypeError) as error:
        raise CubinError(f"nvdisasm's JSON is not understood: {error}") from error
    if len(functions) != 1:
        raise CubinError(f"{len(functions)} functions in one cubin")
    return [
        Instruction(
            address=INSTRUCTION_BYTES * place,
            predicate=one.get("predicate", ""),
            opcode=one["opcode"],
            operands=one.get("operands", ""),
        )
        for place, one in enumerate(listed)
    ]


def disassemble(nvdisasm: str, path: str) -> list[Instruction]:
    done = subprocess.run([nvdisasm, "-json", path], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CubinError(f"nvdisasm: {done.stderr.strip()}")
    return read_listing(done.stdout)
