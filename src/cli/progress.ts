/** Start-up progress for a person: a bar on a terminal, a line per quarter otherwise. */
const WIDTH = 30;

export interface Output {
  isTTY?: boolean;
  write(text: string): unknown;
}

export class LoadingBar {
  readonly #output: Output;
  readonly #label: string;
  #quarter = -1;
  #open = false;

  constructor(output: Output, label: string) {
    this.#output = output;
    this.#label = label;
  }

  update(done: number, total: number): void {
    const share = total > 0 ? Math.min(1, done / total) : 0;
    const text = `${this.#label} ${megabytes(done)} of ${megabytes(total)}`;
    if (this.#output.isTTY === true) {
      const filled = Math.round(share * WIDTH);
      this.#output.write(`\r[${'#'.repeat(filled)}${'.'.repeat(WIDTH - filled)}] ${text}`);
      this.#open = true;
      return;
    }
    const quarter = Math.floor(share * 4);
    if (quarter === this.#quarter) return;
    this.#quarter = quarter;
    this.#output.write(`${text}\n`);
  }

  end(): void {
    if (this.#open) this.#output.write('\n');
    this.#open = false;
  }
}

function megabytes(bytes: number): string {
  return `${(bytes / 1e6).toFixed(1)} MB`;
}
