// The worker of a model. It computes one step a turn, so that messages of the page are read in between.

import { openFile } from "./files.js";
import init, { NestlingTab } from "./module.js";
import { assemble, dismissAll } from "./team.js";

const RETRIES_MAX = 5;
const RETRY_PAUSE_MS = 250;
/** Time without an answer after which further levels are fetched. */
const IDLE_MS = 250;

let tab;
let cache = "memory";
/** Answers that wait for their turn; the first one is running. */
const queue = [];

/** Runs the other tasks of this worker once. Unlike a timer, it does not wait. */
const channel = new MessageChannel();
const turn = () => new Promise((resolve) => {
  channel.port1.onmessage = resolve;
  channel.port2.postMessage(null);
});
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** Returns the fields of an error: those of the module are JSON, any other one is a fault of the package. */
function described(error) {
  if (typeof error === "string") return JSON.parse(error);
  return { kind: "internal", message: String(error), mayRetry: false };
}

/** Calls `action`, again after a pause if a request failed that may succeed later. */
async function retried(action) {
  for (let attempt = 0; ; attempt++) {
    try {
      return action();
    } catch (error) {
      if (attempt === RETRIES_MAX || !described(error).mayRetry) throw error;
      await pause(RETRY_PAUSE_MS * 2 ** attempt);
    }
  }
}

/** Opens the two files of a model, or none if the browser has no storage or another tab uses them. */
async function files(url) {
  const opened = [];
  try {
    // A second tab does not get the map, and then opens no blocks.
    opened.push(await openFile(url, "map"));
    opened.push(await openFile(url, "blocks"));
    return opened.reverse();
  } catch {
    opened.forEach((file) => file.close());
    return [];
  }
}

const status = () => ({ ...JSON.parse(tab.status()), cache });

async function open({ url, options, useCache, ports }) {
  await init();
  const [data, map] = useCache ? await files(url) : [];
  if (map) cache = "device";
  tab = await retried(() => new NestlingTab(url, JSON.stringify(options), data, map));
  if (map) {
    const team = await assemble(ports, { module: init.__wbindgen_wasm_module, url, options });
    if (team) tab.divide(team);
  } else {
    dismissAll(ports);
  }
  postMessage({ type: "status", status: status() });
}

/** Fetches the store. Once a level is there, answers come first, and fetching waits until the model is idle. */
async function fetchAll() {
  let level = 0;
  for (let isComplete = false; !isComplete;) {
    while (level && queue.length) {
      await answerAll();
      await pause(IDLE_MS);
    }
    isComplete = await retried(() => tab.fetchMore());
    const state = status();
    postMessage({ type: "status", status: state });
    if (!level && state.level) {
      postMessage({ type: "ready" });
      await pause(IDLE_MS);
    } else {
      await turn();
    }
    level = state.level;
  }
}

async function answerAll() {
  while (queue.length) {
    await answer(queue[0]);
    queue.shift();
  }
}

async function answer({ id, chat, text, options, isCancelled }) {
  const post = (type, value) => postMessage({ type, id, value });
  try {
    if (isCancelled) throw JSON.stringify({ kind: "cancelled", message: "the answer was cancelled" });
    const json = JSON.stringify(options);
    if (chat === undefined) tab.complete(text, json);
    else tab.send(chat, text, json);
    for (;;) {
      const step = JSON.parse(tab.step());
      if (step.text !== undefined) post("text", step.text);
      if (step.finished) return post("finished", step.finished);
      await turn();
    }
  } catch (error) {
    post("failed", described(error));
  }
}

/** Chats of the page, by its own numbers. */
const chats = new Map();
let isFetching = true;

function ask(message) {
  if (message.chat !== undefined && !chats.has(message.chat)) {
    chats.set(message.chat, tab.newChat(message.system));
  }
  queue.push({ ...message, chat: chats.get(message.chat) });
  if (!isFetching && queue.length === 1) answerAll();
}

function cancel(id) {
  const waiting = queue.find((answer) => answer.id === id);
  if (!waiting) return;
  waiting.isCancelled = true;
  if (waiting === queue[0]) tab.cancel();
}

function closeChat(chat) {
  if (chats.has(chat)) tab.closeChat(chats.get(chat));
  chats.delete(chat);
}

onmessage = async ({ data: message }) => {
  switch (message.type) {
    case "open":
      try {
        await open(message);
        await fetchAll();
        postMessage({ type: "arrived" });
      } catch (error) {
        postMessage({ type: "broken", value: described(error) });
      }
      isFetching = false;
      if (tab) answerAll();
      break;
    case "ask": return ask(message);
    case "cancel": return cancel(message.id);
    case "closeChat": return closeChat(message.chat);
    case "status": return postMessage({ type: "status", id: message.id, status: status() });
  }
};
