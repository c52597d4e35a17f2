// Run by Node.js against the gateway at $BASE_URL: files and batches with the openai package (a chunked upload).
import assert from "node:assert/strict";
import OpenAI, { toFile } from "openai";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "any" });
const line = (n) => JSON.stringify({
  custom_id: `line-${n}`, method: "POST", url: "/v1/responses", body: { model: "m", input: "hello", max_output_tokens: 16 },
});
const text = [0, 1, 2, 3].map(line).join("\n");
const upload = await client.files.create({ file: await toFile(Buffer.from(text), "in.jsonl"), purpose: "batch" });
let batch = await client.batches.create({
  input_file_id: upload.id, endpoint: "/v1/responses", completion_window: "24h",
});
const deadline = Date.now() + 60_000;
while (batch.status !== "completed") {
  assert.ok(Date.now() < deadline && !["failed", "expired", "cancelled"].includes(batch.status), JSON.stringify(batch));
  await new Promise((resolve) => setTimeout(resolve, 100));
  batch = await client.batches.retrieve(batch.id);
}
assert.equal(batch.request_counts.completed, 4);
const answers = (await (await client.files.content(batch.output_file_id)).text()).trim().split("\n").map(JSON.parse);
assert.ok(answers.every((answer) => answer.response.body.output.length));
assert.equal((await client.files.delete(upload.id)).deleted, true);
console.log("ok node batch");
