// The cache as a picture: what /v1/kv says, twice a second while somebody looks.

const MOST_BLOCKS = 400;
// On a phone the talk comes first: the panel is folded until somebody opens it.
if (matchMedia("(max-width: 60rem)").matches) at("cache").open = false;

/** [time, tokens made by the server since it began]. */
let history = [];
/** What was last seen of sequences, shown paler when they are gone. */
let past = [];

function bytes(count) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (count >= size) return `${(count / size).toFixed(1)} ${unit}`;
  }
  return `${count} B`;
}

function figures(pairs) {
  at("figures").replaceChildren(
    ...pairs.flatMap(([name, value]) => [element("dt", { textContent: name }), element("dd", { textContent: value })]),
  );
}

/** A block for the sinks, one for every page, one for the tail; several pages to a block where there are very many. */
function pages(one, sinks, page) {
  const made = [];
  const block = (kind, title) => made.push(element("i", { className: kind, title }));
  const held = one.held_tokens;
  if (held > 0) block("exact", `sinks: the first ${Math.min(sinks, held)} tokens`);
  const full = Math.max(0, Math.floor((held - sinks) / page));
  const step = Math.max(1, Math.ceil(full / MOST_BLOCKS));
  for (let first = 0; first < full; first += step) {
    const end = sinks + (first + step) * page;
    const isShared = end <= one.cached_tokens;
    block(isShared ? "shared" : "page", `tokens ${sinks + first * page} to ${Math.min(end, held)}${isShared ? ", reused" : ""}`);
  }
  if (held > sinks + full * page) block("exact", `tail: the last ${held - sinks - full * page} tokens`);
  return made;
}

/** What is stored, as the command line counts it. Below a few pages nothing is gained yet, and it is said why. */
function stored(one, view) {
  const held = `${one.held_tokens} tokens in ${bytes(one.stored_bytes)}`;
  if (!one.is_compressed) {
    return `${held}: recent tokens are exact, and pages are compressed once they are full (${view.page_tokens} tokens)`;
  }
  const bits = one.bits_per_value ? `; ${one.bits_per_value.toFixed(2)} bits per value` : "";
  return `${held}; f16 would take ${bytes(one.f16_bytes)}${bits}`;
}

function sequence(one, view, isPast) {
  const words = stored(one, view);
  const picture = element("div", { className: "pages" }, ...pages(one, view.sinks, view.page_tokens));
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", words);
  return element("div", { className: `sequence${isPast ? " past" : ""}` }, picture, element("span", { textContent: words }));
}

function draw(view) {
  const { arena, prefixes } = view;
  const cap = arena.cap_bytes ? ` of ${bytes(arena.cap_bytes)}` : "";
  figures([
    ["in use", `${bytes(arena.used_bytes)}${cap}`],
    ["pages", String(arena.pages)],
    ["active requests", String(view.sequences.length)],
    ["waiting", String(view.waiting)],
    ["prefix cache", `${prefixes.tokens} tokens`],
    ...view.costs.map((cost) => [`${cost.tokens.toLocaleString("en")} tokens would take`, `${bytes(cost.bytes)}, not ${bytes(cost.f16_bytes)}`]),
  ]);
  if (view.sequences.length) past = view.sequences;
  const shown = view.sequences.length ? view.sequences : past;
  at("sequences").replaceChildren(...shown.map((one) => sequence(one, view, !view.sequences.length)));
  const now = performance.now() / 1000;
  history = [...history.filter(([time]) => now - time < 60), [now, view.generated_tokens]];
  speed(now);
}

function speed(now) {
  const rates = history.slice(1).map(([time, count], index) => {
    const [before, had] = history[index];
    return [time, (count - had) / (time - before)];
  });
  const top = Math.max(0, ...rates.map(([, rate]) => rate));
  const scale = Math.max(1, top);
  const points = rates.map(([time, rate]) => `${(240 - (now - time) * 4).toFixed(1)},${(58 - (54 * rate) / scale).toFixed(1)}`);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", points.join(" "));
  at("speed").replaceChildren(line);
  const last = rates.length ? rates[rates.length - 1][1] : 0;
  at("pace").textContent = top > 0 ? `${last.toFixed(1)} now, peak ${top.toFixed(1)} in the last minute` : "no tokens in the last minute";
}

let looked = 0;

async function look() {
  looked = performance.now();
  try {
    const response = await fetch("/v1/kv", { headers: headers() });
    if (!response.ok) throw new Error(await reason(response));
    draw(await response.json());
  } catch (error) {
    figures([["cannot read the cache", error.message]]);
  }
}

/** Looks again unless that was done just now: short answers are over before the next turn. */
function glance() {
  if (!document.hidden && performance.now() - looked > 200) look();
}

async function introduce() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    if (!response.ok) throw new Error(await reason(response));
    const { data } = await response.json();
    const before = at("model").value;
    const words = (model) => (model.max_model_len ? `${model.id}, up to ${model.max_model_len} tokens` : `${model.id}, not loaded`);
    at("model").replaceChildren(...data.map((model) => element("option", { value: model.id, textContent: words(model) })));
    if (data.some((model) => model.id === before)) at("model").value = before;
  } catch (error) {
    at("model").replaceChildren(element("option", { value: "", textContent: error.message }));
  }
}

at("key").addEventListener("change", introduce);
introduce();
look();
setInterval(() => document.hidden || look(), 500);
