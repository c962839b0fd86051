// A program against the types of the package. It is compiled and never run.

import { open, NestlingError, type Status, type Summary } from "nestling";

export async function story(page: HTMLElement, stop: AbortSignal): Promise<Summary | undefined> {
  const onProgress = (status: Status) => (page.title = `${status.level} bits, ${status.fetchedBytes} bytes`);
  const model = await open("story.nest", { memoryBudget: 512e6, level: 4, threads: 2, onProgress, signal: stop });
  const chat = model.chat({ system: "You tell short stories." });
  try {
    const answer = chat.send("Tell me a story about a ship.", { maxTokens: 200, temperature: 0.7, signal: stop });
    for await (const part of answer) page.textContent += part;
    return await answer.summary;
  } catch (error) {
    if (error instanceof NestlingError && error.kind === "cancelled") return undefined;
    throw error;
  } finally {
    chat.close();
    model.close();
  }
}

export async function called(): Promise<string[]> {
  const model = await open("story.gguf");
  const chat = model.chat({ tools: [{ type: "function", function: { name: "weather" } }] });
  const names: string[] = [];
  for await (const event of chat.send("Will it rain?", { toolChoice: "required" }).events()) {
    if (event.type === "toolCall") names.push(event.name);
  }
  await chat.replyToTools(["yes"]).text();
  const session = await model.restore(await model.session().snapshot());
  await session.generate([1, 2], { regex: "a+" }).text();
  return names;
}

// @ts-expect-error: 5 is no level.
open("story.nest", { level: 5 });
// @ts-expect-error: a misspelled option.
open("story.nest", { memorybudget: 1 });
