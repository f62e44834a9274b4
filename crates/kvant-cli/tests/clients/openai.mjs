// The openai package of JavaScript, as people use it. In node it runs as it is; in a browser it is bundled first, and what
// `check` returns is looked at there. `configure` says how the package is told to connect.

import OpenAI from "openai";

const ENDLESS = { logit_bias: { 2: -100 } };

function expect(holds, words) {
  if (!holds) throw new Error(words);
}

/** Chats, whole and in pieces, responses, vectors and errors; the number of things that were right. */
export async function check(base, more = {}) {
  const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "none", maxRetries: 0, ...more });
  const messages = [{ role: "user", content: "hello" }];
  const ask = { model: "gpt-4o", messages, max_tokens: 12, seed: 7, ...ENDLESS };
  const whole = await client.chat.completions.create(ask);
  expect(whole.choices[0].message.content && whole.usage.completion_tokens === 12, "a chat is answered");
  const stream = await client.chat.completions.create({ ...ask, stream: true });
  let text = "";
  for await (const piece of stream) text += piece.choices[0]?.delta?.content ?? "";
  expect(text === whole.choices[0].message.content, `a stream says what the whole says, not ${text}`);
  const response = await client.responses.create({ model: "gpt-4o", input: "hello", max_output_tokens: 8, temperature: 0 });
  expect(response.output_text.length > 0, "a response is given");
  let streamed = "";
  const events = await client.responses.create({ model: "x", input: "hello", max_output_tokens: 8, temperature: 0, stream: true });
  for await (const event of events) if (event.type === "response.output_text.delta") streamed += event.delta;
  expect(streamed === response.output_text, "events say what the whole says");
  const vectors = await client.embeddings.create({ model: "x", input: ["red", "green"] });
  expect(vectors.data.length === 2 && vectors.data[0].embedding.length > 8, "texts become vectors");
  const models = await client.models.list();
  expect(models.data[0].id === "model", "the model is listed");
  let refused = null;
  try {
    await client.chat.completions.create({ ...ask, temperature: 9 });
  } catch (error) {
    refused = error;
  }
  expect(refused?.status === 400 && refused.param === "temperature", `errors are known, not ${refused}`);
  return 7;
}

if (typeof process !== "undefined" && process.argv?.[2]) {
  console.log(`${await check(process.argv[2])} checks passed`);
}
