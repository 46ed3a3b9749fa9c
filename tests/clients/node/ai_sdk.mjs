// The package `ai` with @ai-sdk/openai-compatible: the strictest reader of streams of all.

import assert from "node:assert/strict";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import {
  APICallError, embedMany, generateObject, generateText, jsonSchema, streamObject, streamText, tool,
} from "ai";

import { CASES, FACTS, expectError, expectFree, expectValid, expectVectors, runChecks } from "./checks.mjs";

const provide = (baseURL, apiKey) =>
  createOpenAICompatible({ name: "mesh", baseURL, apiKey, supportsStructuredOutputs: true });
const mesh = provide(FACTS.url, "not-needed");
const model = mesh.chatModel(FACTS.chat_model);
const held = provide(FACTS.held_url, FACTS.key).chatModel(FACTS.chat_model);
const unlimited = { providerOptions: { mesh: { ignore_eos: true } } };

// Its own names for what OpenAI calls otherwise.
const asked = ({ max_tokens, ...rest }) => ({ ...rest, maxOutputTokens: max_tokens, maxRetries: 0 });
const tools = {
  [CASES.tool.name]: tool({
    description: CASES.tool.description,
    inputSchema: jsonSchema(CASES.tool.parameters),
  }),
};
const withTool = {
  ...asked(CASES.tool_call),
  tools,
  toolChoice: { type: "tool", toolName: CASES.tool.name },
};
const withSchema = { ...asked(CASES.json_answer), schema: jsonSchema(CASES.schema) };

async function text(streamed) {
  let whole = "";
  for await (const part of streamed.fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") whole += part.text;
  }
  return whole;
}

function expectCall(call) {
  assert.equal(call.toolName, CASES.tool.name);
  assert.ok(call.toolCallId);
  expectValid(call.input, CASES.tool.parameters);
}

await runChecks({
  async chat() {
    const answer = await generateText({ model, ...asked(CASES.chat) });
    assert.equal(answer.text, FACTS.chat_text);
    assert.equal(answer.finishReason, FACTS.chat_finish);
    assert.equal(answer.usage.totalTokens, FACTS.chat_tokens);
  },
  async stream() {
    const answer = await generateText({ model, ...asked(CASES.seeded) });
    assert.equal(await text(streamText({ model, ...asked(CASES.seeded) })), answer.text);
  },
  async tools() {
    const [call] = (await generateText({ model, ...withTool })).toolCalls;
    expectCall(call);
    const [again] = await streamText({ model, ...withTool }).toolCalls;
    expectCall(again);
    assert.deepEqual(again.input, call.input);
  },
  async json() {
    expectValid((await generateObject({ model, ...withSchema })).object, CASES.schema);
    const streamed = streamObject({ model, ...withSchema });
    let last;
    for await (const part of streamed.partialObjectStream) last = part;
    expectValid(last, CASES.schema);
    expectValid(await streamed.object, CASES.schema);
  },
  async embeddings() {
    const embedder = mesh.embeddingModel(FACTS.embedding_model);
    expectVectors((await embedMany({ model: embedder, values: CASES.embeddings })).embeddings);
  },
  async "error: unknown model"() {
    const unknown = mesh.chatModel("nothing");
    const answer = generateText({ model: unknown, ...asked(CASES.chat) });
    await expectError(answer, { statusCode: 404, isRetryable: false });
  },
  async "error: context too long"() {
    const messages = [{ role: "user", content: "word ".repeat(CASES.too_many_words) }];
    const answer = generateText({ model, messages, maxRetries: 0 });
    await expectError(answer, { statusCode: 400, isRetryable: false });
    const streamed = text(streamText({ model, messages, maxRetries: 0, onError() {} }));
    await expectError(streamed, { statusCode: 400, isRetryable: false });
  },
  async "error: wrong key"() {
    const wrong = provide(FACTS.held_url, "wrong").chatModel(FACTS.chat_model);
    const answer = generateText({ model: wrong, ...asked(CASES.chat) });
    await assert.rejects(answer, (error) => APICallError.isInstance(error) && error.statusCode === 401);
  },
  async comments() {
    const stopSequences = [FACTS.held_stop];
    const streamed = streamText({ model: held, ...asked(CASES.chat), stopSequences });
    assert.equal(await text(streamed), FACTS.chat_text);
  },
  async timeout() {
    const abortSignal = AbortSignal.timeout(1000 * CASES.timeout_seconds);
    const answer = generateText({ model, ...asked(CASES.long_answer), ...unlimited, abortSignal });
    await assert.rejects(answer, { name: "TimeoutError" });
    await expectFree();
  },
  async "hang up"() {
    const leaving = new AbortController();
    const { textStream } = streamText({
      model, ...asked(CASES.long_answer), ...unlimited, abortSignal: leaving.signal,
    });
    for await (const piece of textStream) if (piece) break;
    leaving.abort();
    await expectFree();
  },
});
