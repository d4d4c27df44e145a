/** The items that a request of the Responses API stands for: those of the responses that it continues, and its own with references resolved. */
import type { Reserve, ResponseStore } from '../../control/stored-responses.ts';
import { MAX_ITEMS, type ResponsesRequest } from '../../schemas/responses.ts';
import { shorten } from '../../schemas/shorten.ts';
import { ApiError } from '../errors.ts';
import type { BodyReader, HeldBytes } from '../middleware/body.ts';
import { itemId } from '../responses/output-items.ts';
import { refuse } from './refuse.ts';
import { textIn, typeOf, type PlacedItem } from './responses-items.ts';

type Item = Record<string, unknown>;

export interface HistoryDeps {
  responses: ResponseStore;
  bodies: Pick<BodyReader, 'inTurn'>;
  /** Of what is read for this request. */
  held: HeldBytes;
  /** As much of what is stored as a body could have brought. */
  maxBytes: number;
}

export interface History {
  items: PlacedItem[];
  /** The request's own, as they are stored and listed. */
  own: Item[];
}

/** request_id and what stands around it. */
const MAX_ID_LENGTH = 300;
const REFERENCES_TOO_LONG = 'The items that `input` refers to are larger than a request may be.';
const PREVIOUS = 'previous_response_id';

/** `token`: what makes ids of items this response's. */
export async function readHistory(
  deps: HistoryDeps,
  entity: string,
  body: ResponsesRequest,
  token: string,
): Promise<History> {
  const before = await previousItems(deps, entity, body.previous_response_id ?? null, `resp_${token}`);
  const own = await ownItems(deps, entity, body, token);
  const items = [...before.map((item) => ({ item, at: PREVIOUS })), ...own.map(placed)];
  if (items.length > MAX_ITEMS) refuse(`A conversation may have at most ${MAX_ITEMS} items.`, PREVIOUS);
  if (items.length === 0) refuse('`input` must not be empty.', 'input');
  return { items, own };
}

function placed(item: Item, index: number): PlacedItem {
  return { item, at: `input[${index}]` };
}

async function previousItems(deps: HistoryDeps, entity: string, id: string | null, newId: string): Promise<Item[]> {
  if (id === null) return [];
  const tooLong = `The conversation of '${shorten(id, 64)}' is longer than a request may be: send its newer items instead.`;
  const chain = await deps.responses.chain(entity, id, reserver(deps, tooLong, PREVIOUS));
  if (chain === null) throw notFound(id, PREVIOUS);
  if (chain.isCut) refuse(tooLong, PREVIOUS);
  if (chain.missing !== null) throw notFound(chain.missing, PREVIOUS);
  // It would take the place of what it continues.
  if (chain.links.some((link) => link.id === newId))
    refuse(`'${newId}' is the id of a response that this one continues.`, 'request_id');
  const lists: Item[][] = [];
  for (const { input, output } of chain.links) {
    lists.push(await parseItems(deps, entity, input), await parseItems(deps, entity, output));
  }
  return lists.flat();
}

async function ownItems(deps: HistoryDeps, entity: string, body: ResponsesRequest, token: string): Promise<Item[]> {
  const { input } = body;
  const listed = typeof input === 'string' ? [{ role: 'user', content: input }] : (input ?? []);
  const reserve = reserver(deps, REFERENCES_TOO_LONG, 'input');
  const known = await referred(deps, entity, listed, reserve);
  const items = listed.map((item, index) => {
    if (!isReference(item)) return normal(item, `input[${index}]`, newId(token, index));
    const found = known.get(textIn(item, 'id', `input[${index}]`));
    if (found === undefined) throw notStored(item, `input[${index}].id`);
    // Each time anew: a small request may name a large item very often.
    reserve(found.chars);
    return found.item;
  });
  return withIdsOfTheirOwn(items, token);
}

function newId(token: string, index: number): string {
  return itemId('msg', token, `in${index}`);
}

/** Lists of items go on behind an id: with two of the same they would begin again and again. */
function withIdsOfTheirOwn(items: readonly Item[], token: string): Item[] {
  const taken = new Set<unknown>();
  return items.map((item, index) => {
    let id = item['id'];
    for (let n = 1; taken.has(id); n++) id = n === 1 ? newId(token, index) : `${newId(token, index)}_${n}`;
    taken.add(id);
    return id === item['id'] ? item : { ...item, id };
  });
}

interface StoredItem {
  item: Item;
  chars: number;
}

/** The stored items that references name. */
async function referred(
  deps: HistoryDeps,
  entity: string,
  items: readonly Item[],
  reserve: Reserve,
): Promise<Map<string, StoredItem>> {
  const references = items.filter(isReference).map((item) => responseOf(item['id']));
  const ids = [...new Set(references)].filter((id) => id !== null);
  const known = new Map<string, StoredItem>();
  if (ids.length === 0) return known;
  for (const output of (await deps.responses.outputs(entity, ids, reserve)).values()) {
    for (const item of await parseItems(deps, entity, output)) {
      known.set(String(item['id']), { item, chars: JSON.stringify(item).length });
    }
  }
  return known;
}

/** What is stored is read for as many requests at once as could have sent it. */
function reserver({ held, maxBytes }: HistoryDeps, tooLong: string, param: string): Reserve {
  return (bytes) => {
    if (held.bytes + bytes > maxBytes) refuse(tooLong, param);
    held.reserve(bytes);
  };
}

function isReference(item: Item): boolean {
  const type = item['type'] ?? null;
  return type === 'item_reference' || (type === null && typeOf(item) === undefined && typeof item['id'] === 'string');
}

/** The response of which an item was an output; null: the id is none of this server's. */
function responseOf(id: unknown): string | null {
  const readable = typeof id === 'string' && id.length <= MAX_ID_LENGTH;
  const token = readable ? /^(?:msg|rs|fc)_(.+)_\d+$/s.exec(id)?.[1] : undefined;
  return token === undefined ? null : `resp_${token}`;
}

/** Of a message, the form in which it is listed; other items as they are. `id`: of one that has none. */
function normal(item: Item, at: string, id: string): Item {
  const own: unknown = item['id'] ?? id;
  if (typeof own !== 'string') refuse(`${at}.id must be a text.`, `${at}.id`);
  const identified = { ...item, id: own };
  if (typeOf(item) !== 'message') return identified;
  const { content, role } = item;
  const type = role === 'assistant' ? 'output_text' : 'input_text';
  const parts = typeof content === 'string' ? [{ type, text: content }] : content;
  return { ...identified, type: 'message', status: 'completed', content: parts };
}

function parseItems({ bodies }: HistoryDeps, entity: string, text: string): Promise<Item[]> {
  return bodies.inTurn(entity, text.length, () => JSON.parse(text) as Item[]);
}

export function notFound(id: string, param: string): ApiError {
  return new ApiError('no_such_resource', `Response with id '${shorten(id, 300)}' not found.`, param);
}

function notStored(item: Item, at: string): ApiError {
  const message = `Item with id '${shorten(String(item['id']), 300)}' not found: only output items of stored responses can be referred to.`;
  return new ApiError('no_such_resource', message, at);
}
