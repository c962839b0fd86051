"""Asks a server of the bundled model with the package openai: its models, a chat, and the same chat streamed.

    python ask_server.py PORT
"""

import sys
import time

import openai

client = openai.OpenAI(base_url=f"http://127.0.0.1:{sys.argv[1]}/v1", api_key="none", max_retries=0)
deadline = time.monotonic() + 60
while True:
    try:
        (model,) = client.models.list().data
        break
    except openai.APIConnectionError:
        if time.monotonic() > deadline:
            raise
        time.sleep(0.2)
chat = {
    "model": model.id,
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "max_tokens": 8,
    "temperature": 0,
}
whole = client.chat.completions.create(**chat)
assert whole.usage.completion_tokens == 8, whole
text = whole.choices[0].message.content
pieces = [part.choices[0].delta.content or "" for part in client.chat.completions.create(**chat, stream=True) if part.choices]
assert text and text == "".join(pieces), (text, pieces)
