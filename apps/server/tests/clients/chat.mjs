// What the openai package of JavaScript makes of a streamed chat with a tool call.
//
//     node chat.mjs URL
//
// It finds `openai` in the folder that NODE_PATH names.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const OpenAI = createRequire(import.meta.url)("openai");

const api = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0, timeout: 60_000 });
const parameters = {
  type: "object",
  properties: { name: { type: "string", maxLength: 12 }, age: { type: "integer", minimum: 1, maximum: 99 } },
  required: ["name", "age"],
  additionalProperties: false,
};
const asked = {
  model: "tools",
  messages: [{ role: "user", content: "Who are you?" }],
  tools: [{ type: "function", function: { name: "person", parameters, strict: true } }],
  tool_choice: { type: "function", function: { name: "person" } },
  max_tokens: 400,
  temperature: 0,
};

const whole = await api.chat.completions.create(asked);
const [call] = whole.choices[0].message.tool_calls;
assert.deepEqual(Object.keys(JSON.parse(call.function.arguments)).sort(), ["age", "name"]);

// The package puts the pieces together, and checks their order.
const stream = api.chat.completions.stream(asked);
let pieces = 0;
stream.on("tool_calls.function.arguments.delta", () => (pieces += 1));
const message = (await stream.finalChatCompletion()).choices[0];
assert.equal(message.finish_reason, "tool_calls");
assert.equal(message.message.tool_calls[0].function.name, "person");
assert.equal(message.message.tool_calls[0].function.arguments, call.function.arguments);
assert.ok(pieces > 2, `arguments come in pieces: ${pieces}`);

const words = await api.chat.completions.create({ ...asked, tools: undefined, tool_choice: undefined, max_tokens: 8 });
let text = "";
for await (const chunk of await api.chat.completions.create({
  ...asked,
  tools: undefined,
  tool_choice: undefined,
  max_tokens: 8,
  stream: true,
})) {
  text += chunk.choices[0]?.delta?.content ?? "";
}
assert.equal(text, words.choices[0].message.content);

await assert.rejects(api.chat.completions.create({ ...asked, temperature: 9 }), { status: 400, param: "temperature" });
console.log("ok javascript chat");
