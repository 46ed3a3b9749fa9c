"""Names for the strings that identify things, so that mypy keeps them apart."""

from typing import NewType

WorkerId = NewType("WorkerId", str)
SessionId = NewType("SessionId", str)
DirectiveId = NewType("DirectiveId", str)
PresetName = NewType("PresetName", str)
