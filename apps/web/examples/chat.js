// Two turns of a conversation, streamed, and its transcript.
import { open } from "nestling";

export async function run(print, url) {
  const model = await open(url);
  await model.arrived;
  const chat = model.chat();
  for (const said of ["Tell me a story about a ship.", "And what did the captain say?"]) {
    for await (const part of chat.send(said, { maxTokens: 40, temperature: 0 })) print(part);
    print("\n");
  }
  print(JSON.stringify(await chat.transcript()) + "\n");
  model.close();
}
