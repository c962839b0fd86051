"""Two answers at once in one event loop: asynchronous.py MODEL."""

import asyncio
import sys

import nestling


async def write(model: nestling.Model, prompt: str) -> str:
    text = prompt
    async for piece in model.generate(prompt, temperature=0, max_tokens=32):
        text += piece
    return text


async def main() -> None:
    model = await nestling.open_async(sys.argv[1])
    prompts = ["The captain said", "In the forest there was"]
    print("\n".join(await asyncio.gather(*(write(model, prompt) for prompt in prompts))))


asyncio.run(main())
