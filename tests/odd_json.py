"""JSON made of the names and words that the formats know, wherever they do not belong."""

from hypothesis import strategies as st

KEYS = (
    *("type", "role", "content", "text", "name", "input", "source", "output", "tools", "budget_tokens", "effort"),
    *("format", "user_id", "data", "title", "image_url", "arguments", "input_schema", "encrypted_content", "mode"),
    *("uuid", "image_embeds"),
)
WORDS = (
    *("text", "image", "document", "tool_use", "tool_result", "search_result", "thinking", "enabled", "custom"),
    *("message", "function_call", "function_call_output", "reasoning", "additional_tools", "namespace", "function"),
    *("functions", "input_text", "input_image", "input_file", "assistant", "user", "system", "url", "base64"),
    *("web_search_call", "allowed_tools", "required", "auto", "bash_20250124", '{"session_id": "s"}'),
)
NESTED = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5000) | st.sampled_from(WORDS) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)
