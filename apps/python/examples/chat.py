"""Two turns of a conversation, streamed: chat.py MODEL."""

import json
import sys

import nestling

model = nestling.open(sys.argv[1])
chat = model.chat()
for message in ["Tell me a story about a ship.", "And what did the captain say?"]:
    for piece in chat.send(message, temperature=0, max_tokens=40):
        print(piece, end="", flush=True)
    print()
print(json.dumps(chat.transcript))
