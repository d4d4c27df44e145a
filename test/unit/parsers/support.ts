import { isDeepStrictEqual } from 'node:util';
import { expect } from 'vitest';
import { createOutputParser, type OutputParserOptions } from '../../../src/control/sessions/parsers/create-parser.ts';
import { joinCall, type ParsedDelta, type ParsedOutput } from '../../../src/control/sessions/parsers/output-parser.ts';

export type Random = () => number;

/** mulberry32: the same outputs in every run. */
export function seeded(seed: number): Random {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

export const below = (random: Random, bound: number) => Math.floor(random() * bound);

export function pick<Item>(random: Random, items: readonly Item[]): Item {
  const item = items[below(random, items.length)];
  if (item === undefined) throw new Error('nothing to pick from');
  return item;
}

const TOOLS = ['get_weather', 'f', 'g', 'search.web'].map((name) => ({ type: 'function', function: { name } }));

/** Ids are numbered, so that outcomes can be compared. */
export function optionsFor(options: Partial<OutputParserOptions> = {}): OutputParserOptions {
  return {
    tools: 'auto',
    toolParser: null,
    toolDefinitions: TOOLS,
    reasoningParser: null,
    promptReasoning: 'none',
    parallelToolCalls: true,
    includeReasoning: true,
    ...options,
  };
}

export function deltasOf(options: OutputParserOptions, pieces: readonly string[]): ParsedDelta[] {
  let ids = 0;
  const parser = createOutputParser({ newCallId: () => `call-${ids++}`, ...options });
  return [...pieces.flatMap((piece) => parser.push(piece)), ...parser.finish()];
}

/** Puts deltas together again. */
function joinDeltas(deltas: Iterable<ParsedDelta>): ParsedOutput {
  const output: ParsedOutput = { reasoning: '', content: '', toolCalls: [] };
  for (const delta of deltas) {
    if ('reasoning' in delta) output.reasoning += delta.reasoning;
    else if ('content' in delta) output.content += delta.content;
    else joinCall(output.toolCalls, delta.toolCall);
  }
  return output;
}

export function parse(options: OutputParserOptions, pieces: readonly string[] | string): ParsedOutput {
  return joinDeltas(deltasOf(options, typeof pieces === 'string' ? [pieces] : pieces));
}

/** A call as [name, arguments]. */
export function callsIn(output: ParsedOutput): [string, unknown][] {
  return output.toolCalls.map((call) => [call.name, JSON.parse(call.arguments)]);
}

export function piecesOf(text: string, size: number): string[] {
  return Array.from({ length: Math.ceil(text.length / size) }, (_, i) => text.slice(i * size, (i + 1) * size));
}

function randomPieces(random: Random, text: string): string[] {
  const longest = 1 + below(random, 40);
  const pieces: string[] = [];
  for (let at = 0; at < text.length;) {
    // Now and then an empty piece, as when the detokenizer holds bytes back.
    const size = random() < 0.05 ? 0 : 1 + below(random, longest);
    pieces.push(text.slice(at, at + size));
    at += size;
  }
  return pieces;
}

/** Parses the text whole and in many cuts, and checks what must hold of any output. Returns the whole's outcome. */
export function parseEveryWay(options: OutputParserOptions, text: string, random: Random): ParsedOutput {
  const whole = parse(options, text);
  const cuts = [1, 2, 3, 5, 8].map((size) => piecesOf(text, size));
  for (let i = 0; i < 4; i++) cuts.push(randomPieces(random, text));
  for (const pieces of cuts) {
    const deltas = deltasOf(options, pieces);
    if (!isDeepStrictEqual(joinDeltas(deltas), whole)) expect({ pieces, ...joinDeltas(deltas) }).toEqual(whole);
    const faults = [...shapeFaults(deltas), ...placeFaults(deltas, text)];
    if (faults.length > 0) expect({ pieces, faults }).toEqual({ pieces, faults: [] });
  }
  return whole;
}

/**
 * What breaks the streaming shapes: an id and a name come with a call's first delta and never again, indices in order, and
 * no delta is empty.
 */
function shapeFaults(deltas: readonly ParsedDelta[]): ParsedDelta[] {
  let newest = -1;
  return deltas.filter((delta) => {
    if ('reasoning' in delta) return delta.reasoning === '';
    if ('content' in delta) return delta.content === '';
    const { index, id, name, arguments: json } = delta.toolCall;
    if (id !== undefined) return index !== ++newest || !name;
    return index !== newest || name !== undefined || !json;
  });
}

/** Content that does not stand in the output where it says, or before what came before it. */
function placeFaults(deltas: readonly ParsedDelta[], text: string): ParsedDelta[] {
  let end = 0;
  return deltas.filter((delta) => {
    if (!('content' in delta)) return false;
    const { content, at = NaN } = delta;
    const isThere = at >= end && text.startsWith(content, at);
    end = at + content.length;
    return !isThere;
  });
}

export function tool(name: string, properties: Record<string, unknown>): unknown {
  return { type: 'function', function: { name, parameters: { type: 'object', properties } } };
}
