import { open } from "./nestling/index.js";

const part = (id) => document.getElementById(id);
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
const say = (text) => (part("state").textContent = text);

function show(status) {
  part("arrival").value = status.wantedBytes ? status.storedBytes / status.wantedBytes : 0;
  part("level").textContent = status.level ? `${status.level} bits` : "–";
  part("fetched").textContent = `${megabytes(status.fetchedBytes)} of ${megabytes(status.wantedBytes)}`;
  part("stored").textContent = `${megabytes(status.storedBytes)}${status.cache === "device" ? "" : " (in memory)"}`;
}

function addMessage(role, text) {
  const item = document.createElement("li");
  item.className = role;
  const name = document.createElement("strong");
  name.textContent = role === "user" ? "You" : "Storyteller";
  const body = document.createElement("p");
  body.textContent = text;
  item.append(name, body);
  part("messages").append(item);
  return body;
}

async function send(chat, text) {
  addMessage("user", text);
  const body = addMessage("assistant", "");
  const answer = chat.send(text, { maxTokens: 200 });
  part("stop").onclick = () => answer.cancel();
  part("send").disabled = true;
  part("stop").disabled = false;
  say("Answering…");
  try {
    for await (const more of answer) {
      body.textContent += more;
      body.scrollIntoView({ block: "end" });
    }
    const summary = await answer.summary;
    part("served").textContent = `${summary.level} bits`;
    part("speed").textContent = `${summary.tokensPerSecond.toFixed(0)} tokens/s`;
    say(summary.reason === "cancelled" ? "Stopped." : "Ready.");
  } catch (error) {
    say(`The answer failed: ${error.message}`);
  }
  part("send").disabled = false;
  part("stop").disabled = true;
}

try {
  const address = new URLSearchParams(location.search).get("model") ?? "nestling-storyteller.nest";
  const model = await open(address, { onProgress: show });
  const chat = model.chat();
  part("form").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = part("text").value;
    part("text").value = "";
    send(chat, text);
  });
  part("text").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || part("send").disabled) return;
    event.preventDefault();
    part("form").requestSubmit();
  });
  part("send").disabled = false;
  say("Ready.");
  model.arrived.catch((error) => say(`Further levels did not arrive: ${error.message}`));
} catch (error) {
  say(`The model cannot be opened: ${error.message}`);
}
