/** Lists of the training endpoints come in pages, asked for with the id of the last item seen. */
export interface PageBody<T> {
  object: 'list';
  data: T[];
  first_id: string;
  last_id: string;
  has_more: boolean;
}

export interface PageQuery {
  /** Id of the last item of the page before. */
  after: string | null;
  limit: number;
  order: 'asc' | 'desc';
}

export const DEFAULT_PAGE_LIMIT = 20;
export const MAX_PAGE_LIMIT = 100;

/** `hasMore`: there is a next page. */
export function toPage<T extends { id: string }>(data: T[], hasMore: boolean): PageBody<T> {
  return {
    object: 'list',
    data,
    first_id: data[0]?.id ?? '',
    last_id: data.at(-1)?.id ?? '',
    has_more: hasMore,
  };
}
