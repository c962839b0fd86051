// A tool that must be called, and its result. The model's chat template must know tools.
import { open } from "nestling";

const weather = {
  name: "weather",
  parameters: {
    type: "object",
    required: ["city", "days"],
    additionalProperties: false,
    properties: { city: { type: "string", maxLength: 8 }, days: { type: "integer", minimum: 1, maximum: 9 } },
  },
};

export async function run(print, url) {
  const model = await open(url);
  await model.arrived;
  const chat = model.chat({ tools: [{ type: "function", function: weather }] });
  const results = [];
  const asked = chat.send("Will it rain in Bergen?", { maxTokens: 300, temperature: 0, toolChoice: "weather" });
  for await (const event of asked.events()) {
    if (event.type !== "toolCall") continue;
    print(`${event.name} ${event.arguments}\n`);
    results.push('{"rain": true}');
  }
  // The next turn is an answer without tools.
  print((await chat.replyToTools(results, { maxTokens: 16, temperature: 0, toolChoice: "none" }).text()) + "\n");
  model.close();
}
