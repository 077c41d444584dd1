"""Takes out of a conversation of `/v1/messages` what its `context_management` says.

As Anthropic's API describes it (context editing, beta `context-management-2025-06-27`): thoughts of
all answers but the last ones; and of a long conversation what all calls but the last ones returned,
in whose place a line stands. What was done is told with the answer, and what it saved, in tokens.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ridgeline.serve.http.protocol.context_edits import (
    ClearThoughts,
    ClearToolUses,
    ContextManagement,
)
from ridgeline.serve.http.protocol.message_blocks import (
    AssistantTurn,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
    UserTurn,
)

Turns = list[Turn]
Count = Callable[[Turns], Awaitable[int]]
"""The tokens of the prompt with these turns."""
Told = list[dict[str, Any]]
DEFAULT_TRIGGER_TOKENS = 100_000
DEFAULT_KEPT_USES = 3
CLEARED = "[The result of this call was taken out to make room.]"


async def edited(turns: Turns, wanted: ContextManagement, count: Count) -> tuple[Turns, Told]:
    """The turns that the model is told of, and the edits that were made."""
    told: Told = []
    before: int | None = None  # counted where something could be taken out
    for edit in wanted.edits or []:
        if isinstance(edit, ClearThoughts):
            what, (new, number) = "cleared_thinking_turns", without_thoughts(turns, edit)
        else:
            what, (new, number) = "cleared_tool_uses", without_results(turns, edit)
        if not number:
            continue
        before = await count(turns) if before is None else before
        if isinstance(edit, ClearToolUses) and not _is_long(turns, edit, before):
            continue
        after = await count(new)
        if isinstance(edit, ClearToolUses) and before - after < _least(edit):
            continue
        told.append({"type": edit.type, what: number, "cleared_input_tokens": before - after})
        turns, before = new, after
    return turns, told


def without_thoughts(turns: Turns, edit: ClearThoughts) -> tuple[Turns, int]:
    """The turns without the thoughts of all answers but the last ones, and of how many."""
    if edit.keep == "all":
        return turns, 0
    thinking = [place for place, turn in enumerate(turns) if _blocks(turn, ThinkingBlock)]
    cleared = thinking[: -(1 if edit.keep is None else edit.keep.value)]
    new = list(turns)
    for place in cleared:
        said = [one for one in turns[place].content if not isinstance(one, ThinkingBlock)]
        new[place] = turns[place].model_copy(update={"content": said or ""})
    return new, len(cleared)


def without_results(turns: Turns, edit: ClearToolUses) -> tuple[Turns, int]:
    """The turns without what all calls but the last ones returned, and of how many."""
    excluded = set(edit.exclude_tools or [])
    uses = [one.id for one in _uses(turns) if one.name not in excluded]
    kept = DEFAULT_KEPT_USES if edit.keep is None else edit.keep.value
    cleared = set(uses[: max(0, len(uses) - kept)])
    results = [block for turn in turns for block in _blocks(turn, ToolResultBlock)]
    cleared &= {one.tool_use_id for one in results if one.content != CLEARED}

    def changed(block: Any) -> Any:
        if isinstance(block, ToolResultBlock) and block.tool_use_id in cleared:
            return block.model_copy(update={"content": CLEARED, "is_error": None})
        if edit.clear_tool_inputs and isinstance(block, ToolUseBlock) and block.id in cleared:
            return block.model_copy(update={"input": {}})
        return block

    new: Turns = []
    for turn in turns:
        if isinstance(turn.content, str):
            new.append(turn)
        else:
            new.append(turn.model_copy(update={"content": [*map(changed, turn.content)]}))
    return new, len(cleared)


def _is_long(turns: Turns, edit: ClearToolUses, num_tokens: int) -> bool:
    """Whether the conversation is beyond the length at which the edit is made."""
    if edit.trigger is None:
        return num_tokens > DEFAULT_TRIGGER_TOKENS
    found = len(_uses(turns)) if edit.trigger.type == "tool_uses" else num_tokens
    return found > edit.trigger.value


def _least(edit: ClearToolUses) -> int:
    return 0 if edit.clear_at_least is None else edit.clear_at_least.value


def _uses(turns: Turns) -> list[ToolUseBlock]:
    return [block for turn in turns for block in _blocks(turn, ToolUseBlock)]


def _blocks(turn: Turn, kind: type[Any]) -> list[Any]:
    if not isinstance(turn, AssistantTurn | UserTurn) or isinstance(turn.content, str):
        return []
    return [block for block in turn.content if isinstance(block, kind)]
