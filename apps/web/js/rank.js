// A further worker of a model. It holds a share of the weights, and computes when the first worker does.

import { openFile } from "./files.js";
import init, { follow } from "./module.js";
import { Rings } from "./rings.js";

let model;
let data;

async function prepare({ module, url, options }) {
  await init({ module_or_path: module });
  data = await openFile(url, "blocks");
  model = { url, options: JSON.stringify(options) };
}

/** Computes until the first worker closes the model. No message is read meanwhile. */
function hold({ memory, rank, ranks, bytes }) {
  const rings = new Rings(memory, rank, ranks);
  try {
    follow(data, model.url, bytes, model.options, rings, rank, ranks);
  } catch {
    // The first worker has the error, or notices the end.
  } finally {
    rings.end();
  }
}

onmessage = ({ data: { port } }) => {
  port.onmessage = async ({ data: message }) => {
    switch (message.type) {
      case "prepare":
        return prepare(message).then(
          () => port.postMessage({ isReady: true }),
          () => port.postMessage({ isReady: false }),
        );
      case "follow": return hold(message);
      case "close":
        data?.close();
        return close();
    }
  };
};
