// A session that continues in another program. `save` returns its bytes.
import { open } from "nestling";

const options = { maxTokens: 16, temperature: 0 };

export async function save(print, url) {
  const model = await open(url);
  await model.arrived;
  const session = model.session();
  print((await session.generate("The captain said", options).text()) + "\n");
  const bytes = await session.snapshot();
  model.close();
  return bytes;
}

export async function restore(print, url, bytes) {
  const model = await open(url);
  await model.arrived;
  const session = await model.restore(bytes);
  print((await session.generate([], options).text()) + "\n");
  model.close();
}
