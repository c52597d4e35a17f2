// Run by Node.js against the gateway at $BASE_URL: the openai package and the AI SDK.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { generateText, streamText } from "ai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";

const baseURL = process.env.BASE_URL;
const client = new OpenAI({ baseURL, apiKey: "any" });
const messages = [{ role: "user", content: "hello" }];

const whole = await client.chat.completions.create({ model: "m", messages, max_tokens: 5 });
assert.ok(whole.choices[0].message.content);
let text = "";
for await (const piece of await client.chat.completions.create({ model: "m", messages, max_tokens: 5, stream: true }))
  text += piece.choices[0]?.delta?.content ?? "";
assert.ok(text);
assert.equal((await client.embeddings.create({ model: "m", input: ["a", "b"] })).data.length, 2);
assert.ok((await client.responses.create({ model: "m", input: "hi", max_output_tokens: 16 })).output_text);

const broken = await client.chat.completions.create(
  { model: "m", messages, max_tokens: 50, stream: true },
  { headers: { "x-sim": '{"reset_after": 3}' } },
);
await assert.rejects(async () => {
  for await (const piece of broken) void piece;
}, (error) => error.code === "upstream_truncated");

const provider = createOpenAICompatible({ name: "tidegate", baseURL, apiKey: "any" });
assert.ok((await generateText({ model: provider("m"), prompt: "hello", maxOutputTokens: 5 })).text);
let streamed = "";
for await (const piece of streamText({ model: provider("m"), prompt: "hello", maxOutputTokens: 5 }).textStream)
  streamed += piece;
assert.ok(streamed);
console.log("ok node");
