/** An object with keys. Boxed numbers are numbers: `1.0` of JSON whose numbers stay as they were written. */
export function isPlainObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Number);
}
