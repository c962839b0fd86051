// Two sessions at once write the same text as each one alone.
import { open } from "nestling";

export async function run(print, url) {
  const model = await open(url);
  await model.arrived;
  const story = (prompt) => model.complete(prompt, { maxTokens: 32, temperature: 0 }).text();
  const prompts = ["The captain said", "In the morning the wind"];
  const alone = [await story(prompts[0]), await story(prompts[1])];
  const together = await Promise.all(prompts.map(story));
  prompts.forEach((prompt, index) => print(`${prompt}${together[index]}\n`));
  if (String(alone) !== String(together)) throw new Error(`alone they wrote ${alone}`);
  model.close();
}
