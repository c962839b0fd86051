// Further workers of a model, on the side of the page and of the first worker. Their own side is in rank.js.

import { Rings, sharedMemory } from "./rings.js";

/** Time within which all further workers must be ready. */
const START_MS = 5_000;

/** Returns whether workers of this page can share memory and files. */
export const canShare = () => globalThis.crossOriginIsolated === true;

/** Starts further workers. Returns them, with a port to each for the first worker. */
export function startWorkers(count) {
  const workers = [];
  const ports = [];
  for (let started = 0; started < count; started++) {
    const worker = new Worker(new URL("./rank.js", import.meta.url), { type: "module" });
    const { port1, port2 } = new MessageChannel();
    worker.postMessage({ port: port2 }, [port2]);
    workers.push(worker);
    ports.push(port1);
  }
  return { workers, ports };
}

/** Workers that wait for a share of a model. */
class Team {
  #ports;

  constructor(ports) {
    this.#ports = ports;
  }

  count() {
    return this.#ports.length + 1;
  }

  /** Makes each worker hold a share of the first `bytes` bytes of the store. Returns the rings of rank 0. */
  start(bytes) {
    const ranks = this.count();
    const memory = sharedMemory(ranks);
    this.#ports.forEach((port, index) => {
      port.postMessage({ type: "follow", memory, rank: index + 1, ranks, bytes });
    });
    return new Rings(memory, 0, ranks);
  }

  /** Ends all workers, once they have left their model. */
  dismiss() {
    dismiss(this.#ports);
  }
}

function dismiss(ports) {
  for (const port of ports) {
    port.postMessage({ type: "close" });
    port.close();
  }
}

/** Prepares the workers behind `ports` for a model. Returns a team; none if one of them fails. */
export async function assemble(ports, { module, url, options }) {
  if (!ports.length) return undefined;
  const ready = ports.map((port) => new Promise((resolve) => {
    port.onmessage = ({ data }) => resolve(data.isReady);
    port.postMessage({ type: "prepare", module, url, options });
  }));
  const late = new Promise((resolve) => setTimeout(resolve, START_MS, [false]));
  const replies = await Promise.race([Promise.all(ready), late]);
  if (replies.every((isReady) => isReady)) return new Team(ports);
  dismiss(ports);
  return undefined;
}

/** Ends workers that are not used. */
export const dismissAll = dismiss;
