/** tokenizer.ggml.*: tokens, their kinds and the ids with a role, checked. */
import { Fields, show } from '../fields.ts';
import type { GgufHeader } from './header.ts';

const MAX_TOKEN_CHARS = 4096;
const PREFIX = 'tokenizer.ggml';

/** tokenizer.ggml.token_type. */
export const TOKEN = { normal: 1, unknown: 2, control: 3, userDefined: 4, unused: 5, byte: 6 } as const;

/** Control tokens that end a turn wherever they exist: many files name one of several, or none. */
const ENDS: ReadonlySet<string> = new Set([
  '</s>',
  '<|endoftext|>',
  '<|end_of_text|>',
  '<|im_end|>',
  '<|eot_id|>',
  '<|eom_id|>',
  '<|end|>',
  '<end_of_turn>',
  '<EOT>',
  '<｜end▁of▁sentence｜>',
]);

export type Role = 'bos' | 'eos' | 'unknown' | 'seperator' | 'padding' | 'cls' | 'mask' | 'eot' | 'eom';

/** seperator: as the format spells it. */
const ROLES: readonly Role[] = ['bos', 'eos', 'unknown', 'seperator', 'padding', 'cls', 'mask', 'eot', 'eom'];

/** sentencepiece's own where the file is silent. */
const LLAMA_ROLES: Partial<Record<Role, number>> = { bos: 1, eos: 2, unknown: 0 };

export interface GgufVocabulary {
  /** gpt2: byte-level pairs; llama: sentencepiece. */
  model: 'gpt2' | 'llama';
  /** Without the padding behind the last token that a text can have. */
  tokens: string[];
  kinds: number[];
  scores: number[];
  roles: Map<Role, number>;
  /** Tokens that end a turn. */
  ends: number[];
}

/** `rows`: of the embedding. */
export function readVocabulary(header: GgufHeader, rows: number): GgufVocabulary {
  const metadata: Fields = new Fields(header.file, header.metadata);
  const model = metadata.string(`${PREFIX}.model`);
  if (model !== 'gpt2' && model !== 'llama') {
    metadata.fail(`${PREFIX}.model`, `${show(model ?? null)} is not supported (gpt2, llama are).`);
  }
  const all = strings(metadata, `${PREFIX}.tokens`);
  if (all.length === 0) metadata.fail(`${PREFIX}.tokens`, 'is empty.');
  if (all.length > rows)
    metadata.fail(`${PREFIX}.tokens`, `has ${all.length} tokens, but the embedding has ${rows} rows.`);
  for (const [id, text] of all.entries()) {
    if (text.length > MAX_TOKEN_CHARS)
      metadata.fail(`${PREFIX}.tokens`, `has a token of ${text.length} characters: ${id}.`);
  }
  const kinds = numbers(metadata, 'token_type', all.length, TOKEN.normal);
  const scores = numbers(metadata, 'scores', all.length, 0);
  const roles = readRoles(metadata, model, all.length);
  const last = Math.max(
    ...roles.values(),
    kinds.findLastIndex((kind) => kind !== TOKEN.unused),
  );
  const tokens = all.slice(0, last + 1);
  if (tokens.length === 0) metadata.fail(`${PREFIX}.token_type`, 'marks all tokens as unused.');
  for (const [role, id] of roles) {
    // What has a role is no text, even where the file forgets to say so.
    if (kinds[id] === TOKEN.normal) kinds[id] = role === 'unknown' ? TOKEN.unknown : TOKEN.control;
  }
  return { model, tokens, kinds, scores, roles, ends: endsOf(tokens, kinds, roles) };
}

function endsOf(tokens: string[], kinds: number[], roles: Map<Role, number>): number[] {
  const named = (['eos', 'eot', 'eom'] as const).flatMap((role) => roles.get(role) ?? []);
  const known = tokens.flatMap((text, id) => (kinds[id] === TOKEN.control && ENDS.has(text) ? [id] : []));
  return [...new Set([...named, ...known])];
}

function readRoles(metadata: Fields, model: string, tokens: number): Map<Role, number> {
  const roles = new Map<Role, number>();
  for (const role of ROLES) {
    const fallback = model === 'llama' ? LLAMA_ROLES[role] : undefined;
    const key = `${PREFIX}.${role}_token_id`;
    if (metadata.has(key)) roles.set(role, metadata.integer(key, { min: 0, max: tokens - 1 }));
    else if (fallback !== undefined && fallback < tokens) roles.set(role, fallback);
  }
  return roles;
}

/** An array of strings; [] where the key is absent. */
export function strings(metadata: Fields, key: string): string[] {
  const value = metadata.get(key) ?? [];
  if (!Array.isArray(value) || !value.every((item) => typeof item === 'string')) {
    metadata.fail(key, 'must be an array of strings.');
  }
  return value;
}

function numbers(metadata: Fields, name: string, count: number, fallback: number): number[] {
  const key = `${PREFIX}.${name}`;
  const value = metadata.get(key);
  if (value === undefined) return new Array<number>(count).fill(fallback);
  if (!Array.isArray(value) || !value.every((item) => typeof item === 'number' && Number.isFinite(item))) {
    metadata.fail(key, 'must be an array of numbers.');
  }
  if (value.length !== count) metadata.fail(key, `has ${value.length} entries for ${count} tokens.`);
  return value as number[];
}
