/** SQL of stored responses. */
import { sql, type CompiledQuery, type Kysely, type RawBuilder } from 'kysely';
import type { Reserve, ResponseStore, StoredChain, StoredResponse } from '../stored-responses.ts';
import type { Database } from './database.ts';
import type { Tables } from './tables.ts';

/** Of one entity. */
export interface ResponseBounds {
  /** 0: none are kept. */
  maxCount: number;
  maxBytes: number;
}

/** A conversation of more is refused; each of them is looked up. */
const MAX_CHAIN = 1024;
/** Looked for in one statement. */
const BATCH = 100;

interface ChainRow {
  depth: number;
  previous_id: string | null;
}

export class ResponseRepository implements ResponseStore {
  readonly #database: Pick<Database, 'db' | 'transact'>;
  readonly #bounds: ResponseBounds;

  constructor(database: Pick<Database, 'db' | 'transact'>, bounds: ResponseBounds) {
    this.#database = database;
    this.#bounds = bounds;
  }

  get #db(): Kysely<Tables> {
    return this.#database.db;
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
    const replaced = this.#db.deleteFrom('responses').where('entity', '=', entity).where('id', '=', id);
    const inserted = this.#db.insertInto('responses').values(row);
    await this.#database.transact([replaced.compile(), inserted.compile(), this.#shrink(entity)]);
    return true;
  }

  /** Deletes the oldest until the bounds are kept: costs what leaves, however many are kept. */
  #shrink(entity: string): CompiledQuery {
    const { maxCount, maxBytes } = this.#bounds;
    return sql`delete from responses where entity = ${entity} and sequence <= (
        with recursive leaving(sequence, count, bytes) as (
          select 0, count - ${maxCount}, bytes - ${maxBytes} from response_totals where entity = ${entity}
          union all
          select oldest.sequence, leaving.count - 1, leaving.bytes - oldest.bytes
          from leaving join responses oldest on oldest.sequence = (
            select min(sequence) from responses where entity = ${entity} and sequence > leaving.sequence
          )
          where leaving.count > 0 or leaving.bytes > 0
        )
        select max(sequence) from leaving
      )`.compile(this.#db);
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
      const size = sql<number>`coalesce(sum(octet_length(output)), 0)`.as('bytes');
      reserve((await of.select(size).executeTakeFirstOrThrow()).bytes);
      for (const { id, output } of await of.select(['id', 'output']).execute()) found.set(id, output);
    }
    return found;
  }
}
