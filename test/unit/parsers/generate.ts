/** Random model outputs with what they mean, and broken ones. */
import { below, pick, type Random } from './support.ts';

export interface Sample {
  text: string;
  calls: [string, unknown][];
  content: string;
}

const NAMES = ['get_weather', 'f', 'search.web', 'list-files', 'Über_name2'];
const ASCII_NAMES = NAMES.slice(0, 3);
const WORDS = [
  'a',
  'München',
  '東京 ',
  '👩‍👩‍👧',
  ' x < y && z > 1 ',
  '}{][',
  '"quoted"',
  "it's",
  '\\',
  '\n',
  '\t"}',
  '</tool_cal',
  '<b>',
  '[1]',
  '<|x|>',
  '; ',
  'null',
  '\u2028',
];
/** Markup of all formats, which in a JSON or Python string is just text. */
const MARKUP = ['</tool_call>', '<tool_call>', '[TOOL_CALLS]', '<|python_tag|>', '<function=f>', '<|end|>', '<|call|>'];

export function words(random: Random, list: readonly string[] = WORDS): string {
  return Array.from({ length: below(random, 5) }, () => pick(random, list)).join('');
}

export function value(random: Random, depth = 0): unknown {
  const kind = below(random, depth > 3 ? 6 : 9);
  if (kind === 0) return null;
  if (kind === 1) return random() < 0.5;
  if (kind === 2) return below(random, 2000) - 1000;
  if (kind === 3) return pick(random, [0.5, -1.25e-7, 1e21, 3.14159, 12345678901]);
  if (kind < 6) return words(random, [...WORDS, ...MARKUP]);
  if (kind === 6) return Array.from({ length: below(random, 4) }, () => value(random, depth + 1));
  return object(random, depth + 1);
}

export function object(random: Random, depth = 0): Record<string, unknown> {
  const keys = ['a', 'b c', 'ключ', 'name', 'arguments', '"', 'n1'];
  const members = Array.from({ length: below(random, 4) }, () => [pick(random, keys), value(random, depth)]);
  return Object.fromEntries(members) as Record<string, unknown>;
}

/** JSON text in one of the layouts that models write. */
export function jsonText(random: Random, data: unknown): string {
  const layout = below(random, 4);
  if (layout === 0) return JSON.stringify(data, null, 2);
  if (layout === 1) return JSON.stringify(data).replace(/[^\x20-\x7e]/g, escapeUnit);
  return layout === 2 ? spaced(data) : JSON.stringify(data);
}

function escapeUnit(unit: string): string {
  return `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`;
}

/** As Python's json.dumps puts it. */
function spaced(data: unknown): string {
  if (Array.isArray(data)) return `[${data.map(spaced).join(', ')}]`;
  if (typeof data !== 'object' || data === null) return JSON.stringify(data);
  const members = Object.entries(data).map(([key, item]) => `${JSON.stringify(key)}: ${spaced(item)}`);
  return `{${members.join(', ')}}`;
}

const intro = (random: Random) => pick(random, ['', '', 'Let me look.\n', '东京 < 大阪? ', 'I call 👍 it.\n\n']);
const outro = (random: Random) => pick(random, ['', '', '\n', 'Done.', ' That was < all']);
const space = (random: Random) => pick(random, ['', '', ' ', '\n', '\n\n  ']);

function build(random: Random, one: (name: string, data: Record<string, unknown>) => string, names = NAMES): Sample {
  const before = intro(random);
  const after = outro(random);
  let text = before;
  const calls: [string, unknown][] = [];
  for (let count = 1 + below(random, 3); count > 0; count--) {
    const name = pick(random, names);
    const data = object(random);
    calls.push([name, data]);
    text += one(name, data) + (count > 1 ? space(random) : '');
  }
  return { text: text + after, calls, content: before + (after.trim() === '' ? '' : after) };
}

export function hermes(random: Random): Sample {
  return build(random, (name, data) => {
    const asString = random() < 0.2 ? JSON.stringify(data) : data;
    return `<tool_call>${space(random)}${jsonText(random, { name, arguments: asString })}${space(random)}</tool_call>`;
  });
}

export function llama3Json(random: Random): Sample {
  const before = random() < 0.3 ? 'Sure. ' : '';
  let text = before;
  const calls: [string, unknown][] = [];
  for (let count = 1 + below(random, 3); count > 0; count--) {
    const name = pick(random, NAMES);
    const data = object(random);
    calls.push([name, data]);
    if (random() < 0.3) text += `<|python_tag|>${space(random)}`;
    text += jsonText(random, { name, [pick(random, ['parameters', 'arguments'])]: data }) + (count > 1 ? '; ' : '');
  }
  return { text, calls, content: before };
}

export function mistralArray(random: Random): Sample {
  const before = intro(random);
  const calls = Array.from({ length: 1 + below(random, 3) }, () => [pick(random, NAMES), object(random)] as const);
  const array = calls.map(([name, data]) => ({ name, arguments: data, id: 'abc123XYZ' }));
  const text = `${before}[TOOL_CALLS]${space(random)}${jsonText(random, array)}`;
  return { text, calls: calls.map(([name, data]) => [name, data]), content: before };
}

export function mistralNamed(random: Random): Sample {
  return build(random, (name, data) => {
    const mark = pick(random, ['', '', '[ARGS]', '[CALL_ID]abc123XYZ[ARGS]']);
    return `[TOOL_CALLS]${name}${mark}${jsonText(random, data)}`;
  });
}

/** All parameters are strings here: conversion has tests of its own. */
export function qwen3Coder(random: Random): Sample {
  return build(random, (name, data) => {
    const cleaned: [string, string][] = Object.keys(data).map((key) => [key, words(random).replaceAll('null', 'nul')]);
    for (const key of Object.keys(data)) delete data[key];
    for (const [key, text] of cleaned) data[key] = text;
    const parameters = cleaned.map(([key, text]) => `<parameter=${key}>\n${text}\n</parameter>\n`);
    return `<tool_call>\n<function=${name}>\n${parameters.join('')}</function>\n</tool_call>`;
  });
}

export function pythonic(random: Random): Sample {
  const calls = Array.from({ length: 1 + below(random, 3) }, () => {
    const members = Object.entries(object(random)).map(([, item], i) => [`arg_${i}`, item] as const);
    return [pick(random, ASCII_NAMES), Object.fromEntries(members)] as const;
  });
  const texts = calls.map(([name, data]) => {
    const members = Object.entries(data).map(([key, item]) => `${key}=${pythonText(random, item)}`);
    return `${name}(${members.join(', ')})`;
  });
  const list = `[${texts.join(', ')}]`;
  const text = random() < 0.3 ? `<|python_start|>${list}<|python_end|>` : list;
  return { text, calls: calls.map(([name, data]) => [name, data]), content: '' };
}

function pythonText(random: Random, data: unknown): string {
  if (data === null) return 'None';
  if (typeof data === 'boolean') return data ? 'True' : 'False';
  if (Array.isArray(data)) return `[${data.map((item) => pythonText(random, item)).join(', ')}]`;
  if (typeof data === 'string') return pythonString(random, data);
  if (typeof data !== 'object') return String(data);
  const members = Object.entries(data).map(
    ([key, item]) => `${pythonString(random, key)}: ${pythonText(random, item)}`,
  );
  return `{${members.join(', ')}}`;
}

function pythonString(random: Random, text: string): string {
  const quote = pick(random, ["'", '"', "'''", '"""']);
  const escaped = text.replaceAll('\\', '\\\\').replaceAll(quote.charAt(0), `\\${quote.charAt(0)}`);
  return quote + (quote.length === 3 ? escaped : escaped.replaceAll('\n', '\\n')) + quote;
}

export function harmony(random: Random): Sample & { reasoning: string } {
  const reasoning = words(random, ['I think. ', '我 ', '{ < ', 'so\n']);
  const content = words(random, ['It is 5 °C.', '\n\n', '<b>', '👍']).trimStart();
  const calls: [string, unknown][] = [];
  let text = `<|channel|>analysis<|message|>${reasoning}<|end|>`;
  for (let count = below(random, 3); count > 0; count--) {
    const name = pick(random, ['get_weather', 'f']);
    const data = object(random);
    calls.push([name, data]);
    const header = pick(random, [
      `<|channel|>commentary to=functions.${name} <|constrain|>json`,
      ` to=functions.${name}<|channel|>commentary json`,
    ]);
    text += `<|start|>assistant${header}<|message|>${jsonText(random, data)}<|call|>`;
  }
  text += `<|start|>assistant<|channel|>final<|message|>${content}${pick(random, ['', '<|return|>'])}`;
  return { text, calls, content: content.trim() === '' && calls.length > 0 ? '' : content, reasoning };
}

/** The text with a few characters cut out, doubled, replaced or cut off. */
export function broken(random: Random, text: string): string {
  for (let count = 1 + below(random, 3); count > 0; count--) {
    const at = below(random, text.length + 1);
    const length = below(random, 4);
    const kind = below(random, 4);
    if (kind === 0) text = text.slice(0, at) + text.slice(at + length);
    else if (kind === 1) text = text.slice(0, at) + text.slice(at, at + length) + text.slice(at);
    else if (kind === 2)
      text = text.slice(0, at) + pick(random, [...'{}[]"\'<>,: \n\\;=(', ...MARKUP]) + text.slice(at);
    else text = text.slice(0, Math.max(at, 1));
  }
  return text;
}
