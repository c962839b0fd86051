"""Errors, a class for each thing that whoever catches them can do about it."""


class NestlingError(Exception):
    """Anything that the engine refuses or fails at."""


class CallerError(NestlingError, ValueError):
    """What was asked for makes no sense, or is too long: the same again fails again."""


class NoDeviceError(CallerError):
    """The requested compute device does not exist on this machine."""


class BusyError(NestlingError):
    """Another thread works with it, or too many wait: later, it may work."""


class NoRoomError(NestlingError, MemoryError):
    """Memory, pages or threads are not enough: less may work, or more of them."""


class StoppedError(NestlingError):
    """It was cancelled, or its engine was shut down."""


class SourceError(NestlingError, OSError):
    """A file that is damaged, missing or not what it should be, or a disk that fails."""


class MissingFileError(SourceError, FileNotFoundError):
    """A file that does not exist."""


class BrokenError(NestlingError, RuntimeError):
    """The model, its device or the library itself: open the model again, and report it."""


class AnswerError(NestlingError, ValueError):
    """An answer that is not what was asked for: cut off, or no JSON."""
