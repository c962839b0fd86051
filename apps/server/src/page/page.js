"use strict";
const $ = id => document.getElementById(id);
const STORED = "nestling.conversations", SETTINGS = ["system", "temperature", "tokens", "seed"];
const PAINT_MS = 100;
const make = (tag, kind, text) => {
  const node = document.createElement(tag);
  if (kind) node.className = kind;
  if (text !== undefined) node.textContent = text;
  return node;
};
const button = (kind, text, click) => {
  const node = make("button", kind, text);
  node.type = "button";
  node.onclick = click;
  return node;
};
const load = (store, name, other) => { try { return JSON.parse(store.getItem(name)) ?? other; } catch { return other; } };
// If the browser's storage is full or forbidden, conversations last until the tab closes.
const store = (where, name, value) => { try { where.setItem(name, JSON.stringify(value)); } catch { /* see above */ } };

let all = load(localStorage, STORED, []).filter(one => one && Array.isArray(one.messages));
let open = all[0] ?? null;
let running = null;

// Requests

function headers() {
  const key = load(sessionStorage, "nestling.key", "");
  return key ? { "Authorization": "Bearer " + key } : {};
}

async function request(path, body, signal) {
  const options = { headers: headers(), signal };
  if (body) {
    options.method = "POST";
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const reply = await fetch(path, options);
  if (reply.status === 401) requireKey();
  if (reply.ok) { $("locked").hidden = true; return reply; }
  let message = reply.status + " " + reply.statusText;
  try { message = (await reply.json()).error.message; } catch { /* an error without a body */ }
  throw new Error(message);
}

function requireKey() {
  if (!$("locked").hidden) return;
  $("locked").hidden = false;
  if (matchMedia(DRAWERS.panel).matches) openDrawer("panel");
  $("key").focus();
}

// Calls `take` with each object of an event stream.
async function readEvents(reply, take) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", ended = false;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") { ended = true; continue; }
      const part = JSON.parse(data);
      if (part.error) throw new Error(part.error.message);
      take(part);
    }
  }
  if (!ended) throw new Error("the response ended early");
}

// Conversations

const save = () => store(localStorage, STORED, all);
const titleOf = text => text.slice(0, 60);

function openConversation(one) {
  open = one;
  closeDrawer();
  show();
}

function remove(one) {
  if (running && running.conversation === one) running.abort.abort();
  all = all.filter(other => other !== one);
  if (open === one) open = all[0] ?? null;
  save();
  show();
}

function listItem(one) {
  const item = make("li", one === open ? "open" : "");
  const name = button("name", one.name, () => openConversation(one));
  if (one === open) name.setAttribute("aria-current", "true");
  const gone = button("gone", "×", () => remove(one));
  gone.setAttribute("aria-label", "Delete “" + one.name + "”");
  item.append(name, gone);
  return item;
}

// Copying

// Copies through a selection where the clipboard is unavailable: over plain HTTP from another machine. Returns whether it did.
function copySelected(text) {
  const area = make("textarea"), focused = document.activeElement;
  area.value = text;
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return isCopied;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text);
  }
}

function copyButton(content) {
  const node = button("copy", "Copy", async () => {
    node.textContent = await copyText(content()) ? "Copied" : "Not copied";
    setTimeout(() => { node.textContent = "Copy"; }, 1500);
  });
  return node;
}

// Messages

function toolNode(call) {
  const tool = make("div", "tool", "Calls ");
  tool.append(make("code", "", call.function.name), make("pre", "", call.function.arguments));
  return tool;
}

function userView(message) {
  const node = make("div", "message user");
  node.append(make("div", "text", message.content));
  return { node, update() {} };
}

function endNodes(message) {
  const nodes = (message.tool_calls ?? []).map(toolNode);
  if (message.error) nodes.push(make("div", "error", message.error));
  return nodes;
}

// A view of a growing answer. Text is parsed as Markdown; reasoning is not.
function answerView(message) {
  const node = make("div", "message assistant"), folded = make("details"), reasoning = make("div", "reasoning");
  const text = make("div", "text markdown"), end = make("div"), showText = markdown.view(text);
  folded.append(make("summary", "", "Reasoning"), reasoning);
  node.append(text, end);
  const update = isWhole => {
    if (message.reasoning_content && !folded.parentNode) node.prepend(folded);
    reasoning.textContent = message.reasoning_content ?? "";
    showText(message.content ?? "", isWhole);
    end.replaceChildren(...endNodes(message));
  };
  update(true);
  return { node, update };
}

const views = new WeakMap();

// Returns the view of a message, which is made once.
function viewOf(message) {
  if (!views.has(message)) views.set(message, message.role === "user" ? userView(message) : answerView(message));
  return views.get(message);
}

const count = (number, noun) => number + " " + noun + (number === 1 ? "" : "s");
const duration = ms => ms < 1000 ? Math.round(ms) + " ms" : (ms / 1000).toFixed(1) + " s";

function figures(message) {
  const t = message.timings, parts = [];
  if (t) {
    parts.push(count(t.predicted_n, "token"), t.predicted_per_second.toFixed(1) + " tokens/s");
    parts.push("first token after " + duration(t.time_to_first_token_ms));
    if (t.cache_n) parts.push(count(t.cache_n, "prompt token") + " cached");
  }
  if (message.cut) parts.push("stopped at the length limit");
  return parts.join(" · ");
}

function actions(message, at) {
  const row = make("div", "after");
  if (message.content) row.append(copyButton(() => message.content));
  if (message.role === "user") {
    const edit = button("edit", "Edit", () => editMessage(at));
    edit.disabled = running !== null;
    row.prepend(edit);
    return row;
  }
  if (at === open.messages.length - 1) {
    const again = button("again", "Regenerate", () => { open.messages.pop(); answer(open); });
    again.disabled = running !== null;
    row.append(again);
  }
  row.append(make("span", "", figures(message)));
  return row;
}

// Replaces a message by a form. Sending it drops all later messages.
function editMessage(at) {
  const form = make("form", "edit"), input = make("textarea"), buttons = make("div"), submit = make("button", "main", "Send");
  const cancel = () => showInPlace(() => {});
  input.value = open.messages[at].content;
  input.setAttribute("aria-label", "Edit message");
  buttons.append(button("cancel", "Cancel", cancel), submit);
  form.append(input, buttons);
  form.onsubmit = event => { event.preventDefault(); resend(at, input.value.trim()); };
  input.onkeydown = event => {
    if (event.key === "Escape") cancel();
    submitOnEnter(event, form);
  };
  $("talk").children[at].replaceWith(form);
  input.focus();
}

function resend(at, text) {
  if (!text || running) return;
  open.messages.length = at;
  open.messages.push({ role: "user", content: text });
  if (at === 0) open.name = titleOf(text);
  save();
  answer(open);
}

function submitOnEnter(event, form) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
}

function show() {
  const talk = $("talk"), messages = open ? open.messages : [];
  $("conversations").replaceChildren(...all.map(listItem));
  const nodes = messages.map(message => viewOf(message).node);
  talk.replaceChildren(...nodes);
  if (!messages.length) talk.append(make("p", "empty", "Write a message to start."));
  const isRunning = running !== null && running.conversation === open;
  messages.forEach((message, at) => {
    nodes[at].querySelector(".after")?.remove();
    if (!isRunning || at < messages.length - 1) nodes[at].append(actions(message, at));
  });
  talk.setAttribute("aria-busy", String(isRunning));
  talk.scrollTop = talk.scrollHeight;
  $("send").hidden = running !== null;
  $("stop").hidden = running === null;
}

const isAtEnd = talk => talk.scrollHeight - talk.scrollTop - talk.clientHeight < 40;

// Changes and shows the conversation without moving a reader who is not at its end.
function showInPlace(change) {
  const talk = $("talk"), top = talk.scrollTop, wasAtEnd = isAtEnd(talk);
  change();
  show();
  if (!wasAtEnd) talk.scrollTop = top;
}

// Answers

function chatRequest(conversation) {
  const messages = conversation.messages.map(({ role, content, tool_calls }) => tool_calls ? { role, content, tool_calls } : { role, content });
  const system = $("system").value.trim();
  if (system) messages.unshift({ role: "system", content: system });
  const body = { model: $("model").textContent, messages, stream: true };
  const number = (id, name) => { if ($(id).value !== "") body[name] = Number($(id).value); };
  number("temperature", "temperature");
  number("tokens", "max_completion_tokens");
  number("seed", "seed");
  return body;
}

function addPart(message, part) {
  const choice = part.choices?.[0];
  if (part.timings) message.timings = part.timings;
  if (!choice) return;
  const delta = choice.delta ?? {};
  if (delta.content) message.content += delta.content;
  if (delta.reasoning_content) message.reasoning_content = (message.reasoning_content ?? "") + delta.reasoning_content;
  for (const call of delta.tool_calls ?? []) {
    message.tool_calls ??= [];
    const known = message.tool_calls[call.index] ??= { id: call.id, type: "function", function: { name: call.function.name, arguments: "" } };
    known.function.arguments += call.function.arguments ?? "";
  }
  if (choice.finish_reason === "length") message.cut = true;
}

// Paints a growing answer, and follows its end if the reader is there.
function paint(message) {
  const talk = $("talk"), wasAtEnd = isAtEnd(talk);
  if (running?.message !== message || running.conversation !== open) return;
  viewOf(message).update(false);
  if (wasAtEnd) talk.scrollTop = talk.scrollHeight;
}

// Returns a function that schedules a paint: at most one in PAINT_MS, and painting takes at most a tenth of the time.
function painter(message) {
  let isDue = false, pause = 0;
  return () => {
    if (isDue) return;
    isDue = true;
    setTimeout(() => requestAnimationFrame(() => {
      const start = performance.now();
      isDue = false;
      paint(message);
      pause = Math.max(PAINT_MS, 9 * (performance.now() - start));
    }), pause);
  };
}

async function answer(conversation) {
  const body = chatRequest(conversation), message = { role: "assistant", content: "" }, schedule = painter(message);
  conversation.messages.push(message);
  running = { conversation, message, abort: new AbortController() };
  show();
  try {
    const reply = await request("v1/chat/completions", body, running.abort.signal);
    await readEvents(reply, part => { addPart(message, part); schedule(); });
  } catch (error) {
    if (error.name !== "AbortError") message.error = error.message;
  }
  running = null;
  save();
  showInPlace(() => viewOf(message).update(true));
  pollStatus();
}

function send() {
  const text = $("input").value.trim();
  if (!text || running) return;
  if (!open) {
    open = { name: titleOf(text), messages: [] };
    all.unshift(open);
  }
  open.messages.push({ role: "user", content: text });
  $("input").value = "";
  save();
  answer(open);
}

// Drawers

const DRAWERS = { list: "(max-width: 40rem)", panel: "(max-width: 62rem)" };
const PARTS = [$("list"), document.querySelector("header"), $("talk"), $("form"), $("panel")];

function openDrawer(name) {
  closeDrawer();
  document.body.dataset.drawer = name;
  $(name + "-open").setAttribute("aria-expanded", "true");
  $("shade").hidden = false;
  for (const part of PARTS) part.inert = part !== $(name);
  $(name).querySelector(".close").focus();
}

function closeDrawer() {
  const name = document.body.dataset.drawer;
  if (!name) return;
  delete document.body.dataset.drawer;
  $("shade").hidden = true;
  for (const part of PARTS) part.inert = false;
  $(name + "-open").setAttribute("aria-expanded", "false");
  $(name + "-open").focus();
}

function setUpDrawers() {
  for (const [name, query] of Object.entries(DRAWERS)) {
    $(name + "-open").onclick = () => openDrawer(name);
    $(name).querySelector(".close").onclick = closeDrawer;
    matchMedia(query).onchange = closeDrawer;
  }
  $("shade").onclick = closeDrawer;
  document.addEventListener("keydown", event => { if (event.key === "Escape") closeDrawer(); });
}

// Figures

const size = bytes => {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  while (bytes >= 1000 && at < units.length - 1) { bytes /= 1000; at += 1; }
  return bytes.toFixed(at > 0 && bytes < 100 ? 1 : 0) + " " + units[at];
};

let before = null;
let isSliding = false;

function showNoModel() {
  before = null;
  $("facts").textContent = "loads on the first request";
  for (const id of ["level", "bits", "hits", "read", "speed"]) $(id).textContent = "–";
}

// Shows the counters of the steps since the previous poll.
function showSteps(now) {
  const since = name => now[name] - before[name];
  const rows = since("rows"), uses = since("uses"), wanted = since("wanted_bytes");
  if (uses > 0) $("bits").textContent = (since("served_bits") / uses).toFixed(2);
  $("hits").textContent = wanted > 0 ? (100 * (1 - since("missing_bytes") / wanted)).toFixed(1) + " %" : "all in memory";
  $("read").textContent = size(since("read_bytes") / rows);
  $("speed").textContent = (1000 * rows / (now.at - before.at)).toFixed(1);
}

// Shows the status of the server's model; of several models, that of the chosen one, if it is loaded.
function showStatus(reply) {
  const status = reply.models ? reply.models.find(one => one.model === $("model").textContent)?.value : reply;
  if (!status) { showNoModel(); return; }
  $("level").textContent = status.level_max_bits === null ? "–" : status.level_max_bits + " bits";
  $("facts").textContent = status.device;
  const now = { ...status.experts, rows: status.rows, at: performance.now() };
  if (before && now.rows > before.rows) showSteps(now);
  before = now;
  const memory = status.memory;
  $("memory").hidden = memory.budget_max_bytes === null;
  if (memory.budget_max_bytes !== null && !isSliding) showBudget(memory);
}

let budgetMax = 1;

function showBudget(memory) {
  budgetMax = memory.budget_max_bytes;
  $("budget").value = Math.round(100 * memory.budget_bytes / budgetMax);
  $("budget-text").textContent = size(memory.budget_bytes);
  $("memory-note").textContent = size(memory.used_bytes) + " in use";
}

async function pollStatus() {
  try {
    showStatus(await (await request("status")).json());
  } catch { /* the next poll may succeed */ }
}

async function setBudget() {
  isSliding = false;
  const bytes = Math.round(budgetMax * Number($("budget").value) / 100);
  try {
    showBudget(await (await request("memory", { budget_bytes: bytes })).json());
  } catch (error) {
    $("memory-note").textContent = error.message;
  }
}

// Models

function chooseModel(name) {
  $("models").value = name;
  $("model").textContent = name;
  document.title = name + " · Nestling";
  before = null;
}

async function loadModels() {
  try {
    const models = (await (await request("v1/models")).json()).data;
    if (!models.length) throw new Error("the server has no model");
    $("models").replaceChildren(...models.map(model => make("option", "", model.id)));
    const several = models.length > 1;
    $("models").hidden = !several;
    $("model").hidden = several;
    chooseModel(load(localStorage, "nestling.model", models[0].id));
    if (!$("models").value) chooseModel(models[0].id);
    await pollStatus();
  } catch (error) {
    $("facts").textContent = error.message;
    setTimeout(loadModels, 2000);
  }
}

function setUpForms() {
  for (const id of SETTINGS) {
    $(id).value = load(localStorage, "nestling." + id, "");
    $(id).onchange = () => store(localStorage, "nestling." + id, $(id).value);
  }
  $("form").onsubmit = event => { event.preventDefault(); send(); };
  $("input").onkeydown = event => submitOnEnter(event, $("form"));
  $("models").onchange = () => { chooseModel($("models").value); store(localStorage, "nestling.model", $("models").value); pollStatus(); };
  $("new").onclick = () => { openConversation(null); $("input").focus(); };
  $("stop").onclick = () => running?.abort.abort();
  $("key").onchange = () => { store(sessionStorage, "nestling.key", $("key").value.trim()); closeDrawer(); loadModels(); };
  $("budget").oninput = () => { isSliding = true; $("budget-text").textContent = size(budgetMax * Number($("budget").value) / 100); };
  $("budget").onchange = setBudget;
}

setUpForms();
setUpDrawers();
setInterval(() => { if (running) pollStatus(); }, 500);
show();
loadModels();
