// Conversations: kept in this browser, answered by /v1/chat/completions piece by piece. What was said can be said again in other
// words, and answered again: every turn has its alternatives, and what is shown is one way through them.

const at = (id) => document.getElementById(id);
const STORE = "kvant.conversations";
const SETTINGS = ["system", "temperature", "top_p", "max_tokens", "seed", "thinking"];

/** [{id, children, chosen}], the newest first; a turn is {role, content, reasoning, note, children, chosen}. */
let conversations = read(STORE, []).map(grown);
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
    fail("the browser's storage is full: remove a conversation, or this one is lost when you close the page");
  }
}

/** Conversations of earlier versions were lists of turns. */
function grown(one) {
  if (!one.turns) return one;
  const tree = { id: one.id, children: [], chosen: 0 };
  let last = tree;
  for (const said of one.turns) last = add(last, said);
  return tree;
}

function fresh() {
  return { id: Date.now().toString(36) + Math.random().toString(36).slice(2, 6), children: [], chosen: 0 };
}

/** Adds an alternative below a turn, and chooses it. */
function add(parent, said) {
  const node = { ...said, children: [], chosen: 0 };
  parent.children.push(node);
  parent.chosen = parent.children.length - 1;
  return node;
}

/** The turns that are shown, each with the one before it. */
function path(tree) {
  const turns = [];
  for (let node = tree; node.children.length; ) {
    const next = node.children[node.chosen];
    turns.push([next, node]);
    node = next;
  }
  return turns;
}

function keep() {
  conversations = [current, ...conversations.filter((one) => one.id !== current.id)].filter((one) => one.children.length);
  write(STORE, conversations);
  list();
}

function list() {
  const items = conversations.map((one) => {
    const name = one.children[one.chosen].content.slice(0, 60);
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
  at("log").replaceChildren(...path(current).map(([one, parent]) => turn(one, parent)));
  at("log").scrollTop = at("log").scrollHeight;
  fail("");
}

function turn(one, parent) {
  const said = element("div", { className: `turn ${one.role}` });
  const who = element("span", { className: "unseen", textContent: one.role === "user" ? "You: " : "Answer: " });
  said.append(who, element("div", { className: "said" }));
  say(said, one);
  if (one.reasoning) reasoning(said, one.reasoning);
  if (one.note) said.append(element("small", { textContent: one.note }));
  if (parent) said.append(tools(one, parent));
  return said;
}

/** Answers are Markdown; what a person wrote is shown as it is. */
function say(said, one) {
  const place = said.querySelector(".said");
  if (one.role === "user") place.textContent = one.content;
  else place.replaceChildren(...markdown(one.content));
}

/** What can be done with a turn. */
function tools(one, parent) {
  const button = (words, act) => element("button", { type: "button", textContent: words, onclick: act });
  const copy = button("Copy", () => copied(copy, one.content));
  const made = element("div", { className: "tools" }, copy);
  if (one.role === "user") made.append(button("Edit", () => edit(one, parent)));
  else made.append(button("Regenerate", () => running || respond(parent)));
  if (parent.children.length > 1) {
    const step = (by) => () => {
      stop();
      parent.chosen = (parent.chosen + by + parent.children.length) % parent.children.length;
      keep();
      show();
    };
    const [before, after] = [button("‹", step(-1)), button("›", step(1))];
    before.setAttribute("aria-label", "Previous version");
    after.setAttribute("aria-label", "Next version");
    made.append(before, element("span", { textContent: `${parent.chosen + 1} of ${parent.children.length}` }), after);
  }
  return made;
}

/** Lets a person say it in other words: the old ones stay as an alternative. */
function edit(one, parent) {
  if (running) return;
  const index = path(current).findIndex(([turn]) => turn === one);
  const place = at("log").children[index];
  const words = element("textarea", { value: one.content, rows: 4 });
  words.setAttribute("aria-label", "Edit your message");
  const send = element("button", { type: "submit", textContent: "Send" });
  const leave = element("button", { type: "button", textContent: "Cancel", onclick: show });
  const form = element("form", { className: "edit" }, words, element("div", { className: "tools" }, send, leave));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (words.value.trim()) respond(add(parent, { role: "user", content: words.value.trim() }));
  });
  place.replaceChildren(form);
  words.focus();
}

/** Shows what led to an answer, folded up before it. */
function reasoning(said, text) {
  let folded = said.querySelector("details");
  if (!folded) {
    folded = element("details", {}, element("summary", { textContent: "Thinking" }), element("div", {}));
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
  const chosen = { model: at("model").value || undefined };
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) {
    const value = at(name).value;
    if (value !== "") chosen[name] = Number(value);
  }
  if (at("thinking").value) chosen.enable_thinking = at("thinking").value === "on";
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
      if (!part.startsWith(":")) yield JSON.parse(data);
    }
  }
}

async function reason(response) {
  const body = await response.json().catch(() => null);
  return body?.error?.message || `the server answered ${response.status}`;
}

/** Has the last turn answered, which `asked` is: once more, if it was answered before. */
async function respond(asked) {
  const talk = current;
  const answer = add(asked, { role: "assistant", content: "" });
  const before = path(talk).slice(0, -1);
  const messages = before.map(([{ role, content }]) => ({ role, content }));
  const system = at("system").value.trim();
  if (system) messages.unshift({ role: "system", content: system });
  show();
  keep();
  const place = at("log").lastElementChild;
  running = new AbortController();
  busy(true);
  const start = performance.now();
  let usage = null;
  let finish = null;
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
      finish = event.choices[0]?.finish_reason || finish;
      const delta = event.choices[0]?.delta;
      if (delta?.reasoning_content) {
        answer.reasoning = (answer.reasoning || "") + delta.reasoning_content;
        reasoning(place, answer.reasoning);
      }
      if (!delta?.content) continue;
      answer.content += delta.content;
      glance();
      say(place, answer);
      const log = at("log");
      if (log.scrollHeight - log.scrollTop - log.clientHeight < 80) log.scrollTop = log.scrollHeight;
    }
    answer.note = note(usage, performance.now() - start, finish);
  } catch (error) {
    if (error.name === "AbortError") answer.note = "stopped";
    else failed(talk, asked, error);
  }
  running = null;
  busy(false);
  keep();
  if (talk === current && !at("error").textContent) show();
  at("text").focus();
}

/** Takes back what was not answered, so that it can be sent again. */
function failed(talk, asked, error) {
  asked.children.pop();
  asked.chosen = Math.max(0, asked.children.length - 1);
  if (!asked.children.length) {
    const parent = path(talk).find(([turn]) => turn === asked)[1];
    parent.children.splice(parent.chosen, 1);
    parent.chosen = Math.max(0, parent.children.length - 1);
    at("text").value = asked.content;
  }
  running = null;
  show();
  fail(error.message);
}

function note(usage, time, finish) {
  if (!usage) return "";
  const cached = usage.prompt_tokens_details?.cached_tokens || 0;
  const cut = finish === "length" ? "cut off at the maximum tokens or the end of the context; " : "";
  return `${cut}${usage.completion_tokens} tokens in ${(time / 1000).toFixed(1)} s; prompt ${usage.prompt_tokens}, ${cached} of them from the cache`;
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = at("text").value.trim();
  if (!text || running) return;
  at("text").value = "";
  const turns = path(current);
  const last = turns.length ? turns[turns.length - 1][0] : current;
  respond(add(last, { role: "user", content: text }));
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
