"""What the stand-in engine says to each harness in a task of two runs.

The first run calls two tools at once, and two subagents at once where the harness has them. The second goes on with
it; on the way the engine says that the context is full (OpenHands counts for itself), the harness has the conversation
summarized, and the task ends after that. By the last of these words that a user said the engine knows what comes next.
"""

from tests.interop.harnesses import FULL

TASK, LEFT, RIGHT, AGAIN, AFTER = "task-everloop", "left-everloop", "right-everloop", "again-everloop", "after-everloop"
"""Words of the first prompt, of both subagents', of the second run's, and of the summary (in Pi, of a third prompt)."""
FIRST, DONE = "The first part is done.", "All is done now, thank you."
WRITE, READ = "echo one > made.txt", "cat made.txt"


def call(tool: str, namespace: str | None = None, **arguments: object) -> dict:
    """A step that calls a tool."""
    return {"tool": tool, "namespace": namespace, "arguments": arguments}


def both(*calls: dict) -> dict:
    """A step that calls several tools at once."""
    return {"calls": calls}


def says(text: str) -> dict:
    """A step in words, as models write them: after some reasoning that no parser set apart, and with space around."""
    return {"text": f"<think>What is to be said now?</think>\n\n{text} \n"}


def full(step: dict, tokens: int = FULL) -> dict:
    """A step whose usage fills the context."""
    return step | {"prompt_tokens": tokens}


KEPT = says("Is not said: the answer before the summary is kept after it, and counts.")


def bash(command: str) -> dict:
    """Claude Code's shell."""
    return call("Bash", command=command, description="run")


def agent(prompt: str) -> dict:
    """A subagent of Claude Code."""
    return call("Agent", prompt=prompt, description="read", subagent_type="general-purpose")


def wait(first_or_last: str) -> dict:
    """Codex waits for a subagent, whose id is in the answer to the call that began it."""
    agent_id = f"<<{first_or_last}agent_id[^0-9a-f]*([0-9a-f-]{{36}})>>"
    return call("wait_agent", "multi_agent_v1", targets=[agent_id], timeout_ms=120_000)


def codex_agent(prompt: str) -> dict:
    """A subagent of Codex."""
    return call("spawn_agent", "multi_agent_v1", message=prompt)


SUMMARY = {
    "claude-code": ["REMINDER: Do NOT call any tools"],
    "codex": ["seamlessly continue the work"],
    "pi": ["Keep each section concise", "understand the kept suffix"],
    "hermes": ["NEVER preserve API keys"],
    "openhands": ["Now summarize the events"],
}
"""The words with which each asks for a summary."""
SCRIPTS: dict[str, dict[str, list[dict]]] = {
    "claude-code": {
        TASK: [both(bash(WRITE), bash("pwd")), both(agent(LEFT), agent(RIGHT)), says(FIRST)],
        LEFT: [bash(READ), says("Left.")],
        RIGHT: [bash("ls"), says("Right.")],
        AGAIN: [full(bash(READ), 190_000)],
        AFTER: [KEPT, bash("ls"), says(DONE)],
    },
    "codex": {
        TASK: [
            both(call("exec_command", cmd=WRITE), call("exec_command", cmd="pwd")),
            both(codex_agent(LEFT), codex_agent(RIGHT)),
            wait("^.*?"),
            wait(""),
            says(FIRST),
        ],
        LEFT: [call("exec_command", cmd=READ), says("Left.")],
        RIGHT: [call("exec_command", cmd="ls"), says("Right.")],
        AGAIN: [full(call("exec_command", cmd=READ))],
        AFTER: [call("exec_command", cmd="ls"), says(DONE)],
    },
    "pi": {
        TASK: [
            both(call("bash", command=WRITE), call("bash", command="pwd")),
            call("read", path="made.txt"),
            says(FIRST),
        ],
        AGAIN: [call("bash", command=READ), full(says("The second part is done."))],
        AFTER: [call("bash", command="ls"), says(DONE)],
    },
    "hermes": {
        TASK: [
            both(call("terminal", command=WRITE), call("terminal", command="pwd")),
            call("delegate_task", tasks=[{"goal": LEFT}, {"goal": RIGHT}]),
            says(FIRST),
        ],
        LEFT: [call("terminal", command=READ), says("Left.")],
        RIGHT: [call("terminal", command="ls"), says("Right.")],
        AGAIN: [full(call("terminal", command=READ)), call("terminal", command="ls"), says(DONE)],
    },
    "openhands": {
        TASK: [both(call("think", thought="One."), call("think", thought="Two.")), call("finish", message=FIRST)],
        AGAIN: [call("think", thought="Three.")],
        AFTER: [KEPT, call("think", thought="Four."), call("finish", message=DONE)],
    },
}
"""By harness, and by the word after which the steps come."""
for _other in ("pi-responses", "pi-messages"):
    SUMMARY[_other], SCRIPTS[_other] = SUMMARY["pi"], SCRIPTS["pi"]
for _harness, _words in SUMMARY.items():
    SCRIPTS[_harness] |= {word: [says(f"In short: {AFTER}.")] for word in _words}
