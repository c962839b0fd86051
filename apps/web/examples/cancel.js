// An answer that is stopped while it is computed.
import { open } from "nestling";

export async function run(print, url) {
  const model = await open(url);
  await model.arrived;
  // Without end tokens, the output continues until the context is full.
  const answer = model.complete("The storm came up in the night, and", { temperature: 0, ignoreEnd: true });
  let asked = 0;
  setTimeout(() => {
    asked = performance.now();
    answer.cancel();
  }, 300);
  const { reason } = await answer.summary;
  const late = performance.now() - asked;
  if (reason !== "cancelled" || late >= 1000) throw new Error(`${reason}, ${late} ms after it was asked`);
  print("cancelled\n");
  model.close();
}
