// Half of the memory is taken from a streamed model while it writes.
import { open } from "nestling";

export async function run(print, url) {
  const model = await open(url, { memoryBudget: 64 << 20, contextLength: 256, streamed: true });
  await model.arrived;
  let half = 0;
  for await (const part of model.complete("The captain said", { maxTokens: 40, temperature: 0 })) {
    if (!half) {
      half = Math.floor((await model.status()).memoryBytes / 2);
      await model.setMemoryBudget(half);
    }
    print(part);
  }
  print("\n");
  const used = (await model.status()).memoryBytes;
  if (used > half) throw new Error(`${used} bytes in use, ${half} were allowed`);
  // A budget that is too small is rejected, and nothing changes.
  const kind = await model.setMemoryBudget(1).then(() => "none", (error) => error.kind);
  if (kind !== "memory") throw new Error(`1 byte: ${kind}`);
  model.close();
}
