"""What the turns of agents cost: `python tests/bench_agents.py [options]`. Not a test.

Asks a running `potluck serve` as coding agents do: a long system prompt with tools, then turns in which the model
calls a tool and gets its result, each request with all that came before. Several agents take turns, and a chat
goes on beside them. Printed are, for some turns, the tokens of the prompt, how many of them were found in the
cache, and the time to the first token.

A model whose tokens are bytes is enough to measure this (`tests/support/byte_model.py`, with a larger
`max_position_embeddings`):

    potluck serve --model FOLDER --context 60000 --port 8000
"""

import argparse
import time
from typing import Any

from openai import OpenAI

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "read_line",
        "description": "Reads a line of a file.",
        "parameters": {
            "type": "object",
            "properties": {"line": {"type": "integer", "maximum": 9999}},
            "required": ["line"],
            "additionalProperties": False,
        },
    },
}


class Agent:
    """One conversation that grows by a call and its result each turn."""

    def __init__(self, client: OpenAI, model: str, name: str, prefix: int) -> None:
        self._client, self._model = client, model
        rules = f"You are agent {name}. " + "Read the file line by line. " * (prefix // 28)
        self._messages: list[Any] = [
            {"role": "system", "content": rules},
            {"role": "user", "content": "What is in the file?"},
        ]

    def turn(self, number: int) -> tuple[int, int, float]:
        """Have the model call the tool, and add the result.

        Returns:
            Tokens of the prompt, those of them that were in the cache, and seconds to the first token.
        """
        began, first = time.perf_counter(), None
        with self._client.chat.completions.stream(
            model=self._model,
            messages=self._messages,
            tools=[TOOL],
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=0,
            max_tokens=600,
            stream_options={"include_usage": True},
        ) as stream:
            for event in stream:
                if first is None and event.type == "chunk":
                    first = time.perf_counter() - began
            final = stream.get_final_completion()
        message, usage = final.choices[0].message, final.usage
        assert message.tool_calls, "the model did not call the tool"
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        call = message.tool_calls[0]
        self._messages += [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {
                            "name": call.function.name,
                            "arguments": call.function.arguments,
                        },
                    }
                ],
            },
            {"role": "tool", "tool_call_id": call.id, "content": f"{number}: x = {number} * y"},
        ]
        cached = usage.prompt_tokens_details.cached_tokens or 0
        return usage.prompt_tokens, cached, first or 0.0


def main() -> None:
    """Let agents take turns, and print what some of these cost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="potluck")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--agents", type=int, default=1)
    parser.add_argument(
        "--prefix", type=int, default=20_000, help="characters of the system prompt"
    )
    options = parser.parse_args()
    client = OpenAI(base_url=options.url, api_key="none", timeout=600, max_retries=0)
    agents = [
        Agent(client, options.model, str(number), options.prefix)
        for number in range(options.agents)
    ]
    chat: list[Any] = []
    print("turn  agent  prompt  cached  computed  first token")
    for turn in range(1, options.turns + 1):
        for number, agent in enumerate(agents):
            prompt, cached, seconds = agent.turn(turn)
            if turn <= 3 or turn % 20 == 0:
                print(
                    f"{turn:>4}  {number:>5}  {prompt:>6}  {cached:>6}  {prompt - cached:>8}  {seconds:.3f} s"
                )
        if options.agents > 1:
            chat.append({"role": "user", "content": f"And {turn}?"})
            answer = client.chat.completions.create(
                model=options.model, messages=chat, max_tokens=8, temperature=0
            )
            chat.append({"role": "assistant", "content": answer.choices[0].message.content or ""})


if __name__ == "__main__":
    main()
