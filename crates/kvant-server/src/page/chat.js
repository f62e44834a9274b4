"use strict";
// Conversations: kept in this browser, answered by /v1/chat/completions piece by piece.

const at = (id) => document.getElementById(id);
const STORE = "kvant.conversations";
const SETTINGS = ["system", "temperature", "top_p", "max_tokens", "seed"];

/** [{id, turns: [{role, content, note}]}], the newest first. */
let conversations = read(STORE, []);
let current = conversations[0] || fresh();
let running = null;

function read(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) || otherwise;
  } catch {
    return otherwise;
  }
}

function write(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch {
    fail("this browser keeps nothing more: remove a conversation, or what you say now is lost with the page");
  }
}

function fresh() {
  return { id: Date.now().toString(36) + Math.random().toString(36).slice(2, 6), turns: [] };
}

function keep() {
  conversations = [current, ...conversations.filter((one) => one.id !== current.id)].filter((one) => one.turns.length);
  write(STORE, conversations);
  list();
}

function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function list() {
  const items = conversations.map((one) => {
    const name = one.turns[0].content.slice(0, 60);
    const open = element("button", { type: "button", textContent: name, onclick: () => choose(one) });
    open.setAttribute("aria-current", String(one.id === current.id));
    const remove = element("button", { type: "button", textContent: "✕", onclick: () => forget(one) });
    remove.setAttribute("aria-label", `Remove “${name}”`);
    return element("li", {}, open, remove);
  });
  at("conversations").replaceChildren(...items);
}

function choose(one) {
  stop();
  current = one;
  show();
  list();
  at("text").focus();
}

function forget(one) {
  if (one.id === current.id) stop();
  conversations = conversations.filter((other) => other.id !== one.id);
  if (one.id === current.id) current = conversations[0] || fresh();
  write(STORE, conversations);
  show();
  list();
}

function show() {
  at("log").replaceChildren(...current.turns.map(turn));
  at("log").scrollTop = at("log").scrollHeight;
  fail("");
}

function turn(one) {
  const said = element("div", { className: `turn ${one.role}` });
  const who = element("span", { className: "unseen", textContent: one.role === "user" ? "You: " : "Answer: " });
  said.append(who, element("span", { className: "said", textContent: one.content }));
  if (one.reasoning) reasoning(said, one.reasoning);
  if (one.note) said.append(element("small", { textContent: one.note }));
  return said;
}

/** Shows what led to an answer, folded up before it. */
function reasoning(said, text) {
  let folded = said.querySelector("details");
  if (!folded) {
    folded = element("details", {}, element("summary", { textContent: "Reasoning" }), element("span", {}));
    said.querySelector(".said").before(folded);
  }
  folded.lastElementChild.textContent = text;
}

function fail(message) {
  at("error").textContent = message;
  at("error").hidden = !message;
}

function busy(is) {
  at("send").hidden = is;
  at("stop").hidden = !is;
}

function stop() {
  if (running) running.abort();
}

/** What a request carries besides its messages. */
function settings() {
  const chosen = {};
  for (const name of SETTINGS.slice(1)) {
    const value = at(name).value;
    if (value !== "") chosen[name] = Number(value);
  }
  return chosen;
}

function headers() {
  const key = at("key").value;
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

/** The events of a stream, one by one. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

async function reason(response) {
  const body = await response.json().catch(() => null);
  return body?.error?.message || `the server said ${response.status}`;
}

async function ask(text) {
  const talk = current;
  talk.turns.push({ role: "user", content: text });
  const system = at("system").value.trim();
  const messages = talk.turns.map(({ role, content }) => ({ role, content }));
  if (system) messages.unshift({ role: "system", content: system });
  const answer = { role: "assistant", content: "" };
  talk.turns.push(answer);
  show();
  keep();
  const place = at("log").lastElementChild;
  running = new AbortController();
  busy(true);
  const start = performance.now();
  let usage = null;
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: headers(),
      signal: running.signal,
      body: JSON.stringify({ messages, stream: true, stream_options: { include_usage: true }, ...settings() }),
    });
    if (!response.ok) throw new Error(await reason(response));
    for await (const event of events(response.body)) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage || usage;
      const delta = event.choices[0]?.delta;
      if (delta?.reasoning_content) {
        answer.reasoning = (answer.reasoning || "") + delta.reasoning_content;
        reasoning(place, answer.reasoning);
      }
      const piece = delta?.content;
      if (!piece) continue;
      answer.content += piece;
      glance();
      place.querySelector(".said").textContent = answer.content;
      const log = at("log");
      if (log.scrollHeight - log.scrollTop - log.clientHeight < 80) log.scrollTop = log.scrollHeight;
    }
    answer.note = note(usage, performance.now() - start);
  } catch (error) {
    if (error.name === "AbortError") answer.note = "stopped";
    else {
      // What was not answered can be sent again.
      talk.turns.splice(-2, 2);
      at("text").value = text;
      running = null;
      busy(false);
      keep();
      show();
      fail(error.message);
      return;
    }
  }
  running = null;
  busy(false);
  keep();
  if (talk === current) show();
  at("text").focus();
}

function note(usage, time) {
  if (!usage) return "";
  const cached = usage.prompt_tokens_details?.cached_tokens || 0;
  const seconds = time / 1000;
  return `${usage.completion_tokens} tokens in ${seconds.toFixed(1)} s; prompt ${usage.prompt_tokens}, of which ${cached} were in the cache`;
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = at("text").value.trim();
  if (!text || running) return;
  at("text").value = "";
  ask(text);
});
at("chosen").addEventListener("submit", (event) => event.preventDefault());
at("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("ask").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});
at("stop").addEventListener("click", stop);
at("new").addEventListener("click", () => choose(fresh()));
for (const name of SETTINGS) {
  at(name).value = read("kvant.settings", {})[name] || "";
  at(name).addEventListener("change", () => {
    write("kvant.settings", Object.fromEntries(SETTINGS.map((one) => [one, at(one).value])));
  });
}
show();
list();
