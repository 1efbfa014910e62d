"""How a request of Anthropic's format is brought into a form that an engine takes: what `Messages.repair` is made of.

vLLM's `/v1/messages` refuses what its own schema has no place for. So each block goes through the repair of its type
(`_REPAIRS`): it stays, or it becomes one that the engine knows, or a line of text. `tools`, `thinking` and
`output_config` lose the parts that no engine runs.

Invariant: the fields of `forward` are set anew and never changed within, for the record keeps what was sent; what is
lost is named in `dropped`.
"""

from collections.abc import Callable

from serving.gateway.dialects.base import encode_text, left_out, word

SMALLEST_BUDGET = 1024
"""The fewest tokens to think that the format allows."""
_CLIENT_TOOLS = ("bash_", "text_editor_", "computer_", "memory_")
"""Anthropic's typed tools that the client runs, by how their types begin. The models that know them need no schema."""
_EFFORTS = frozenset({"low", "medium", "high", "xhigh", "max"})


def repaired_content(content: object, where: str, dropped: list[str]) -> object:
    """A content as an engine takes it; `where` is its place in the request, for the names in `dropped`."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return content
    return [_repaired_block(block, f"{where}[{place}]", dropped) for place, block in enumerate(content)]


def _repaired_block(block: dict, where: str, dropped: list[str]) -> dict:
    kind = block.get("type")
    repair = _REPAIRS.get(kind) if isinstance(kind, str) else None
    if repair is None:
        dropped.append(where)
        return left_out(kind)
    return repair(block, where, dropped)


def _as_is(block: dict, where: str, dropped: list[str]) -> dict:
    return block


def _text(block: dict, where: str, dropped: list[str]) -> dict:
    return block if isinstance(block.get("text"), str) else {"type": "text", "text": ""}


def _image(block: dict, where: str, dropped: list[str]) -> dict:
    source = block.get("source")
    if isinstance(source, dict) and source.get("type") in ("base64", "url"):
        return block
    dropped.append(where)
    return left_out("image")


def _document(block: dict, where: str, dropped: list[str]) -> dict:
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    text, content = source.get("data"), source.get("content")
    if source.get("type") == "content" and isinstance(content, list):
        text = "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    elif source.get("type") == "content" and isinstance(content, str):
        text = content
    elif source.get("type") != "text" or not isinstance(text, str):
        dropped.append(where)
        return left_out("document")
    title = block.get("title")
    return {"type": "text", "text": f"{title}\n{text}" if isinstance(title, str) else text}


def _search_result(block: dict, where: str, dropped: list[str]) -> dict:
    found = block.get("content")
    texts = [block.get("title"), block.get("source")]
    texts += [part.get("text") for part in found if isinstance(part, dict)] if isinstance(found, list) else []
    return {"type": "text", "text": "\n".join(text for text in texts if isinstance(text, str))}


def _tool_use(block: dict, where: str, dropped: list[str]) -> dict:
    """A model's arguments that were no object are echoed back for ever: the engine takes an empty one."""
    if isinstance(block.get("input"), dict):
        return block
    dropped.append(f"{where}.input")
    return {**block, "input": {}}


def _tool_result(block: dict, where: str, dropped: list[str]) -> dict:
    content = block.get("content")
    if not isinstance(content, list):
        return block if content is None or isinstance(content, str) else {**block, "content": encode_text(content)}
    parts = []
    for place, part in enumerate(content):
        at = f"{where}.content[{place}]"
        if not isinstance(part, dict):
            parts.append({"type": "text", "text": encode_text(part)})
        elif part.get("type") == "tool_result":  # no format has one within another
            dropped.append(at)
            parts.append(left_out("tool_result"))
        else:
            parts.append(_repaired_block(part, at, dropped))
    return {**block, "content": parts}


_REPAIRS: dict[str, Callable[[dict, str, list[str]], dict]] = {
    "text": _text,
    "image": _image,
    "document": _document,
    "search_result": _search_result,
    "tool_use": _tool_use,
    "tool_result": _tool_result,
    **dict.fromkeys(("tool_reference", "thinking", "redacted_thinking", "tool_addition", "tool_removal"), _as_is),
}
"""What becomes of each type of block; all others become a line of text."""


def repair_tools(forward: dict, dropped: list[str]) -> None:
    """Leaves out the tools that Anthropic's service runs, and a choice of one that is not there."""
    tools = forward.get("tools")
    if not isinstance(tools, list):
        return
    kept = []
    for place, tool in enumerate(tools):
        kind = tool.get("type") if isinstance(tool, dict) else "unknown"
        ours = kind in (None, "custom") or (isinstance(kind, str) and kind.startswith(_CLIENT_TOOLS))
        if not ours or not isinstance(tool.get("name"), str):
            dropped.append(f"tools[{place}]")
            continue
        schema = tool.get("input_schema")
        kept.append({**tool, "input_schema": schema if isinstance(schema, dict) else {"type": "object"}})
    forward["tools"] = kept
    choice = forward.get("tool_choice")
    named = choice.get("name") if isinstance(choice, dict) else None
    if not kept or (named is not None and named not in [tool.get("name") for tool in kept]):
        for name in ("tool_choice",) if kept else ("tool_choice", "tools"):
            if forward.pop(name, None):
                dropped.append(name)


def repair_thinking(forward: dict, dropped: list[str]) -> None:
    """Leaves out kinds of thinking, effort and output that an engine has not, and raises a budget that is too small."""
    thinking, output = forward.get("thinking"), forward.get("output_config")
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    if isinstance(thinking, dict) and thinking.get("type") not in ("enabled", "disabled", "adaptive"):
        dropped.append("thinking")
        del forward["thinking"]
    elif isinstance(budget, int) and budget < SMALLEST_BUDGET:
        forward["thinking"] = {**thinking, "budget_tokens": SMALLEST_BUDGET}  # type: ignore[dict-item]
    if isinstance(output, dict):
        shape = output.get("format")
        known = {
            "effort": word(output.get("effort")) in _EFFORTS,
            "format": not isinstance(shape, dict) or shape.get("type") == "json_schema",
        }
        forward["output_config"] = {name: value for name, value in output.items() if known.get(name)}
        dropped += [f"output_config.{name}" for name in output if not known.get(name)]
