// Run by Node.js against the gateway at $BASE_URL: the AI SDK's batch, which goes through /v1/responses.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { experimental_getBatchResults, experimental_getBatchStatus, experimental_startBatch } from "ai";

const provider = createOpenAI({ baseURL: process.env.BASE_URL, apiKey: "any" });
const requests = [0, 1, 2].map((n) => ({ id: `r${n}`, type: "text", model: "m", prompt: `number ${n}` }));
const batch = await experimental_startBatch({ provider, requests });
const deadline = Date.now() + 60_000;
let status;
do {
  assert.ok(Date.now() < deadline, JSON.stringify(status));
  await new Promise((resolve) => setTimeout(resolve, 100));
  status = await experimental_getBatchStatus({ provider, batch });
} while (!["completed", "failed", "expired", "cancelled"].includes(status.status));
assert.equal(status.status, "completed");
const seen = new Set();
for await (const result of experimental_getBatchResults({ provider, batch })) {
  assert.equal(result.status, "succeeded", JSON.stringify(result));
  assert.ok(result.text);
  seen.add(result.id);
}
assert.equal(seen.size, requests.length);
console.log("ok AI SDK batch");
