// The AI SDK with both of its ways to an OpenAI-like server.

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, streamText, tool } from "ai";

const base = process.argv[2];

function expect(holds, words) {
  if (!holds) throw new Error(words);
}

const providers = {
  "openai (responses)": createOpenAI({ baseURL: `${base}/v1`, apiKey: "none" })("gpt-anything"),
  "openai (chat)": createOpenAI({ baseURL: `${base}/v1`, apiKey: "none" }).chat("gpt-anything"),
  compatible: createOpenAICompatible({ name: "kvant", baseURL: `${base}/v1` })("model"),
};
const weather = tool({
  description: "Forecasts it.",
  inputSchema: jsonSchema({ type: "object", properties: { city: { enum: ["Oslo", "Rome"] } }, required: ["city"], additionalProperties: false }),
});

for (const [name, model] of Object.entries(providers)) {
  const options = { model, maxOutputTokens: 12, maxRetries: 0 };
  const whole = await generateText({ ...options, prompt: "hello" });
  expect(whole.text.length > 0 && whole.usage.outputTokens > 0, `${name}: a text is generated`);
  let text = "";
  for await (const piece of streamText({ ...options, prompt: "hello" }).textStream) text += piece;
  expect(text.length > 0, `${name}: a text is streamed`);
  const calls = await generateText({ ...options, maxOutputTokens: 200, prompt: "rain?", tools: { weather }, toolChoice: "required" });
  expect(["Oslo", "Rome"].includes(calls.toolCalls[0]?.input?.city), `${name}: a tool is called`);
}
console.log(`${Object.keys(providers).length} providers work`);
