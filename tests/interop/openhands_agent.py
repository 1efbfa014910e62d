"""An agent of OpenHands with its built-in tools: `openhands_agent.py BASE_URL MODEL PROMPT`, the key in EVERLOOP_KEY.

Goes on with its working folder's conversation where it has one, condenses one of more than ten events, and prints its
last words. Runs in OpenHands' own Python, not in this project's.
"""

import os
import sys
import uuid

from openhands.sdk import LLM, Agent, Conversation
from openhands.sdk.context.condenser import LLMSummarizingCondenser
from openhands.sdk.conversation.response_utils import get_agent_final_response
from pydantic import SecretStr

base_url, model, prompt = sys.argv[1:]
key = SecretStr(os.environ["EVERLOOP_KEY"])
llm = LLM(model=f"openai/{model}", base_url=base_url, api_key=key, usage_id="agent", retry_min_wait=1, retry_max_wait=1)
condenser = LLMSummarizingCondenser(llm=llm.model_copy(update={"usage_id": "condenser"}), max_size=10, keep_first=2)
work = os.getcwd()
conversation = Conversation(
    agent=Agent(llm=llm, condenser=condenser),
    workspace=work,
    persistence_dir=os.path.join(os.environ["HOME"], "conversations"),
    conversation_id=uuid.uuid5(uuid.NAMESPACE_URL, work),
    visualizer=None,
)
conversation.send_message(prompt)
conversation.run()
print(get_agent_final_response(conversation.state.events))
