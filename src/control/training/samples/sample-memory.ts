/**
 * Ids and log-probabilities of completions of trained models, by the completion's id, so that a trajectory may name the completion instead of
 * carrying them. Bounded in bytes and time; where it is full, the oldest of the entity that has most of it goes. Gone with the process: a job gets
 * its copy when it is accepted.
 */
import { COMPLETION_PREFIXES, type SampledTokens } from '../fill-samples.ts';

/** Entries are forgotten after this time. */
const MAX_AGE_MS = 3600_000;
const BYTES_PER_TOKEN = 8;
const ENTRY_BYTES = 512;

interface Entry {
  entity: string;
  choices: (SampledTokens | null)[];
  bytes: number;
  at: number;
}

interface Share {
  bytes: number;
  /** In order of insertion. */
  keys: Set<string>;
}

/** Tokens of one choice as they come. */
export interface ChoiceRecord {
  ids: number[];
  logprobs: number[];
}

export class SampleMemory {
  readonly #maxBytes: number;
  readonly #now: () => number;
  /** In order of insertion. */
  readonly #entries = new Map<string, Entry>();
  /** Of entities that have entries. */
  readonly #shares = new Map<string, Share>();
  #bytes = 0;

  constructor(maxBytes: number, now: () => number = () => performance.now()) {
    this.#maxBytes = maxBytes;
    this.#now = now;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /**
   * A completion has ended. `id` as the client saw it; a second one of the same id and entity replaces the first. As many choices belong to each
   * prompt, in order.
   */
  remember(
    id: string,
    entity: string,
    prompts: readonly Int32Array[],
    choices: readonly (ChoiceRecord | null)[],
  ): void {
    const tokens = choices.reduce((sum, choice) => sum + (choice?.ids.length ?? 0), 0);
    const promptTokens = prompts.reduce((sum, { length }) => sum + length, 0);
    const bytes = ENTRY_BYTES + 2 * id.length + 4 * promptTokens + BYTES_PER_TOKEN * tokens;
    const key = keyOf(id, entity);
    this.#forget(key);
    if (bytes > this.#maxBytes) return;
    const kept = prompts.map((promptIds) => Int32Array.from(promptIds));
    const samples = choices.map((choice, index) => {
      if (choice === null || choice.ids.length !== choice.logprobs.length) return null;
      const promptIds = kept[Math.floor((index * kept.length) / choices.length)] ?? new Int32Array();
      return { promptIds, tokenIds: Int32Array.from(choice.ids), logprobs: Float32Array.from(choice.logprobs) };
    });
    this.#add(key, { entity, choices: samples, bytes, at: this.#now() });
    this.#shrink();
  }

  /** `id`: the completion's, or the request_id that it was made from. Null: never known, forgotten, or another entity's. */
  find(id: string, entity: string): (SampledTokens | null)[] | null {
    this.#shrink();
    for (const prefix of ['', ...COMPLETION_PREFIXES]) {
      const entry = this.#entries.get(keyOf(prefix + id, entity));
      if (entry !== undefined) return entry.choices;
    }
    return null;
  }

  #shrink(): void {
    const oldest = this.#now() - MAX_AGE_MS;
    for (const [key, entry] of this.#entries) {
      if (entry.at >= oldest) break;
      this.#forget(key);
    }
    while (this.#bytes > this.#maxBytes) this.#forget(this.#oldestOfLargest());
  }

  /** Many rollouts of one entity are not to make the server forget those that another is about to train on. */
  #oldestOfLargest(): string {
    let largest: Share = { bytes: 0, keys: new Set() };
    for (const share of this.#shares.values()) if (share.bytes > largest.bytes) largest = share;
    const [key = ''] = largest.keys;
    return key;
  }

  #add(key: string, entry: Entry): void {
    const { entity, bytes } = entry;
    const share = this.#shares.get(entity) ?? { bytes: 0, keys: new Set() };
    this.#shares.set(entity, share);
    this.#entries.set(key, entry);
    share.keys.add(key);
    share.bytes += bytes;
    this.#bytes += bytes;
  }

  #forget(key: string): void {
    const entry = this.#entries.get(key);
    if (entry === undefined) return;
    const { entity, bytes } = entry;
    this.#entries.delete(key);
    this.#bytes -= bytes;
    const share = this.#shares.get(entity);
    if (share === undefined) return;
    share.keys.delete(key);
    share.bytes -= bytes;
    if (share.keys.size === 0) this.#shares.delete(entity);
  }
}

/** Ids hold no line break. */
function keyOf(id: string, entity: string): string {
  return `${id}\n${entity}`;
}
