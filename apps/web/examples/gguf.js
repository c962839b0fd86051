// A GGUF file in place, and the tokens that it generates.
import { open } from "nestling";

export async function run(print, url) {
  const model = await open(url);
  const options = { maxTokens: 8, temperature: 0, tokenEvents: true, ignoreEnd: true };
  for await (const event of model.session().generate([3, 1, 4, 1, 5], options).events()) {
    if (event.type === "token") print(`${event.token}\n`);
  }
  model.close();
}
