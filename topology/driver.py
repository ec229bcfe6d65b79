"""Asking a driver by the names of its calls; what it would not tell is remembered with the reason.

Nothing here imports pynvml: the module that opens it hands it in.
"""

import ctypes
from dataclasses import dataclass, field
from types import ModuleType

from topology.wiring import fold_notes

INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 2, 3, 6  # nvmlReturn_t of nvml.h
FUNCTION_NOT_FOUND, VERSION_MISMATCH = 13, 25
# nvmlValueType_t -> member of nvmlValue_t
_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}


@dataclass(slots=True, kw_only=True)
class Driver:
    """Calls NVML by name; remembers what it would not tell, and why."""

    nvml: ModuleType
    refusals: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)
    last_code: int = 0  # nvmlReturn_t of the last call

    def ask(self, call: str, *args: object) -> object:
        """The answer, or None where there is none; `last_code` says why."""
        self.last_code = 0
        try:
            return getattr(self.nvml, call)(*args)
        except self.nvml.NVMLError as exc:
            self.last_code = exc.value
        except UnicodeDecodeError:
            self.last_code = self.nvml.NVML_ERROR_UNKNOWN
        return None

    def ask_whole(self, call: str, *args: object) -> int | None:
        """As `ask`, for calls that answer a number."""
        answer = self.ask(call, *args)
        return answer if isinstance(answer, int) else None

    def ask_text(self, call: str, *args: object) -> str | None:
        """As `ask`, for calls that answer text."""
        return str(self.ask(call, *args) or "") or None

    def ask_field(self, handle: object, *, name: int, scope: int = 0) -> int | None:
        """One number by field id; each field carries a type and a return code of its own."""
        answer = self.ask("nvmlDeviceGetFieldValues", handle, [(name, scope)])
        if not isinstance(answer, ctypes.Array):
            return None
        self.last_code = answer[0].nvmlReturn
        if self.last_code:
            return None
        return int(getattr(answer[0].value, _MEMBERS.get(answer[0].valueType, "uiVal")))

    def note(self, what: str, subject: str, fact: str) -> None:
        """Remember that the last call did not tell `fact`, if so."""
        if self.last_code:
            facts = self.refusals.setdefault((what, subject, self.why()), [])
            facts += [] if fact in facts else [fact]

    def why(self) -> str:
        """The driver's own words for the last refusal."""
        return str(self.nvml.NVMLError(self.last_code))

    def notes(self) -> list[str]:
        """What was refused, folded over GPUs and pairs."""
        folded: list[str] = []
        for kind in dict.fromkeys(what for what, _, _ in self.refusals):
            remarks = [
                (subject, f"{', '.join(facts)} not told (NVML: {why})")
                for (what, subject, why), facts in self.refusals.items()
                if what == kind
            ]
            folded += fold_notes(kind, remarks)
        return folded
