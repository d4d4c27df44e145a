/** What is kept of responses so that they can be read and continued. Each is its entity's alone. */
export interface StoredResponse {
  id: string;
  /** The response that it continues. */
  previousId: string | null;
  /** JSON of the response without its output, of its output items, and of the request's own input items. */
  head: string;
  output: string;
  input: string;
}

/** A response with all that it continues. */
export interface StoredChain {
  /** Input and output items as JSON, oldest first. */
  links: Pick<StoredResponse, 'id' | 'input' | 'output'>[];
  /** What the oldest of them continues and is no longer kept. */
  missing: string | null;
  /** There are more than are followed. */
  isCut: boolean;
}

/** Told how many bytes are about to be read; throws where they must not be. */
export type Reserve = (bytes: number) => void;

export interface ResponseStore {
  /** False: none are kept. */
  readonly keeps: boolean;
  /** Oldest ones of the entity leave where it has too many. One of the same id gives way. False: it alone is too large. */
  insert(entity: string, response: StoredResponse): Promise<boolean>;
  find(entity: string, id: string, reserve: Reserve): Promise<StoredResponse | null>;
  /** False: there was none. */
  delete(entity: string, id: string): Promise<boolean>;
  /** null: there is no such response. */
  chain(entity: string, id: string, reserve: Reserve): Promise<StoredChain | null>;
  /** Output items of those that are there, by the response's id. */
  outputs(entity: string, ids: readonly string[], reserve: Reserve): Promise<ReadonlyMap<string, string>>;
}
