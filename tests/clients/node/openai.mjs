// The official npm client.

import assert from "node:assert/strict";

import OpenAI from "openai";

import { CASES, FACTS, expectError, expectFree, expectValid, expectVectors, runChecks } from "./checks.mjs";

const model = FACTS.chat_model;
const client = new OpenAI({ baseURL: FACTS.url, apiKey: "not-needed", maxRetries: 0 });
const held = new OpenAI({ baseURL: FACTS.held_url, apiKey: FACTS.key, maxRetries: 0 });
const tools = [{ type: "function", function: { ...CASES.tool, strict: true } }];
const response_format = {
  type: "json_schema",
  json_schema: { name: "town", schema: CASES.schema, strict: true },
};
const long = [{ role: "user", content: "word ".repeat(CASES.too_many_words) }];

const create = (fields, options) => client.chat.completions.create({ model, ...fields }, options);

async function text(stream) {
  let whole = "";
  for await (const chunk of stream) whole += chunk.choices[0]?.delta.content ?? "";
  return whole;
}

function expectCall(call) {
  assert.equal(call.function.name, CASES.tool.name);
  assert.ok(call.id);
  expectValid(JSON.parse(call.function.arguments), CASES.tool.parameters);
}

await runChecks({
  async chat() {
    const answer = await create(CASES.chat);
    assert.equal(answer.choices[0].message.content, FACTS.chat_text);
    assert.equal(answer.choices[0].finish_reason, FACTS.chat_finish);
    assert.equal(answer.usage.total_tokens, FACTS.chat_tokens);
    assert.ok(answer._request_id);
  },
  async models() {
    const ids = [];
    for await (const listed of client.models.list()) ids.push(listed.id);
    assert.ok(ids.includes(model));
    assert.equal((await client.models.retrieve(model)).id, model);
  },
  async stream() {
    const answer = await create(CASES.seeded);
    const streamed = await create({ ...CASES.seeded, stream: true });
    assert.equal(await text(streamed), answer.choices[0].message.content);
  },
  async tools() {
    const tool_choice = { type: "function", function: { name: CASES.tool.name } };
    const asked = { ...CASES.tool_call, tools, tool_choice };
    const [call] = (await create(asked)).choices[0].message.tool_calls;
    expectCall(call);
    const whole = await client.chat.completions.stream({ model, ...asked }).finalChatCompletion();
    const [again] = whole.choices[0].message.tool_calls;
    expectCall(again);
    assert.equal(again.function.arguments, call.function.arguments);
  },
  async json() {
    const asked = { ...CASES.json_answer, response_format };
    expectValid(JSON.parse((await create(asked)).choices[0].message.content), CASES.schema);
    expectValid(JSON.parse(await text(await create({ ...asked, stream: true }))), CASES.schema);
  },
  async embeddings() {
    for (const fields of [{}, { encoding_format: "float" }]) {
      const asked = { model: FACTS.embedding_model, input: CASES.embeddings, ...fields };
      const answer = await client.embeddings.create(asked);
      expectVectors(answer.data.map((one) => one.embedding));
    }
  },
  async "error: unknown model"() {
    const seen = { status: 404, code: "model_not_found", param: "model" };
    await expectError(create({ ...CASES.chat, model: "nothing" }), seen);
  },
  async "error: context too long"() {
    const seen = { status: 400, code: "context_length_exceeded", param: "messages" };
    await expectError(create({ messages: long }), seen);
    await expectError(create({ messages: long, stream: true }), seen);
  },
  async "error: wrong key"() {
    const wrong = held.withOptions({ apiKey: "wrong" });
    await expectError(wrong.models.list(), { status: 401, code: "invalid_api_key" });
  },
  async comments() {
    const asked = { model, ...CASES.chat, stop: FACTS.held_stop, stream: true };
    assert.equal(await text(await held.chat.completions.create(asked)), FACTS.chat_text);
  },
  async timeout() {
    const hurried = create(
      { ...CASES.long_answer, ignore_eos: true },
      { timeout: 1000 * CASES.timeout_seconds },
    );
    await assert.rejects(hurried, OpenAI.APIConnectionTimeoutError);
    await expectFree();
  },
  async "hang up"() {
    const stream = await create({ ...CASES.long_answer, ignore_eos: true, stream: true });
    for await (const chunk of stream) if (chunk.choices[0]?.delta.content) break;
    await expectFree();
  },
});
