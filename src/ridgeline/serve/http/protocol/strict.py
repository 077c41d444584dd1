"""What all requests have in common: types are exact, unknown fields are errors."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

LARGEST_INT = 2**63 - 1
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Text = Annotated[str, Field(max_length=1 << 26)]
Name = Annotated[str, Field(min_length=1, max_length=512)]


class Strict(BaseModel):
    """No conversion ("5" is no number), no unknown field, no infinity."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=()
    )
