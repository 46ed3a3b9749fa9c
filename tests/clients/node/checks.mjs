// What the checks of every npm client share; the counterpart of checks.py, with the same lines.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

export const CASES = JSON.parse(readFileSync(new URL("cases.json", import.meta.url)));
export const FACTS = JSON.parse(process.argv[2]);
const POLL_MS = 20;
const TOLERANCE = 1e-3;
const MOST_LETTERS = 400;

export async function runChecks(checks) {
  for (const [check, run] of Object.entries(checks)) {
    const began = performance.now();
    let outcome = "passed";
    let why = "";
    try {
      await run();
    } catch (error) {
      console.error(error);
      outcome = "failed";
      why = `${error.name}: ${error.message}`.slice(0, MOST_LETTERS);
    }
    const seconds = Math.round((performance.now() - began) / 10) / 100;
    console.log(JSON.stringify({ check, outcome, why, seconds }));
  }
}

export function expectVectors(vectors) {
  assert.equal(vectors.length, FACTS.embeddings.length);
  for (const [place, vector] of vectors.entries()) {
    assert.equal(vector.length, CASES.dimensions);
    for (const [index, figure] of vector.entries())
      assert.ok(Math.abs(figure - FACTS.embeddings[place][index]) <= TOLERANCE);
  }
}

export function expectValid(value, schema) {
  assert.deepEqual(Object.keys(value), schema.required);
  const [town, flag] = Object.values(value);
  assert.ok(schema.properties.town.enum.includes(town), `${town} is no town of the schema`);
  assert.equal(typeof flag, "boolean");
}

export async function expectError(promise, seen) {
  await assert.rejects(promise, (error) => {
    assert.deepEqual(Object.fromEntries(Object.keys(seen).map((k) => [k, error[k]])), seen);
    return true;
  });
}

// Fails unless no Worker holds a Session within two seconds.
export async function expectFree() {
  const deadline = performance.now() + 1000 * CASES.free_seconds;
  while (await isBusy()) {
    assert.ok(performance.now() < deadline, "the mesh is still busy");
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

async function isBusy() {
  for (const url of FACTS.workers) {
    const told = await (await fetch(`${url}/v1/kv`)).json();
    if (told.sessions || told.waiting) return true;
  }
  return false;
}
