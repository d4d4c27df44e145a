/** Pages of lists whose rows clients can make large: what is read and parsed at once holds up everybody. */

/** Of the JSON in a page's rows. One row may have more. */
const MAX_PAGE_BYTES = 2 ** 20;

export interface RowPage<Row> {
  rows: Row[];
  hasMore: boolean;
}

/** How many of the next rows make a page, of which there are at most so many. */
export function pageLength(sizes: readonly { bytes: number }[], limit: number): number {
  let sum = 0;
  const tooLarge = sizes.findIndex(({ bytes }, index) => (sum += bytes) > MAX_PAGE_BYTES && index > 0);
  return Math.min(limit, tooLarge === -1 ? sizes.length : tooLarge);
}

/** `sizesOf` and `rowsOf` read that many of the next rows: how large each is, then those of the page. */
export async function readPage<Row>(
  limit: number,
  sizesOf: (most: number) => Promise<{ bytes: number }[]>,
  rowsOf: (most: number) => Promise<Row[]>,
): Promise<RowPage<Row>> {
  const sizes = await sizesOf(limit + 1);
  const length = pageLength(sizes, limit);
  return { rows: await rowsOf(length), hasMore: sizes.length > length };
}
