/** A bound on what all tenants together may hold. Where it is reached, each may still have its equal share of it, whatever the others hold. */
export class SharedBound {
  readonly #max: number;
  /** Of tenants that hold something. */
  readonly #held = new Map<string, number>();
  #total = 0;

  constructor(max: number) {
    this.#max = max;
  }

  get total(): number {
    return this.#total;
  }

  of(tenant: string): number {
    return this.#held.get(tenant) ?? 0;
  }

  /** Whether the tenant may hold so much more. */
  fits(tenant: string, amount: number): boolean {
    if (this.#total + amount <= this.#max) return true;
    const tenants = this.#held.size + (this.#held.has(tenant) ? 0 : 1);
    return (this.of(tenant) + amount) * tenants <= this.#max;
  }

  /** Books what a tenant takes, or gives back where it is below 0. */
  add(tenant: string, amount: number): void {
    this.#total += amount;
    const held = this.of(tenant) + amount;
    if (held === 0) this.#held.delete(tenant);
    else this.#held.set(tenant, held);
  }
}
