"""The parts of a cubin that tell what its kernel takes: an ELF file, read by hand."""

import struct
from dataclasses import dataclass

# Attributes of `.nv.info` that hold the kernel's symbol and a number.
FRAME_BYTES = 0x11
REGISTERS = 0x2F
# Of `.nv.info.<kernel>`, with the number in the attribute itself, from sm_100 on.
BARRIERS = 0x4C
FORMAT_NUMBER = 0x03
FORMAT_BYTES = 0x04
# Bytes of an instruction since Volta.
INSTRUCTION_BYTES = 16


class CubinError(ValueError):
    """A file that is no cubin of one kernel."""


@dataclass(frozen=True)
class Section:
    name: str
    flags: int
    info: int
    size: int
    data: bytes


@dataclass(frozen=True)
class Control:
    """How the compiler schedules one instruction: bits 105 to 125 of its encoding."""

    stall: int  # cycles until the next one may issue
    written: int | None  # counter that its result takes up until it is there
    read: int | None  # counter that its operands take up until they are read
    waits: int  # counters that must be zero before it issues, a bit each


@dataclass(frozen=True)
class Cubin:
    kernel: str
    code: bytes
    registers: int
    stack_bytes: int
    shared_bytes: int
    barriers: int
    jump_targets: tuple[int, ...]  # what may be addresses for branches by table

    def controls(self) -> list[Control]:
        """The scheduling of all instructions, in their order."""
        found = []
        for at in range(0, len(self.code), INSTRUCTION_BYTES):
            high = struct.unpack_from("<Q", self.code, at + 8)[0] >> 41
            written, read = high >> 5 & 7, high >> 8 & 7
            found.append(
                Control(
                    stall=high & 15,
                    written=None if written == 7 else written,
                    read=None if read == 7 else read,
                    waits=high >> 11 & 63,
                )
            )
        return found


def sections_of(data: bytes) -> list[Section]:
    if data[:4] != b"\x7fELF" or len(data) < 64:
        raise CubinError("no ELF file")
    try:
        (start,) = struct.unpack_from("<Q", data, 0x28)
        size, count, names_at = struct.unpack_from("<HHH", data, 0x3A)
        heads = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count)]
        names = heads[names_at]
        names = data[names[4] : names[4] + names[5]]
    except (struct.error, IndexError, OverflowError) as error:
        raise CubinError("damaged ELF file") from error
    found = []
    for name, kind, flags, _, offset, length, _, info, _, _ in heads:
        text = names[name:].split(b"\0", 1)[0].decode("ascii", "replace")
        is_kept = kind != 8  # not NOBITS
        found.append(Section(text, flags, info, length, data[offset : offset + length] if is_kept else b""))
    return found


def attributes(data: bytes):
    """Pairs of an attribute's number and its bytes."""
    at = 0
    while at + 4 <= len(data):
        form, number, value = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == FORMAT_BYTES:
            yield number, data[at : at + value]
            at += value
        elif form == FORMAT_NUMBER:
            yield number, struct.pack("<I", value)


def largest(data: bytes, wanted: int, offset: int) -> int:
    values = [struct.unpack_from("<I", v, offset)[0] for number, v in attributes(data) if number == wanted]
    return max(values, default=0)


def read_cubin(data: bytes) -> Cubin:
    """A cubin's only kernel.

    Raises CubinError for anything else.
    """
    sections = {section.name: section for section in sections_of(data)}
    codes = [section for name, section in sections.items() if name.startswith(".text.")]
    if len(codes) != 1:
        raise CubinError(f"{len(codes)} kernels in one cubin")
    kernel = codes[0].name.removeprefix(".text.")
    nothing = Section("", 0, 0, 0, b"")
    shared = [s.size for name, s in sections.items() if name == f".nv.shared.{kernel}"]
    table = sections.get(f".nv.constant2.{kernel}", nothing).data
    words = struct.unpack(f"<{len(table) // 4}I", table[: len(table) // 4 * 4])
    end = len(codes[0].data)
    of_all = sections.get(".nv.info", nothing).data
    of_kernel = sections.get(f".nv.info.{kernel}", nothing).data
    barriers = codes[0].flags >> 20 & 127
    return Cubin(
        kernel=kernel,
        code=codes[0].data,
        registers=largest(of_all, REGISTERS, 4),
        stack_bytes=largest(of_all, FRAME_BYTES, 4),
        shared_bytes=max(shared, default=0),
        barriers=barriers or largest(of_kernel, BARRIERS, 0),
        jump_targets=tuple(w for w in words if 0 < w < end and w % INSTRUCTION_BYTES == 0),
    )
