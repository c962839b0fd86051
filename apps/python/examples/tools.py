"""A function that the model is made to call: tools.py MODEL, one whose chat template knows tools."""

import sys
from typing import Literal

import nestling


def weather(city: Literal["Bergen", "Lisbon"], days: Literal[1, 2, 3]) -> str:
    """Tells the weather.

    Args:
        city: Where.
        days: For how many days from now.
    """
    return f"{city}: rain for {days} days"


model = nestling.open(sys.argv[1])
chat = model.chat(tools=[weather])
answer = chat.send("Shall I take a coat?", tool_choice="weather", temperature=0, max_tokens=200)
results: list[str] = []
for event in answer.events():
    match event:
        case nestling.ToolCallStart(name=name):
            print(f"calls {name}")
        case nestling.ToolCall(name=name, arguments=arguments):
            print(arguments)
            results.append(chat.call(name, arguments))
        case _:
            pass
print("\n".join(results))
print(chat.reply_to_tools(results, tool_choice="none", max_tokens=8).result().reason)
