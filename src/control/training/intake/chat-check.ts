/**
 * Whether the chat template takes the chats of one body, asked before a job is accepted. What a template refuses is nearly always the order of
 * roles, or what a message has besides its text: of chats that are alike in these the first is rendered, so that a body of many chats
 * costs a few renderings. All else is found when a chat is trained on, and fails the job.
 */
import { createHash } from 'node:crypto';
import { performance } from 'node:perf_hooks';
import { writeJson } from '../../json-numbers.ts';
import type { OpenChat } from '../../sessions/open-chat.ts';

/** Why a chat cannot be rendered; null: it can. */
export type FindRefusal = (chat: OpenChat) => Promise<string | null>;

/** Rendered of one body: others of its size may wait. */
const MAX_SHAPES = 256;
/** The same as time: a chat of very many messages takes seconds. */
const MAX_MS = 10_000;

export class ChatCheck {
  readonly #find: FindRefusal;
  readonly #now: () => number;
  readonly #seen = new Set<string>();
  #spentMs = 0;

  constructor(find: FindRefusal, now: () => number = () => performance.now()) {
    this.#find = find;
    this.#now = now;
  }

  /** null also for a chat that is like one that was rendered. */
  async refusal(chat: OpenChat): Promise<string | null> {
    if (this.#seen.size >= MAX_SHAPES || this.#spentMs >= MAX_MS) return null;
    const { messages, slots, tools } = chat;
    const shape = writeJson([shapeOf(messages), slots.map(({ message }) => message), tools]);
    // Hashed: a list of tools may be long.
    const key = createHash('sha256').update(shape).digest('base64');
    if (this.#seen.has(key)) return null;
    this.#seen.add(key);
    const begun = this.#now();
    const refusal = await this.#find(chat);
    this.#spentMs += this.#now() - begun;
    return refusal;
  }
}

/** Texts count as empty or not, ids by their length (some templates want so many characters); arguments of calls are the model's own. */
function shapeOf(value: unknown, name = ''): unknown {
  if (typeof value === 'string') {
    if (name === 'role' || name === 'type') return value;
    return name === 'id' || name === 'tool_call_id' ? value.length : value !== '';
  }
  if (Array.isArray(value)) return value.map((item) => shapeOf(item, name));
  if (typeof value !== 'object' || value === null) return value === null ? null : typeof value;
  return name === 'arguments' ? {} : Object.entries(value).map(([key, item]) => [key, shapeOf(item, key)]);
}
