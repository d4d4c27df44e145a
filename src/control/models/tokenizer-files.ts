/** tokenizer.json, tokenizer_config.json and the chat template, read and checked before any library sees them. */
import { join } from 'node:path';
import { isPlainObject } from '../../schemas/plain-object.ts';
import { ModelError } from './errors.ts';
import { Fields, show } from './fields.ts';
import { readModelJson, readModelText, type JsonObject } from './json-file.ts';

export const TOKENIZER_FILE = 'tokenizer.json';
export const TOKENIZER_CONFIG_FILE = 'tokenizer_config.json';
/** Of older directories: bos_token and the like, and tokens (text -> id) that tokenizer.json need not have. */
const ROLES_FILE = 'special_tokens_map.json';
const LATER_TOKENS_FILE = 'added_tokens.json';
const TEMPLATE_FILE = 'chat_template.jinja';
const MORE_TEMPLATES = 'additional_chat_templates';
/** As transformers calls the template of chats that have tools. */
export const TOOL_TEMPLATE = 'tool_use';

const MAX_TOKENIZER_BYTES = 64 * 1024 * 1024;
const MAX_CONFIG_BYTES = 16 * 1024 * 1024;
export const MAX_TEMPLATE_BYTES = 1024 * 1024;
const MAX_ADDED_TOKENS = 65_536;
const MAX_TOKEN_CHARS = 4096;
/** All added tokens together: each character is a node of a search tree. */
const MAX_ADDED_CHARS = 1_000_000;
const MAX_VOCABULARY = 2 ** 22;

export interface AddedToken {
  id: number;
  content: string;
  special: boolean;
  lstrip: boolean;
  rstrip: boolean;
  /** Found when the text has been normalised; never so where it is special, which a client's text must not become. */
  normalized: boolean;
}

export interface TokenizerFiles {
  tokenizer: JsonObject;
  config: JsonObject;
  /** id -> text as the vocabulary writes it; ids are 0..length-1 without a gap. */
  vocabulary: string[];
  addedTokens: AddedToken[];
  chatTemplate: string | null;
  /** For chats with tools, where the model has another one for them. */
  toolTemplate: string | null;
  /** bos_token, eos_token, ... for the template. */
  specialTokens: Record<string, string>;
}

/** `vocabSize`: rows of the embedding; a token without a row is refused. */
export async function readTokenizerFiles(directory: string, vocabSize: number): Promise<TokenizerFiles> {
  const stored = await readModelJson(directory, TOKENIZER_FILE, MAX_TOKENIZER_BYTES);
  if (!stored) throw new ModelError(TOKENIZER_FILE, `is missing in ${directory}.`);
  const roles = await readModelJson(directory, ROLES_FILE, MAX_CONFIG_BYTES);
  const config = { ...roles, ...(await readModelJson(directory, TOKENIZER_CONFIG_FILE, MAX_CONFIG_BYTES)) };
  const later = await readModelJson(directory, LATER_TOKENS_FILE, MAX_CONFIG_BYTES);
  const tokenizer = withLaterTokens(stored, config, later ?? {}, vocabSize);
  const addedTokens = readAddedTokens(tokenizer);
  return {
    tokenizer,
    config,
    vocabulary: readVocabularyTexts(tokenizer, addedTokens, vocabSize),
    addedTokens,
    ...(await readTemplates(directory, config)),
    specialTokens: readSpecialTokens(config),
  };
}

/** tokenizer.json with the tokens that only the other files name, as transformers adds them. One without a row cannot occur: it stays out. */
function withLaterTokens(tokenizer: JsonObject, config: JsonObject, later: JsonObject, vocabSize: number): JsonObject {
  const added: unknown = tokenizer['added_tokens'] ?? [];
  const described = config['added_tokens_decoder'] ?? {};
  if (!Array.isArray(added) || !isPlainObject(described)) return tokenizer;
  const special = new Set<unknown>(Object.values(readSpecialTokens(config)));
  for (const token of listOf(config['additional_special_tokens']))
    special.add(isPlainObject(token) ? token['content'] : token);
  const known = new Set(added.map((token: unknown) => (isPlainObject(token) ? token['content'] : undefined)));
  const missing: JsonObject[] = [];
  const add = (token: JsonObject, file: string, label: string): void => {
    const { id, content } = token;
    if (known.has(content) || (typeof id === 'number' && id >= vocabSize)) return;
    readAddedToken(token, file, label);
    known.add(content);
    missing.push(token);
  };
  for (const [id, token] of Object.entries(described)) {
    add(
      { ...(isPlainObject(token) && token), id: Number(id) },
      TOKENIZER_CONFIG_FILE,
      `added_tokens_decoder.${id.slice(0, 100)}`,
    );
  }
  for (const [content, id] of Object.entries(later)) {
    add({ id, content, special: special.has(content) }, LATER_TOKENS_FILE, show(content));
  }
  return missing.length === 0 ? tokenizer : { ...tokenizer, added_tokens: [...(added as unknown[]), ...missing] };
}

function listOf(value: unknown): unknown[] {
  return Array.isArray(value) ? value : [];
}

function fail(problem: string): never {
  throw new ModelError(TOKENIZER_FILE, problem);
}

export function readAddedTokens(tokenizer: JsonObject): AddedToken[] {
  const list = tokenizer['added_tokens'] ?? [];
  if (!Array.isArray(list)) fail('added_tokens must be a list.');
  if (list.length > MAX_ADDED_TOKENS) fail(`has ${list.length} added_tokens; at most ${MAX_ADDED_TOKENS} are read.`);
  const contents = new Set<string>();
  let chars = 0;
  return list.map((entry: unknown) => {
    if (!isPlainObject(entry)) fail('added_tokens must hold objects.');
    const token = readAddedToken(entry, TOKENIZER_FILE, 'added_tokens');
    chars += token.content.length;
    if (chars > MAX_ADDED_CHARS) fail(`has added_tokens of more than ${MAX_ADDED_CHARS} characters.`);
    if (contents.has(token.content)) fail(`adds ${show(token.content)} twice.`);
    contents.add(token.content);
    return token;
  });
}

function readAddedToken(entry: JsonObject, file: string, label: string): AddedToken {
  const fields = new Fields(file, entry, label);
  const content = fields.string('content') ?? '';
  if (content === '' || content.length > MAX_TOKEN_CHARS) fields.fail('content', `has ${content.length} characters.`);
  if (fields.boolean('single_word', false)) fields.fail('single_word', `of ${show(content)} is not supported.`);
  const special = fields.boolean('special', false);
  return {
    id: fields.integer('id', { min: 0, max: MAX_VOCABULARY }),
    content,
    special,
    lstrip: fields.boolean('lstrip', false),
    rstrip: fields.boolean('rstrip', false),
    normalized: fields.boolean('normalized', true) && !special,
  };
}

/** Texts by id. */
export function readVocabularyTexts(tokenizer: JsonObject, added: AddedToken[], vocabSize: number): string[] {
  const model = tokenizer['model'];
  if (!isPlainObject(model)) fail('model must be an object.');
  const type = model['type'] ?? (Array.isArray(model['merges']) ? 'BPE' : undefined);
  if (type !== 'BPE') fail(`model.type ${show(model['type'])} is not supported (BPE is).`);
  const { vocab, merges } = model;
  if (!isPlainObject(vocab)) fail('model.vocab must be an object.');
  if (!Array.isArray(merges)) fail('model.merges must be a list.');
  if (merges.length > MAX_VOCABULARY) fail(`has ${merges.length} merges; at most ${MAX_VOCABULARY} are read.`);
  for (const [rank, merge] of merges.entries()) checkMerge(merge, rank, vocab);
  if (merges.some((merge) => typeof merge !== typeof merges[0]))
    fail('model.merges must be texts or pairs of texts, not both.');
  const byId = new Map<number, string>();
  for (const [text, id] of Object.entries(vocab)) place(byId, id, text, vocabSize);
  for (const token of added) place(byId, token.id, token.content, vocabSize);
  if (byId.size === 0) fail('has no tokens.');
  return Array.from(
    { length: byId.size },
    (_, id) => byId.get(id) ?? fail(`has no token of id ${id}, but higher ids.`),
  );
}

/** As the original has it. The library takes others, and drops the text of which they make no token. */
function checkMerge(merge: unknown, rank: number, vocab: JsonObject): void {
  const sides: unknown = typeof merge === 'string' ? merge.split(' ') : merge;
  if (!Array.isArray(sides) || sides.length !== 2) fail(`has ${show(merge)} as merge ${rank}, which is not two texts.`);
  const [left, right] = sides as unknown[];
  if (typeof left !== 'string' || typeof right !== 'string')
    fail(`has ${show(merge)} as merge ${rank}, which is not two texts.`);
  const missing = [left, right, left + right].find((text) => !Object.hasOwn(vocab, text));
  if (missing !== undefined) fail(`has ${show(merge)} as merge ${rank}, but ${show(missing)} is not in model.vocab.`);
}

function place(byId: Map<number, string>, id: unknown, text: string, vocabSize: number): void {
  if (typeof id !== 'number' || !Number.isInteger(id) || id < 0) fail(`gives ${show(text)} the id ${show(id)}.`);
  if (id >= vocabSize) fail(`gives ${show(text)} the id ${id}, but the embedding has ${vocabSize} rows.`);
  const other = byId.get(id);
  if (other !== undefined && other !== text) fail(`gives the id ${id} to ${show(other)} and to ${show(text)}.`);
  byId.set(id, text);
}

type Templates = Pick<TokenizerFiles, 'chatTemplate' | 'toolTemplate'>;

/** Files of templates win over tokenizer_config.json, which has one or a list of named ones. */
async function readTemplates(directory: string, config: JsonObject): Promise<Templates> {
  const value = config['chat_template'] ?? null;
  const named = (name: string): unknown => (Array.isArray(value) ? namedTemplate(value, name) : null);
  const file = await readModelText(directory, TEMPLATE_FILE, MAX_TEMPLATE_BYTES);
  const toolFile = await readModelText(join(directory, MORE_TEMPLATES), `${TOOL_TEMPLATE}.jinja`, MAX_TEMPLATE_BYTES);
  const toolTemplate = toolFile ?? (file === null ? checkTemplate(named(TOOL_TEMPLATE)) : null);
  if (file !== null) return { chatTemplate: file, toolTemplate };
  if (!Array.isArray(value)) return { chatTemplate: checkTemplate(value), toolTemplate };
  const chatTemplate = checkTemplate(named('default'));
  if (chatTemplate === null)
    throw new ModelError(TOKENIZER_CONFIG_FILE, "chat_template has no template named 'default'.");
  return { chatTemplate, toolTemplate };
}

function checkTemplate(template: unknown): string | null {
  if (template === null) return null;
  if (typeof template !== 'string')
    throw new ModelError(TOKENIZER_CONFIG_FILE, 'chat_template must be a string or a list of named templates.');
  if (template.length > MAX_TEMPLATE_BYTES) throw new ModelError(TOKENIZER_CONFIG_FILE, 'chat_template is too long.');
  return template;
}

function namedTemplate(list: unknown[], name: string): unknown {
  const entry = list.find((item) => isPlainObject(item) && item['name'] === name);
  return isPlainObject(entry) ? (entry['template'] ?? null) : null;
}

/** What the template knows these tokens by. */
export const SPECIAL_NAMES = [
  'bos_token',
  'eos_token',
  'unk_token',
  'sep_token',
  'pad_token',
  'cls_token',
  'mask_token',
];

/** Each is a string or an object with `content`. */
function readSpecialTokens(config: JsonObject): Record<string, string> {
  const tokens: Record<string, string> = {};
  for (const name of SPECIAL_NAMES) {
    const value = config[name] ?? null;
    const text = isPlainObject(value) ? value['content'] : value;
    if (text === null) continue;
    if (typeof text !== 'string') throw new ModelError(TOKENIZER_CONFIG_FILE, `${name} must be a string.`);
    tokens[name] = text;
  }
  return tokens;
}
