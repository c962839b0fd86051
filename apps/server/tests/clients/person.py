"""The pydantic model of structured outputs, and a tool with its fields as parameters."""

from pydantic import BaseModel, ConfigDict, Field

QUESTION = "Who are you?"
DESCRIPTION = "Notes a person."
NOTED = "Noted."


class Person(BaseModel):
    """A person."""

    # Random weights end a text only where the schema does, so the schema bounds every part.
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=12)
    age: int = Field(ge=1, le=99)


TOOL = {
    "type": "function",
    "function": {"name": "person", "description": DESCRIPTION, "parameters": Person.model_json_schema()},
}


def person_of(fields):
    """Validates a JSON text or the arguments of a tool call."""
    return Person.model_validate_json(fields) if isinstance(fields, str) else Person.model_validate(fields)
