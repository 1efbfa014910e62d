"""What the stand-in engine says to each harness: a tool call, a subagent where it has one, and an end in words.

A harness is told `task`, and its subagent, by the model, `branch`; by these words the engine knows whose turn it is.
"""

TASK, BRANCH = "task-everloop", "branch-everloop"
DONE = "All is done now, thank you."
WRITE, READ = "echo one > made.txt", "cat made.txt"
END = {"text": DONE}


def call(tool: str, namespace: str | None = None, **arguments: object) -> dict:
    """A step that calls a tool."""
    return {"tool": tool, "namespace": namespace, "arguments": arguments}


SCRIPTS: dict[str, dict[str, list[dict]]] = {
    "claude-code": {
        TASK: [
            call("Bash", command=WRITE, description="write"),
            call("Agent", description="read", prompt=BRANCH, subagent_type="general-purpose"),
            END,
        ],
        BRANCH: [call("Bash", command=READ, description="read"), END],
    },
    "codex": {
        TASK: [
            call("exec_command", cmd=WRITE),
            call("spawn_agent", "multi_agent_v1", message=BRANCH),
            call("wait_agent", "multi_agent_v1", targets=["<<agent_id[^0-9a-f]*([0-9a-f-]{36})>>"], timeout_ms=120_000),
            END,
        ],
        BRANCH: [call("exec_command", cmd=READ), END],
    },
    "pi": {TASK: [call("bash", command=WRITE), call("read", path="made.txt"), END]},
    "hermes": {
        TASK: [call("terminal", command=WRITE), call("delegate_task", goal=BRANCH), END],
        BRANCH: [call("terminal", command=READ), END],
    },
    "openhands": {TASK: [call("think", thought="One thing at a time."), call("finish", message=DONE)]},
}
"""By harness, and by the word that opens a conversation."""
