"""An agent of OpenHands with its built-in tools: `openhands_agent.py BASE_URL MODEL PROMPT`, the key in EVERLOOP_KEY.

Prints its last words. Runs in OpenHands' own Python, not in this project's.
"""

import os
import sys

from openhands.sdk import LLM, Agent, Conversation
from openhands.sdk.conversation.response_utils import get_agent_final_response
from pydantic import SecretStr

base_url, model, prompt = sys.argv[1:]
llm = LLM(model=f"openai/{model}", base_url=base_url, api_key=SecretStr(os.environ["EVERLOOP_KEY"]), usage_id="agent")
conversation = Conversation(agent=Agent(llm=llm), workspace=os.getcwd(), visualizer=None)
conversation.send_message(prompt)
conversation.run()
print(get_agent_final_response(conversation.state.events))
