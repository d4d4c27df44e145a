/** SQL of stored responses. */
import { sql, type Kysely, type RawBuilder, type Transaction } from 'kysely';
import type { Reserve, ResponseStore, StoredChain, StoredResponse } from '../stored-responses.ts';
import type { Tables } from './tables.ts';

/** Of one entity. */
export interface ResponseBounds {
  /** 0: none are kept. */
  maxCount: number;
  maxBytes: number;
}

/** A conversation of more is refused; each of them is looked up. */
const MAX_CHAIN = 1024;
/** Looked at, or looked for, in one statement. */
const BATCH = 100;

interface ChainRow {
  depth: number;
  previous_id: string | null;
}

export class ResponseRepository implements ResponseStore {
  readonly #db: Kysely<Tables>;
  readonly #bounds: ResponseBounds;

  constructor(db: Kysely<Tables>, bounds: ResponseBounds) {
    this.#db = db;
    this.#bounds = bounds;
  }

  get keeps(): boolean {
    return this.#bounds.maxCount > 0;
  }

  async insert(entity: string, response: StoredResponse): Promise<boolean> {
    const { id, previousId, head, output, input } = response;
    const bytes = Buffer.byteLength(head) + Buffer.byteLength(output) + Buffer.byteLength(input);
    if (!this.keeps || bytes > this.#bounds.maxBytes) return false;
    const row = {
      entity,
      id,
      previous_id: previousId,
      head,
      output,
      input,
      bytes,
      created_at: new Date().toISOString(),
    };
    await this.#db.transaction().execute(async (trx) => {
      await trx.deleteFrom('responses').where('entity', '=', entity).where('id', '=', id).execute();
      await trx.insertInto('responses').values(row).execute();
      await this.#shrink(trx, entity);
    });
    return true;
  }

  /** Costs what leaves, however many are kept. */
  async #shrink(trx: Transaction<Tables>, entity: string): Promise<void> {
    const { maxCount, maxBytes } = this.#bounds;
    for (;;) {
      const held = await trx.selectFrom('response_totals').selectAll().where('entity', '=', entity).executeTakeFirst();
      if (!held || (held.count <= maxCount && held.bytes <= maxBytes)) return;
      const oldest = await trx
        .selectFrom('responses')
        .select(['sequence', 'bytes'])
        .where('entity', '=', entity)
        .orderBy('sequence')
        .limit(BATCH)
        .execute();
      const last = lastToLeave(oldest, held.count - maxCount, held.bytes - maxBytes);
      await trx.deleteFrom('responses').where('entity', '=', entity).where('sequence', '<=', last).execute();
    }
  }

  async find(entity: string, id: string, reserve: Reserve): Promise<StoredResponse | null> {
    const of = this.#db.selectFrom('responses').where('entity', '=', entity).where('id', '=', id);
    const size = await of.select('bytes').executeTakeFirst();
    if (size === undefined) return null;
    reserve(size.bytes);
    const row = await of.select(['previous_id', 'head', 'output', 'input']).executeTakeFirst();
    if (row === undefined) return null;
    const { previous_id: previousId, head, output, input } = row;
    return { id, previousId, head, output, input };
  }

  async delete(entity: string, id: string): Promise<boolean> {
    const query = this.#db.deleteFrom('responses').where('entity', '=', entity).where('id', '=', id);
    return (await query.executeTakeFirst()).numDeletedRows > 0n;
  }

  async chain(entity: string, id: string, reserve: Reserve): Promise<StoredChain | null> {
    const { rows: sizes } = await this.#chain<{ bytes: number }>(entity, id, sql`bytes`);
    if (sizes.length === 0) return null;
    reserve(sizes.reduce((sum, { bytes }) => sum + bytes, 0));
    const { rows } = await this.#chain<StoredChain['links'][number]>(entity, id, sql`id, input, output`);
    const [oldest] = rows;
    if (oldest === undefined) return null;
    const links = rows.map(({ id, input, output }) => ({ id, input, output }));
    return { links, missing: oldest.previous_id, isCut: oldest.depth > MAX_CHAIN };
  }

  /** A response and what it continues, the oldest first. */
  #chain<Row>(entity: string, id: string, columns: RawBuilder<unknown>) {
    return sql<Row & ChainRow>`with recursive chain(depth, sequence, previous_id) as (
        select 1, sequence, previous_id from responses where entity = ${entity} and id = ${id}
        union all
        select depth + 1, older.sequence, older.previous_id
        from chain join responses older on older.entity = ${entity} and older.id = chain.previous_id
        where depth <= ${MAX_CHAIN}
      )
      select depth, chain.previous_id, ${columns} from chain join responses using (sequence)
      order by depth desc`.execute(this.#db);
  }

  async outputs(entity: string, ids: readonly string[], reserve: Reserve): Promise<ReadonlyMap<string, string>> {
    const found = new Map<string, string>();
    for (let from = 0; from < ids.length; from += BATCH) {
      const wanted = ids.slice(from, from + BATCH);
      const of = this.#db.selectFrom('responses').where('entity', '=', entity).where('id', 'in', wanted);
      const size = sql<number>`coalesce(sum(length(output)), 0)`.as('bytes');
      reserve((await of.select(size).executeTakeFirstOrThrow()).bytes);
      for (const { id, output } of await of.select(['id', 'output']).execute()) found.set(id, output);
    }
    return found;
  }
}

/** Of the oldest, which must go with all before it. */
function lastToLeave(oldest: { sequence: number; bytes: number }[], count: number, bytes: number): number {
  let left = bytes;
  for (const [at, row] of oldest.entries()) {
    left -= row.bytes;
    if (at + 1 >= count && left <= 0) return row.sequence;
  }
  const last = oldest.at(-1);
  if (last === undefined) throw new Error('An entity without responses has too many of them.');
  return last.sequence;
}
